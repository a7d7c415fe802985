//! A network namespace of one's own for each test, real taps, and a packet socket on the host's side.
//!
//! As root a test's thread moves into a new network namespace (a namespace belongs to a thread). As another user the
//! test runs itself again under `unshare -Urn`. Where neither is allowed it says SKIP, loudly.
#![allow(dead_code, unused_imports)] // each test file uses its part

mod far;

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tapring_io::{CallFd, PollMode, Port, PortOptions, Tap, TapOptions, Wait};

pub(crate) use far::{
    DeviceFile, Far, macvtap, packet_port, packet_socket, read_frames, read_next, veth,
    wait_running,
};

/// Generous: reached only by a test that fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The destination of RIG-SLOW's static forwarding entry.
pub(crate) const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

const ETHERTYPE: u16 = 0x88b5;
/// Tests run one after the other: a child forked by one for `ip` holds all descriptors of the process until it
/// executes, and with them the tap that another has just closed.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const RERUN: &str = "TAPRING_IO_IN_NAMESPACE";

/// Runs `test` in a network namespace of its own.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    if let Err(error) = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        return skip(&format!("{name}: /dev/net/tun cannot be opened: {error}"));
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = std::thread::spawn(move || {
        // SAFETY: NEWNET changes the thread's network namespace and nothing of its memory or descriptors.
        if unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
            return rerun_as_user(&name);
        }
        quiet();
        test();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn rerun_as_user(name: &str) {
    let already = std::env::var_os(RERUN).is_some();
    let allowed = Command::new("unshare")
        .args(["-Urn", "true"])
        .status()
        .is_ok_and(|status| status.success());
    if already || !allowed {
        skip(&format!(
            "{name}: neither root nor allowed to make a user namespace"
        ));
        return;
    }
    let mut again = Command::new("unshare");
    again
        .arg("-Urn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(RERUN, "1");
    assert!(
        again.status().unwrap().success(),
        "{name} failed in its user namespace"
    );
}

/// No router solicitations and the like on our interfaces.
fn quiet() {
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let _ = fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
}

/// Says what is not tested here. Not through the harness, which would hide it.
pub(crate) fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Runs a command line, which must succeed.
pub(crate) fn sh(line: &str) {
    try_sh(line).unwrap();
}

/// Runs a command line; what it complained about when it failed.
pub(crate) fn try_sh(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let complaint = || format!("{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(complaint)
}

/// A tap that is up, made by us.
pub(crate) fn tap(name: &str) -> Tap {
    taps(name, 1)
}

/// The same with several queues.
pub(crate) fn taps(name: &str, queue_pairs: u16) -> Tap {
    Tap::open(&TapOptions {
        name: name.into(),
        queue_pairs,
        create: true,
    })
    .unwrap()
}

/// A port of the tap's first queue.
pub(crate) fn port(tap: &Tap, options: PortOptions) -> Port {
    Port::new(tap.try_clone_queue(0).unwrap(), options).unwrap()
}

/// Every way a port can work.
pub(crate) fn all_modes() -> [(&'static str, PortOptions); 4] {
    let sqpoll = || PollMode::Sqpoll {
        cpu: None,
        attach: None,
        idle: Duration::from_millis(2),
    };
    [
        ("inline", PortOptions::default()),
        (
            "plain",
            PortOptions {
                force_plain: true,
                ..PortOptions::default()
            },
        ),
        (
            "sqpoll",
            PortOptions {
                poll: sqpoll(),
                ..PortOptions::default()
            },
        ),
        (
            "sqpoll plain",
            PortOptions {
                poll: sqpoll(),
                force_plain: true,
                ..PortOptions::default()
            },
        ),
    ]
}

/// A frame with its virtio header: broadcast, numbered, `bytes` long without the header.
pub(crate) fn frame(number: u32, bytes: usize) -> Vec<u8> {
    frame_to([0xff; 6], number, bytes)
}

/// The same, to a given address.
pub(crate) fn frame_to(destination: [u8; 6], number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(ethernet(destination, number, bytes));
    frame
}

/// The frame without a virtio header, as the host sees it.
pub(crate) fn ethernet(destination: [u8; 6], number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(bytes);
    frame.extend(destination);
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame
        .extend((frame.len()..bytes).map(|at| u8::try_from((at + number as usize) % 251).unwrap()));
    frame
}

/// The number in a frame without virtio header.
pub(crate) fn number_of(ethernet: &[u8]) -> u32 {
    u32::from_be_bytes(ethernet[14..18].try_into().unwrap())
}

/// The host's side of an interface: a packet socket that sees our frames only.
#[derive(Debug)]
pub(crate) struct Host(OwnedFd);

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Host {
    pub(crate) fn on(index: u32) -> Self {
        let protocol = i32::from(ETHERTYPE.to_be());
        // SAFETY: socket(2) touches no memory of ours.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                protocol,
            )
        };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a descriptor that was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain old data for which all zeroes is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap();
        address.sll_protocol = ETHERTYPE.to_be();
        address.sll_ifindex = i32::try_from(index).unwrap();
        let bytes = u32::try_from(size_of_val(&address)).unwrap();
        // SAFETY: address and length describe `address`.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        let host = Self(fd);
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&host.0, 64 << 20)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&host.0, 64 << 20))
            .unwrap();
        host
    }

    pub(crate) fn send(&self, ethernet: &[u8]) {
        rustix::io::write(&self.0, ethernet).unwrap();
    }

    /// The next frame that arrives; `None` when none does within `limit`.
    pub(crate) fn receive_within(&self, limit: Duration) -> Option<Vec<u8>> {
        if !wait_readable(&self.0, limit) {
            return None;
        }
        let mut bytes = vec![0; 1 << 17];
        let len = rustix::io::read(&self.0, &mut bytes).unwrap();
        bytes.truncate(len);
        Some(bytes)
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        self.receive_within(LIMIT).expect("a frame should arrive")
    }

    /// The numbers of `count` frames, in order of arrival.
    pub(crate) fn numbers(&self, count: usize) -> Vec<u32> {
        (0..count).map(|_| number_of(&self.receive())).collect()
    }
}

