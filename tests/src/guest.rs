//! Guests in QEMU, without KVM: a Linux that runs a test's script, and iPXE from the network card's ROM.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::files::Kernel;
use crate::initramfs::Initramfs;
use crate::process::Process;

/// How long a guest may take from power-on to power-off. Under TCG on a busy machine a boot that takes four seconds at best
/// has been seen to take thirty.
const LIMIT: Duration = Duration::from_secs(240);

/// What a guest said on its serial line.
#[derive(Clone, Debug)]
pub struct Report {
    lines: Vec<String>,
    checks: BTreeMap<String, String>,
}

impl Report {
    fn of(lines: Vec<String>) -> Self {
        let said = lines.iter().filter_map(|line| line.strip_prefix("CHECK "));
        let checks = said
            .map(|check| check.split_once(' ').unwrap_or((check, "")))
            .map(|(name, how)| (name.to_owned(), how.to_owned()));
        Self {
            checks: checks.collect(),
            lines,
        }
    }

    /// That each of these checks was made, and that no check failed.
    ///
    /// # Errors
    /// When one is missing or failed.
    pub fn ensure_checks(&self, names: &[&str]) -> Result<()> {
        let missing: Vec<_> = names
            .iter()
            .filter(|name| !self.checks.contains_key(**name))
            .collect();
        ensure!(
            missing.is_empty(),
            "the guest made no check {missing:?}:\n{}",
            self.tail()
        );
        let failed: Vec<_> = self.checks.iter().filter(|(_, how)| *how != "ok").collect();
        ensure!(
            failed.is_empty(),
            "failed in the guest: {failed:?}\n{}",
            self.tail()
        );
        Ok(())
    }

    /// What follows `KEY ` on the first line that begins so.
    ///
    /// # Errors
    /// When no line does.
    pub fn value(&self, key: &str) -> Result<&str> {
        let found = self
            .lines
            .iter()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found.with_context(|| format!("the guest said no {key}:\n{}", self.tail()))
    }

    /// The lines between `<KEY>` and `</KEY>`.
    ///
    /// # Errors
    /// When there is no such passage.
    pub fn passage(&self, key: &str) -> Result<String> {
        let (begin, end) = (format!("<{key}>"), format!("</{key}>"));
        let inside: Vec<_> = self
            .lines
            .iter()
            .skip_while(|line| **line != begin)
            .skip(1)
            .take_while(|line| **line != end)
            .collect();
        ensure!(
            !inside.is_empty(),
            "the guest said no <{key}>:\n{}",
            self.tail()
        );
        Ok(inside.into_iter().map(|line| format!("{line}\n")).collect())
    }

    fn tail(&self) -> String {
        self.lines[self.lines.len().saturating_sub(40)..].join("\n")
    }
}

/// A machine that boots Linux into a test's script. It can be booted any number of times.
#[derive(Debug)]
pub struct LinuxGuest {
    kernel: PathBuf,
    image: PathBuf,
    cpus: u16,
    memory_mib: u32,
    network: Vec<String>,
    folder: Arc<TempDir>,
}

impl LinuxGuest {
    /// A guest of one CPU and 256 MiB that runs `script`; `image` has what the script uses.
    ///
    /// # Errors
    /// When the image cannot be packed.
    pub fn new(kernel: &Kernel, image: Initramfs, script: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("initramfs.gz");
        image.pack(script, &path)?;
        let network = vec!["-nic".to_owned(), "none".to_owned()];
        Ok(Self {
            kernel: kernel.image.clone(),
            image: path,
            cpus: 1,
            memory_mib: 256,
            network,
            folder: Arc::new(folder),
        })
    }

    /// Sets how much it has of each.
    #[must_use]
    pub fn size(mut self, cpus: u16, memory_mib: u32) -> Self {
        (self.cpus, self.memory_mib) = (cpus, memory_mib);
        self
    }

    /// Gives it a vhost-user network card with so many queue pairs, behind `socket`.
    #[must_use]
    pub fn network(mut self, socket: &Path, pairs: u16) -> Self {
        self.network = vhost_user(socket, pairs, ",romfile=");
        self
    }

