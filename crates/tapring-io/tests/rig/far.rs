//! Interfaces that are no taps: a veth, packet sockets on it, a macvtap, and what is at their far end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tapring_io::{BATCH_FRAMES, PacketOptions, PacketSocket, Port, PortOptions, RxRead};

use super::{Host, LIMIT, enter_until, index_of, sh, skip, try_sh};

/// A veth that runs, `v0` and `v1`.
pub(crate) fn veth() {
    sh("ip link add v0 type veth peer name v1");
    for link in ["v0", "v1"] {
        sh(&format!("ip link set {link} mtu 9000 up"));
    }
    for link in ["v0", "v1"] {
        wait_running(link);
    }
}

/// Waits until the kernel has taken note of the carrier: before that it drops what is sent.
pub(crate) fn wait_running(name: &str) {
    let runs = || {
        let shown = Command::new("ip")
            .args(["-o", "link", "show", name])
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        shown.contains("LOWER_UP") && !shown.contains("qdisc noop")
    };
    let start = Instant::now();
    while !runs() {
        assert!(start.elapsed() < LIMIT, "{name} does not run");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The far end of [`veth`], `v1`: what it sends has arrived at `v0` when it returns. (The kernel may leave that to a thread.)
#[derive(Debug)]
pub(crate) struct Far {
    host: Host,
    /// Hears what `v0` receives, behind sockets like a port's, which hear everything and first.
    witness: Host,
}

impl Far {
    pub(crate) fn end() -> Self {
        Self {
            host: Host::on(index_of("v1")),
            witness: Host::on(index_of("v0")),
        }
    }

    pub(crate) fn send(&self, ethernet: &[u8]) {
        self.host.send(ethernet);
        let arrived = self.witness.receive();
        assert_eq!(arrived.len(), ethernet.len());
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        self.host.receive()
    }

    pub(crate) fn numbers(&self, count: usize) -> Vec<u32> {
        self.host.numbers(count)
    }
}

/// What a read finds when there is something.
pub(crate) fn read_next(port: &mut Port) -> RxRead {
    enter_until(port, |port| {
        let read = Some(port.rx_read()).filter(|read| *read != RxRead::Empty);
        if read.is_none() {
            port.poll_readable();
        }
        port.take_events();
        read
    })
}

/// A packet socket on an interface.
pub(crate) fn packet_socket(name: &str) -> PacketSocket {
    PacketSocket::open(&PacketOptions {
        name: name.into(),
        qdisc_bypass: false,
    })
    .unwrap()
}

/// A port of a packet socket on an interface.
pub(crate) fn packet_port(name: &str, options: PortOptions) -> Port {
    let socket = packet_socket(name).try_clone_socket().unwrap();
    Port::new(socket, options).unwrap()
}

/// The bytes of `frames` frames: those that are held, and more as batches bring them.
pub(crate) fn read_frames(port: &mut Port, frames: usize) -> Vec<Vec<u8>> {
    let mut read = Vec::new();
    let start = Instant::now();
    while read.len() < frames {
        if port.rx_held() == 0 {
            port.rx_submit(BATCH_FRAMES);
            enter_until(port, Port::rx_batch_done);
        }
        while let Some(front) = port.rx_front() {
            assert_eq!(front[..12], [0; 12], "nothing is left to be done");
            read.push(front[12..].to_vec());
            port.rx_pop();
        }
        assert!(
            start.elapsed() < LIMIT,
            "{} of {frames} frames came",
            read.len()
        );
    }
    read
}

/// A macvtap `m0` on `v0` of a veth, and its device file, which is gone when dropped; `None`, said loudly, where there is no
/// macvtap or no right to make device files.
pub(crate) fn macvtap() -> Option<DeviceFile> {
    if let Err(error) = try_sh("ip link add link v0 name m0 type macvtap mode bridge") {
        skip(&error);
        return None;
    }
    sh("ip link set m0 up");
    wait_running("m0");
    // The /sys we see may be another namespace's.
    let numbers = "mount -t sysfs none /sys && cat /sys/class/net/m0/tap*/dev";
    let numbers = Command::new("unshare")
        .args(["-m", "sh", "-c", numbers])
        .output()
        .unwrap();
    let numbers = String::from_utf8_lossy(&numbers.stdout).into_owned();
    let parsed = numbers.trim().split_once(':').and_then(|(major, minor)| {
        let number = |word: &str| word.parse::<u32>().ok();
        Some((number(major)?, number(minor)?))
    });
    let Some((major, minor)) = parsed else {
        skip(&format!("macvtap: its device numbers are {numbers:?}"));
        return None;
    };
    DeviceFile::make(major, minor)
}

/// A character device of ours.
#[derive(Debug)]
pub(crate) struct DeviceFile(PathBuf);

impl DeviceFile {
    fn make(major: u32, minor: u32) -> Option<Self> {
        use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
        let path = std::env::temp_dir().join(format!("tapring-{}-{minor}", std::process::id()));
        let mode = Mode::RUSR | Mode::WUSR;
        let made = mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        );
        if let Err(error) = made {
            skip(&format!(
                "macvtap: no right to make its device file: {error}"
            ));
            return None;
        }
        Some(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
