//! The endpoint over loopback, with clients that behave and clients that do not.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::*;

/// Far more than any of this takes; whoever waits that long has hung.
const PATIENCE: Duration = Duration::from_secs(30);
/// A time-out that no test outlives.
const LONG: Limits = Limits {
    connections: 32,
    time: Duration::from_secs(600),
};
/// A time-out to be waited for.
const SHORT: Limits = Limits {
    connections: 32,
    time: Duration::from_secs(2),
};

/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

struct Server {
    address: SocketAddr,
    thread_id: u32,
    renders: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(limits: Limits, body_bytes: usize) -> Self {
        let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, renders) = (endpoint.address(), Arc::new(AtomicUsize::new(0)));
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let count = Arc::clone(&renders);
        let render = move || {
            count.fetch_add(1, Ordering::Relaxed);
            "x".repeat(body_bytes)
        };
        let thread = std::thread::spawn(move || {
            let this = std::fs::read_link("/proc/thread-self").unwrap();
            tell.send(this.file_name().unwrap().to_str().unwrap().parse().unwrap())
                .unwrap();
            tokio_uring::start(async {
                tokio_uring::spawn(endpoint.serve_within(limits, render));
                let _ = stopped.await;
            });
        });
        let thread_id = told.recv().unwrap();
        Self {
            address,
            thread_id,
            renders,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// Sends this and reads until the server closes.
    fn ask(&self, request: &[u8]) -> String {
        let mut client = self.connect();
        client.write_all(request).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    }

    fn scrape(&self) -> String {
        self.ask(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
    }

    /// Sockets of clients for which the server still holds a descriptor: an orphan has inode 0.
    fn descriptors(&self) -> usize {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let local = format!(":{:04X}", self.address.port());
        let held = |fields: &Vec<&str>| {
            fields[1].ends_with(&local) && fields[3] != LISTENING && fields[9] != "0"
        };
        table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .filter(held)
            .count()
    }

    fn wait_for_descriptors(&self, most: usize) {
        wait_until("descriptors are released", || self.descriptors() <= most);
    }

    /// A second without the thread running once.
    fn wait_for_calm(&self) {
        wait_until("the endpoint is idle", || {
            let before = self.context_switches();
            std::thread::sleep(Duration::from_secs(1));
            self.context_switches() == before
        });
    }

    fn context_switches(&self) -> String {
        let status =
            std::fs::read_to_string(format!("/proc/self/task/{}/status", self.thread_id)).unwrap();
        status
            .lines()
            .filter(|line| line.contains("ctxt_switches"))
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(
            start.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the server to close; a reset is as good as an end.
fn wait_for_end(client: &mut TcpStream) -> usize {
    let mut bytes = Vec::new();
    match client.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("not closed: {error}"),
        _ => bytes.len(),
    }
}

#[test]
fn metrics_are_served() {
    let server = Server::start(LONG, 3);
    let expected = "HTTP/1.1 200 OK\r\n\
         Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: 3\r\n\
         Connection: close\r\n\
         \r\n\
         xxx";
    assert_eq!(server.scrape(), expected);
    assert_eq!(server.ask(b"GET /metrics?a=b HTTP/1.0\r\n\r\n"), expected);
    assert_eq!(
        server.renders.load(Ordering::Relaxed),
        2,
        "rendered once for each scrape"
    );
}

#[test]
fn head_counts_the_body_and_keeps_it() {
    let server = Server::start(LONG, 3);
    let reply = server.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        reply.contains("Content-Length: 3\r\n") && reply.ends_with("\r\n\r\n"),
        "{reply}"
    );
}

#[test]
fn other_pages_and_methods() {
    let server = Server::start(LONG, 3);
    let health = server.ask(b"GET /healthz HTTP/1.1\r\n\r\n");
    assert!(
        health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"),
        "{health}"
    );
    assert!(
        server
            .ask(b"GET / HTTP/1.1\r\n\r\n")
            .starts_with("HTTP/1.1 404 Not Found\r\n")
    );
    let post = server.ask(b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
    assert!(
        post.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
        "{post}"
    );
    assert!(post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
    assert_eq!(server.renders.load(Ordering::Relaxed), 0);
}

#[test]
fn a_request_may_come_in_pieces() {
    let server = Server::start(LONG, 3);
    let mut client = server.connect();
    client.set_nodelay(true).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        client.write_all(&[*byte]).unwrap();
    }
    assert_eq!(wait_for_end(&mut client), server.scrape().len());
}

#[test]
fn a_client_may_close_its_half_first() {
    let server = Server::start(LONG, 3);
    let mut client = server.connect();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait_for_end(&mut client), server.scrape().len());
}

#[test]
fn garbage_is_refused() {
    let server = Server::start(LONG, 3);
    for garbage in [
        &b"\x16\x03\x01\x00\xee\x01\x00"[..],
        b"\0\0\0\0\0\0",
        b"hello\r\n\r\n",
    ] {
        let reply = server.ask(garbage);
        assert!(
            reply.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{garbage:?}: {reply}"
        );
    }
    assert!(server.scrape().ends_with("xxx"));
}

/// All of it is written before the reply is read, so a reset would lose the reply.
#[test]
fn too_long_a_head_is_refused_and_the_client_learns_it() {
    let server = Server::start(LONG, 3);
    let mut request = b"GET /metrics HTTP/1.1\r\nCookie: ".to_vec();
    request.resize(5 * request::MAX_HEAD_BYTES, b'a');
    let reply = server.ask(&request);
    assert!(
        reply.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"),
        "{reply}"
    );
}

#[test]
fn an_endless_client_is_cut_off() {
    let server = Server::start(LONG, 3);
    let mut client = server.connect();
    let chunk = [b'a'; 65536];
    while client.write_all(&chunk).is_ok() {}
    assert!(server.scrape().ends_with("xxx"));
}

#[test]
fn a_silent_client_and_a_slow_one_are_closed_and_hold_up_nobody() {
    let server = Server::start(SHORT, 3);
    let mut silent = server.connect();
    let mut slow = server.connect();
    slow.write_all(b"GET /metr").unwrap();
    assert!(server.scrape().ends_with("xxx"));
    assert_eq!(wait_for_end(&mut silent), 0);
    assert_eq!(wait_for_end(&mut slow), 0);
}

#[test]
fn a_client_that_does_not_read_is_closed_and_holds_up_nobody() {
    let body_bytes = 32 << 20;
    let server = Server::start(SHORT, body_bytes);
    let mut deaf = server.connect();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(
        server
            .ask(b"GET /healthz HTTP/1.1\r\n\r\n")
            .ends_with("ok\n")
    );
    server.wait_for_descriptors(0);
    assert!(
        wait_for_end(&mut deaf) < body_bytes,
        "it had got everything: make the body larger"
    );
}

#[test]
fn a_crowd_of_silent_clients_keeps_nobody_out() {
    let server = Server::start(LONG, 3);
    let mut crowd: Vec<_> = (0..100).map(|_| server.connect()).collect();
    assert!(server.scrape().ends_with("xxx"));
    assert_eq!(wait_for_end(&mut crowd[0]), 0, "the oldest goes first");
    server.wait_for_descriptors(LONG.connections);
    drop(crowd);
    server.wait_for_descriptors(0);
}

#[test]
fn a_closure_that_panics_costs_that_scrape_only() {
    let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = endpoint.address();
    std::thread::spawn(move || {
        tokio_uring::start(endpoint.serve(|| panic!("a test of panics")));
    });
    for (request, reply) in [
        ("GET /metrics", ""),
        ("GET /healthz", "HTTP/1.1 200 OK\r\n"),
    ] {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
            .write_all(format!("{request} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(
            got.starts_with(reply) && got.is_empty() == reply.is_empty(),
            "{request}: {got}"
        );
    }
}

/// Both the calm before the first client and that after the last: no timer may be left behind.
#[test]
fn an_idle_endpoint_does_not_wake_up() {
    let server = Server::start(LONG, 3);
    server.wait_for_calm();
    assert!(server.scrape().ends_with("xxx"));
    server.wait_for_calm();
}

/// An io_uring worker thread would mean that an entry had to block.
#[test]
fn no_io_worker_thread_is_made() {
    let server = Server::start(LONG, 1 << 20);
    let _silent: Vec<_> = (0..8).map(|_| server.connect()).collect();
    assert!(server.scrape().ends_with('x'));
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        assert!(!name.starts_with("iou-wrk"), "{name}");
    }
}

#[test]
fn a_taken_address_is_one_clear_line() {
    let first = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = first.address();
    assert_eq!(
        Endpoint::bind(address).unwrap_err().to_string(),
        format!(
            "cannot listen on {address} for metrics: address in use: choose another --metrics address"
        )
    );
    drop(first);
    assert!(
        Endpoint::bind(address).is_ok(),
        "a restart gets its port back"
    );
}

#[test]
fn an_address_of_another_machine_is_one_clear_line() {
    assert_eq!(
        Endpoint::bind("192.0.2.1:9650".parse().unwrap())
            .unwrap_err()
            .to_string(),
        "cannot listen on 192.0.2.1:9650 for metrics: address not available: choose another --metrics address"
    );
}
