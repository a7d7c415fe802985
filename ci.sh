#!/usr/bin/env bash
# Everything a contributor and CI need, in one place.
#
# usage: ./ci.sh [STEP...]     all steps in order, or only those named
#        ./ci.sh --help        what the steps are
#
# What this machine cannot do is skipped loudly, said again in the summary, and is no failure. Anything else that goes wrong is,
# and the steps after it run all the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly STEPS=(packages fmt clippy doc unit build namespace guest demo)
declare -A ABOUT=(
    [packages]='install the Debian packages that are missing; fetch and unpack a kernel to boot in guests'
    [fmt]='cargo fmt --check'
    [clippy]='cargo clippy, warnings are errors'
    [doc]='cargo doc, warnings are errors'
    [unit]='tests of the crates: units, kernel assumptions, doctests'
    [build]='the release binary, as users build it'
    [namespace]='tests on real taps in network namespaces: command line, guest in software, cases from the field'
    [guest]='tests with foreign frontends: Linux and iPXE in QEMU, the daemon inside an older kernel, DPDK'
    [demo]='tapring demo, as root and as an unprivileged user'
)

# Program or file, and the Debian package that brings it.
readonly PROVIDES=(
    qemu-system-x86_64:qemu-system-x86
    /usr/lib/ipxe/qemu/efi-virtio.rom:ipxe-qemu
    busybox:busybox-static
    cpio:cpio
    depmod:kmod
    ip:iproute2
    dpdk-testpmd:dpdk-dev
    setpriv:util-linux
)
readonly KERNEL_FLAVOURS=(cloud-amd64 amd64)

export TAPRING_CI_CACHE=${TAPRING_CI_CACHE:-$PWD/target/ci-cache}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto} CARGO_INCREMENTAL=0
readonly RELEASE=${CARGO_TARGET_DIR:-target}/release/tapring

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/record"
: >"$work/log"
export TAPRING_TEST_RECORD=$work/record

say() { printf '\n==== %s\n' "$*"; }

# skip NAME REASON: said here, and again in the summary
skip() {
    echo "SKIP $1: $2"
    printf 'SKIP\t%s\t%s\n' "$1" "$2" >>"$work/record"
}

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p'
    echo 'steps:'
    for step in "${STEPS[@]}"; do printf '  %-10s %s\n' "$step" "${ABOUT[$step]}"; done
}

# ---- packages