/// Waits until `fd` can be read.
pub(crate) fn wait_readable(fd: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Copies `frames` into the batch and submits it.
pub(crate) fn submit_copies(port: &mut Port, frames: impl Iterator<Item = Vec<u8>>) -> usize {
    let mut count = 0;
    for frame in frames {
        port.tx_copy(frame.len()).unwrap().copy_from_slice(&frame);
        count += 1;
    }
    port.tx_submit();
    count
}

/// Enters until `done` says so.
pub(crate) fn enter_until<T>(port: &mut Port, mut done: impl FnMut(&mut Port) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(done) = done(port) {
            return done;
        }
        assert!(start.elapsed() < LIMIT, "nothing came of it: {port:?}");
        port.enter(Wait::For(Duration::from_millis(100))).unwrap();
    }
}

/// The outcomes of the batch in flight.
pub(crate) fn outcomes(port: &mut Port) -> Vec<tapring_io::TxOutcome> {
    enter_until(port, |port| port.tx_outcomes().map(<[_]>::to_vec))
}

/// Enters until the kernel has taken in all that was pushed, polls included: it takes entries in order.
pub(crate) fn settle(port: &mut Port) {
    let called = event();
    port.call(&CallFd::new(called.try_clone().unwrap()).unwrap());
    let start = Instant::now();
    while count(&called) == 0 {
        assert!(start.elapsed() < LIMIT, "the call never came: {port:?}");
        port.enter(Wait::For(Duration::from_millis(1))).unwrap();
    }
}

/// A non-blocking eventfd as most frontends make it.
pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Signals an eventfd.
pub(crate) fn kick(fd: &OwnedFd) {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
}

/// The count of an eventfd, which is zero after that.
pub(crate) fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

/// Names of all threads of this process.
pub(crate) fn thread_names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .collect()
}

/// No io-wq thread may ever exist: it would mean that a frame or a call waits, and leaves out of order.
pub(crate) fn assert_no_io_wq() {
    let workers: Vec<_> = thread_names()
        .into_iter()
        .filter(|name| name.starts_with("iou-wrk"))
        .collect();
    assert!(workers.is_empty(), "{workers:?}");
}

/// Sets a tap's send buffer.
pub(crate) fn set_send_buffer(queue: &OwnedFd, bytes: i32) {
    const TUNSETSNDBUF: libc::c_ulong = 0x4004_54d4;
    // SAFETY: the ioctl reads one int, which is what it is given.
    let result = unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETSNDBUF as _, &raw const bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Sets the length of the header that a tap's frames have.
pub(crate) fn set_header_bytes(queue: &OwnedFd, bytes: i32) {
    const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
    // SAFETY: the ioctl reads one int, which is what it is given.
    let result = unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw const bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Attaches an open /dev/net/tun to an interface, with IFF_* flags.
pub(crate) fn attach(tun: &impl AsFd, name: &str, flags: i16) {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    // SAFETY: plain old data for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = flags;
    let fd = tun.as_fd().as_raw_fd();
    // SAFETY: the ioctl reads and writes one `ifreq`.
    let result = unsafe { libc::ioctl(fd, TUNSETIFF as _, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// RIG-SLOW: t0 in a bridge whose way to [`FAR_MAC`] is a veth that sends 1 kbit/s, so that a full tap stays full for
/// a minute, however busy this machine is. Returns the far end.
///
/// Unicast with a static forwarding entry: flooding would clone the frames and free the send buffer at once.
pub(crate) fn slow(tap: &Tap) -> Host {
    let name = tap.name();
    sh("ip link add br0 type bridge");
    sh("ip link add v0 type veth peer name v1");
    sh("ip link set v0 master br0");
    sh(&format!("ip link set {name} master br0"));
    for link in ["br0", "v0", "v1", name] {
        sh(&format!("ip link set {link} up"));
    }
    sh("bridge fdb add 02:00:00:00:00:99 dev v0 master static");
    sh("tc qdisc add dev v0 root tbf rate 1kbit burst 2k limit 10mb");
    Host::on(index_of("v1"))
}

/// The slow egress becomes fast. (Deleting the qdisc would drop what it holds.)
///
/// It holds back what it has until a timer set at the old rate, or until another frame comes: one that no [`Host`] sees.
pub(crate) fn release() {
    sh("tc qdisc change dev v0 root tbf rate 10gbit burst 10mb limit 10mb");
    let mut another = ethernet(FAR_MAC, 0, 60);
    another[12..14].copy_from_slice(&[0x88, 0xb6]);
    Host::on(index_of("v0")).send(&another);
}

pub(crate) fn index_of(name: &str) -> u32 {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .unwrap();
    rustix::net::netdevice::name_to_index(&socket, name).unwrap()
}
