//! A root file system in memory: busybox, the modules a test needs, and its script.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::files::{Kernel, in_path};

/// What runs before a test's own script: applets by name, file systems, modules, and `check NAME COMMAND...`, which tells the
/// test on the serial line how the command went.
const PRELUDE: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/net; for f in /dev/shm /tmp /run; do mount -t tmpfs none $f; done
while read -r m; do insmod /modules/$m || echo "CHECK module-$m FAIL"; done </modules/order
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
echo # the firmware leaves the cursor behind a line of its own
check() {
    name=$1; shift
    if "$@" >/tmp/said 2>&1; then echo "CHECK $name ok"; else echo "CHECK $name FAIL $(tail -n 2 /tmp/said | tr '\n' ' ')"; fi
}
"#;

/// An image in the making.
#[derive(Debug)]
pub struct Initramfs {
    root: TempDir,
    kernel: Kernel,
    order: Vec<String>,
}

impl Initramfs {
    /// An image with nothing but busybox.
    ///
    /// # Errors
    /// When there is no busybox.
    pub fn new(kernel: &Kernel) -> Result<Self> {
        let root = tempfile::tempdir()?;
        for folder in ["bin", "proc", "sys", "dev", "tmp", "run", "modules"] {
            fs::create_dir(root.path().join(folder))?;
        }
        let image = Self {
            root,
            kernel: kernel.clone(),
            order: Vec::new(),
        };
        let busybox = in_path("busybox").context("no busybox in PATH")?;
        image.program(&busybox, "bin/busybox")
    }

    /// Adds a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(self, name: &str, content: &str) -> Result<Self> {
        let path = self.root.path().join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(self)
    }

    /// Adds a program, and the shared libraries it is linked with where it finds them here.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn program(self, program: &Path, name: &str) -> Result<Self> {
        fs::copy(program, self.root.path().join(name))
            .with_context(|| format!("copy {}", program.display()))?;
        for library in libraries(program)? {
            let copy = self.root.path().join(library.strip_prefix("/")?);
            fs::create_dir_all(copy.parent().context("a library lies in a folder")?)?;
            fs::copy(&library, &copy)?;
        }
        Ok(self)
    }

    /// Adds a kernel module with all it depends on; they are loaded in the order they were added.
    ///
    /// # Errors
    /// When the kernel has none of that name.
    pub fn module(mut self, name: &str) -> Result<Self> {
        for file in self.kernel.module(name)? {
            let base = file
                .file_name()
                .context("a module has a name")?
                .to_string_lossy();
            let plain = base
                .trim_end_matches(".xz")
                .trim_end_matches(".zst")
                .to_owned();
            if !self.order.contains(&plain) {
                fs::write(
                    self.root.path().join("modules").join(&plain),
                    unpacked(&file)?,
                )?;
                self.order.push(plain);
            }
        }
        Ok(self)
    }

    /// Writes the image, with `script` to run once the modules are loaded. Whatever it does, the machine is switched off
    /// after it.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn pack(self, script: &str, image: &Path) -> Result<()> {
        let order = self
            .order
            .iter()
            .map(|name| format!("{name}\n"))
            .collect::<String>();
        let packed = self.file("modules/order", &order)?.file("test", script)?;
        // A script of its own, so that a syntax error in it still switches off.
        let packed = packed.file("init", &format!("{PRELUDE}. /test\nsync\npoweroff -f\n"))?;
        if !packed.root.path().join("lib64").exists() {
            symlink("lib", packed.root.path().join("lib64"))?;
        }
        let done = Command::new("sh")
            .args(["-c", r#"find . | cpio -o -H newc --quiet | gzip -1 >"$0""#])
            .arg(image)
            .current_dir(packed.root.path())
            .output()?;
        ensure!(
            done.status.success(),
            "pack the initramfs: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(())
    }
}

/// The absolute paths that `ldd` names; none for a static program, which ldd refuses.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let said = Command::new("ldd")
        .arg(program)
        .output()
        .context("run ldd")?;
    let words = String::from_utf8_lossy(&said.stdout)
        .split_whitespace()
        .map(PathBuf::from)
        .collect::<Vec<_>>();
    Ok(words
        .into_iter()
        .filter(|word| word.is_absolute() && word.is_file())
        .collect())
}

/// A module's bytes. Newer Debian kernels pack each module by itself, which busybox cannot load.
fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let unpacker = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(file).with_context(|| format!("read {}", file.display())),
    };
    let done = Command::new(unpacker)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("run {unpacker}"))?;
    ensure!(done.status.success(), "{unpacker} -dc {}", file.display());
    Ok(done.stdout)
}
