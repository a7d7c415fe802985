//! Where things are: the workspace, the daemon's binary, the kernel, the ROM.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The root of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package lies in the workspace")
}

/// The daemon under test: what `TAPRING_BIN` names, else the release build, brought up to date once per test program.
///
/// # Panics
/// When the build fails.
#[must_use]
pub fn daemon_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| env::var_os("TAPRING_BIN").map_or_else(build_daemon, PathBuf::from))
}

/// Without the network: the scenario that asks first may already be in a namespace of its own.
fn build_daemon() -> PathBuf {
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--quiet",
            "--offline",
            "--release",
            "-p",
            "tapring",
            "--bin",
            "tapring",
        ])
        .current_dir(workspace())
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cargo build --release -p tapring failed"
    );
    target_folder().join("release/tapring")
}

/// This program is `target/PROFILE/deps/NAME`.
fn target_folder() -> PathBuf {
    let program = env::current_exe().expect("a test program has a path");
    program
        .ancestors()
        .nth(3)
        .expect("a test program lies in target/PROFILE/deps")
        .to_path_buf()
}

/// The folder in which `ci.sh` keeps what it downloads.
fn cache() -> PathBuf {
    env::var_os("TAPRING_CI_CACHE")
        .map_or_else(|| workspace().join("target/ci-cache"), PathBuf::from)
}

/// Whether the file opens for reading and writing.
pub(crate) fn opens(path: &str) -> bool {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .is_ok()
}

/// The full path of a program.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Whether Debian's `ipxe-qemu` is here: QEMU by itself takes this ROM, which has a BIOS part, for a virtio-net card.
pub(crate) fn has_ipxe() -> bool {
    [
        "/usr/lib/ipxe/qemu/efi-virtio.rom",
        "/usr/share/qemu/efi-virtio.rom",
    ]
    .iter()
    .any(|rom| Path::new(rom).is_file())
}

/// A kernel image and the modules built with it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The image to boot.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel that `ci.sh packages` unpacked.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self> {
        let root = cache().join("kernel");
        let image = only_entry(&root.join("boot"), "vmlinuz-")?;
        let modules = only_entry(&root.join("lib/modules"), "")?;
        ensure!(
            modules.join("modules.dep").is_file(),
            "no modules.dep in {}: run depmod",
            modules.display()
        );
        Ok(Self { image, modules })
    }

    /// The files of a module and of those it depends on, in the order to load them; none if it is built in.
    ///
    /// # Errors
    /// When this kernel has no such module.
    pub fn module(&self, name: &str) -> Result<Vec<PathBuf>> {
        let table = fs::read_to_string(self.modules.join("modules.dep"))?;
        if let Some((file, needs)) = table
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(file, _)| is_module(file, name))
        {
            // depmod lists what to load last first.
            let order = needs.split_whitespace().rev().chain([file]);
            return Ok(order.map(|file| self.modules.join(file)).collect());
        }
        let built_in = fs::read_to_string(self.modules.join("modules.builtin"))?;
        ensure!(
            built_in.lines().any(|file| is_module(file, name)),
            "{} has no module {name}",
            self.modules.display()
        );
        Ok(Vec::new())
    }
}

/// `kernel/drivers/net/tun.ko.xz` is the module `tun`.
fn is_module(file: &str, name: &str) -> bool {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split_once(".ko")
        .is_some_and(|(stem, _)| stem.replace('-', "_") == name)
}

fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("no kernel in {}", folder.display()))?;
    let mut names = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    match (names.next(), names.next()) {
        (Some(entry), None) => Ok(entry.path()),
        (None, _) => bail!("nothing named {prefix}* in {}", folder.display()),
        _ => bail!("more than one {prefix}* in {}", folder.display()),
    }
}