present() { if [[ $1 == /* ]]; then [ -e "$1" ]; else command -v "$1" >/dev/null; fi; }

missing_packages() {
    for pair in "${PROVIDES[@]}"; do present "${pair%:*}" || echo "${pair##*:}"; done | sort -u
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -gt 0 ] || return 0
    echo "missing: ${packages[*]}"
    if ! command -v apt-get >/dev/null; then skip "packages ${packages[*]}" 'no apt-get on this system: install them by its own means'; return 0; fi
    if ! as_root true 2>/dev/null; then skip "packages ${packages[*]}" "neither root nor sudo: apt-get install ${packages[*]}"; return 0; fi
    as_root apt-get update -qq
    # One by one: a package that this release does not have must not keep the others out.
    for package in "${packages[@]}"; do
        DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
            skip "package $package" 'apt-get could not install it'
    done
}

# The real package behind linux-image-FLAVOUR, which only depends on it.
kernel_package() { apt-cache depends "linux-image-$1" 2>/dev/null | grep -oE 'linux-image-[0-9][^ ]*' | head -n 1; }

# unpack_kernel PACKAGE: its image and modules into the cache, not onto the system
unpack_kernel() {
    local into=$TAPRING_CI_CACHE/kernel.new version
    rm -rf "$into"
    (cd "$work" && apt-get download -qq "$1" 2>/dev/null && dpkg -x "$1"_*.deb "$into") || return 1
    if [ -d "$into/usr/lib/modules" ]; then mkdir -p "$into/lib" && mv "$into/usr/lib/modules" "$into/lib/"; fi
    version=$(ls "$into/lib/modules")
    depmod -b "$into" "$version"
    grep -q '/tun\.ko' "$into/lib/modules/$version/modules.dep" || return 1
    rm -rf "$TAPRING_CI_CACHE/kernel"
    mv "$into" "$TAPRING_CI_CACHE/kernel"
}

# The smallest kernel that has a module for taps.
fetch_kernel() {
    local flavour package
    if [ -d "$TAPRING_CI_CACHE/kernel" ]; then return 0; fi
    mkdir -p "$TAPRING_CI_CACHE"
    if ! command -v apt-get >/dev/null || ! command -v depmod >/dev/null; then skip 'guest kernel' 'needs apt-get and depmod'; return 0; fi
    [ -n "$(kernel_package amd64)" ] || as_root apt-get update -qq || true
    for flavour in "${KERNEL_FLAVOURS[@]}"; do
        package=$(kernel_package "$flavour") || continue
        if unpack_kernel "$package"; then echo "guest kernel: $package"; return 0; fi
    done
    skip 'guest kernel' 'apt-get download got no Debian kernel with virtio_net and tun'
}

step_packages() {
    install_packages
    fetch_kernel
}

# ---- cargo

step_fmt() { cargo fmt --all --check; }
# All profiles but release share one: a second would build every dependency once more.
step_clippy() { cargo clippy --workspace --all-targets --locked -- -D warnings; }
step_doc() { RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet; }
step_unit() { cargo test --workspace --exclude tapring-tests --locked --no-fail-fast -- --show-output && cargo test -p tapring-tests --lib --locked; }
step_build() { cargo build --release --locked -p tapring; }

# end_to_end TEST...: against the release binary. Without root, root of a user namespace will do for most.
end_to_end() {
    local targets=() prefix=()
    for test in "$@"; do targets+=(--test "$test"); done
    step_build
    TAPRING_BIN=$(realpath "$RELEASE")
    export TAPRING_BIN
    cargo test -p tapring-tests --locked "${targets[@]}" --no-run
    if [ "$(id -u)" != 0 ] && unshare --user --map-root-user true 2>/dev/null; then prefix=(unshare --user --map-root-user); fi
    # One at a time: they measure, or run a guest that has both CPUs to itself.
    "${prefix[@]}" cargo test -p tapring-tests --locked --no-fail-fast "${targets[@]}" -- --test-threads=1
}

# Whatever is not named elsewhere, so that no test can be forgotten here.
other_tests() {
    local test
    for test in tests/tests/*; do basename "$test" .rs; done | grep -vxE 'qemu|dpdk|demo'
}

step_namespace() { local tests; mapfile -t tests < <(other_tests); end_to_end "${tests[@]}"; }
step_guest() { end_to_end qemu dpdk; }
step_demo() { end_to_end demo; }

# ---- running and telling

declare -A RESULT TOOK

run() {
    local begun=$SECONDS status=0
    say "$1: ${ABOUT[$1]}"
    # A shell of its own: `set -e` does not hold inside of a condition.
    set +e
    (set -e; "step_$1") 2>&1 | tee "$work/$1.log"
    status=${PIPESTATUS[0]}
    set -e
    cat "$work/$1.log" >>"$work/log"
    TOOK[$1]=$((SECONDS - begun))
    RESULT[$1]=$([ "$status" = 0 ] && echo ok || echo FAILED)
}

# Cargo's own "test result:" lines, summed: passed, failed or ignored.
total() { sed -nE "s/^test result: .* ([0-9]+) $1;.*/\1/p" "$work/log" | awk '{ n += $1 } END { print n + 0 }'; }

# What the crates' own tests could not do, told by themselves.
collect_skips() {
    [ -e "$work/unit.log" ] || return 0
    { grep -ahoE '^SKIP[: ].*' "$work/unit.log" || true; } | sed -E 's/^SKIP[: ]+//' | sort -u | while IFS= read -r line; do
        printf 'SKIP\t%s\t%s\n' "${line%%: *}" "${line#*: }" >>"$work/record"
    done
}

summary() {
    local failed_steps=0 passed failed skipped tests_skipped
    collect_skips
    say 'summary'
    for step in "$@"; do
        printf '%-10s %-7s %4d s\n' "$step" "${RESULT[$step]}" "${TOOK[$step]}"
        [ "${RESULT[$step]}" = ok ] || failed_steps=$((failed_steps + 1))
    done
    if grep -qE $'^(ok|FAILED)\t' "$work/record"; then
        printf '\nend-to-end tests that ran:\n'
        awk -F '\t' '$1 != "SKIP" { printf "  %-7s %6.1f s  %s\n", $1, $3, $2 }' "$work/record"
    fi
    if grep -q '^SKIP' "$work/record"; then
        printf '\nskipped:\n'
        awk -F '\t' '$1 == "SKIP" { printf "  SKIP %s: %s\n", $2, $3 }' "$work/record"
    fi
    passed=$(total passed) failed=$(total failed)
    skipped=$(grep -c '^SKIP' "$work/record" || true)
    # To libtest a test that skipped itself has passed.
    tests_skipped=$(grep -cE $'^SKIP\t(cli|software guest|data path|packet socket|--tap-fd|--tap PATH|macvtap|qemu|dpdk|demo): ' "$work/record" || true)
    # A step can fail without a failing test.
    if [ "$failed_steps" -gt "$failed" ]; then failed=$failed_steps; fi
    printf '\n%d s in all\n%d passed, %d failed, %d skipped\n' "$SECONDS" $((passed - tests_skipped)) "$failed" $((skipped + $(total ignored)))
    [ "$failed" = 0 ]
}

main() {
    local steps=("$@")
    case ${1:-} in -h | --help) usage; return 0 ;; esac
    [ $# -gt 0 ] || steps=("${STEPS[@]}")
    for step in "${steps[@]}"; do
        [ -n "${ABOUT[$step]:-}" ] || { echo "ci.sh: no step \`$step\`: see ./ci.sh --help" >&2; exit 2; }
    done
    for step in "${steps[@]}"; do run "$step"; done
    summary "${steps[@]}"
}

main "$@"