    /// Gives it a card from before virtio 1.0, without mergeable buffers: its header has 10 bytes.
    #[must_use]
    pub fn legacy_network(mut self, socket: &Path) -> Self {
        let legacy = ",romfile=,disable-modern=on,disable-legacy=off,mrg_rxbuf=off";
        self.network = vhost_user(socket, 1, legacy);
        self
    }

    /// Boots it and waits until it has switched itself off.
    ///
    /// # Errors
    /// When QEMU fails or the guest is still on after four minutes.
    pub fn boot(&self) -> Result<Report> {
        self.start()?.finish()
    }

    /// Switches it on.
    ///
    /// # Errors
    /// When there is no QEMU.
    pub fn start(&self) -> Result<RunningGuest> {
        let mut qemu = machine(self.cpus, self.memory_mib, &self.network);
        qemu.args([
            "-append",
            "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off",
        ]);
        qemu.arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.image);
        Ok(RunningGuest {
            process: Process::start("qemu", &qemu)?,
            _folder: Arc::clone(&self.folder),
        })
    }
}

/// A Linux guest that is on. Dropping it switches it off.
#[derive(Debug)]
pub struct RunningGuest {
    process: Process,
    _folder: Arc<TempDir>,
}

impl RunningGuest {
    /// QEMU's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until its script has printed a line with `part` in it.
    ///
    /// # Errors
    /// When it ends before, or has not after four minutes.
    pub fn wait_line(&self, part: &str) -> Result<String> {
        self.process.wait_line(part, LIMIT)
    }

    /// Writes to its serial line, from which its script may read.
    ///
    /// # Errors
    /// When it is off.
    pub fn say(&mut self, text: &str) -> Result<()> {
        self.process.say(text)
    }

    /// Waits until it has switched itself off.
    ///
    /// # Errors
    /// When QEMU fails or the guest is still on after four minutes.
    pub fn finish(self) -> Result<Report> {
        let finished = self.process.finish(LIMIT)?;
        ensure!(
            finished.status.success(),
            "qemu: {}\n{}",
            finished.status,
            finished.lines.join("\n")
        );
        Ok(Report::of(finished.lines))
    }
}

/// A machine that boots from the network by the iPXE in its card's ROM.
#[derive(Debug)]
pub struct Firmware(Process);

impl Firmware {
    /// Switches it on.
    ///
    /// # Errors
    /// When there is no QEMU.
    pub fn boot(socket: &Path) -> Result<Self> {
        let network = vhost_user(socket, 1, ",bootindex=0");
        Ok(Self(Process::start("qemu", &machine(1, 64, &network))?))
    }

    /// What it has printed so far, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        self.0.tail()
    }
}

/// Guest memory must be shareable with the daemon, which maps it.
fn machine(cpus: u16, memory_mib: u32, network: &[String]) -> Command {
    let memory = format!("memory-backend-memfd,id=memory,size={memory_mib}M,share=on");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-nographic",
        "-no-reboot",
        "-nodefaults",
        "-serial",
        "stdio",
    ]);
    qemu.args(["-machine", "q35,memory-backend=memory", "-object", &memory]);
    qemu.args(["-smp", &cpus.to_string(), "-m", &format!("{memory_mib}M")])
        .args(network);
    qemu
}

/// Without MSI-X (`vectors=0`): when a guest moves such an interrupt to another CPU it masks it for a moment, and QEMU 7.2
/// without KVM then takes a KVM path through a null pointer for vhost-user cards.
fn vhost_user(socket: &Path, pairs: u16, more: &str) -> Vec<String> {
    let multi_queue = if pairs > 1 { ",mq=on" } else { "" };
    let words = [
        "-chardev".to_owned(),
        format!("socket,id=backend,path={}", socket.display()),
        "-netdev".to_owned(),
        format!("vhost-user,id=net,chardev=backend,queues={pairs}"),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=net,mac=52:54:00:12:34:56,vectors=0{multi_queue}{more}"),
    ];
    words.into()
}
