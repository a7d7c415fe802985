//! Sessions come, go, overlap and fail.

use std::io::Read;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use tapring::ServeError;
use tapring::serve::Error;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::FrontendReq as Request;

use crate::frontend::{Bytes, Guest, state};
use crate::harness::Daemon;

#[test]
fn one_frontend_at_a_time() {
    let daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    let mut second = daemon.connect();
    let mut nothing = [0; 1];
    assert_eq!(second.read(&mut nothing).expect("closed"), 0, "turned away");
    guest
        .frontend
        .get_vring_base(0)
        .expect("the first one noticed nothing");
}

#[test]
fn a_frontend_that_comes_back_at_once_is_served() {
    let daemon = Daemon::start();
    for round in 1..=20 {
        let guest = Guest::start(daemon.connect(), 4);
        drop(guest);
        daemon.book.wait("0: begin", round);
    }
}

#[test]
fn a_half_closed_connection_is_over() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    let guest = Guest::start(stream.try_clone().expect("copied"), 4);
    stream.shutdown(Shutdown::Write).expect("shut down");
    daemon.book.wait("1: reset", 1);
    let mut rest = Vec::new();
    let mut stream = stream;
    stream
        .read_to_end(&mut rest)
        .expect("closed by the daemon, once it had drained");
    drop(guest);
    Guest::start(daemon.connect(), 4);
}

#[test]
fn stopping_drains_the_session_and_removes_the_socket() {
    let daemon = Daemon::start();
    let path = daemon.path();
    let book = daemon.book.clone();
    let guest = Guest::start(daemon.connect(), 4);
    let began = Instant::now();
    daemon.stop().expect("a good end");
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(!path.exists());
    let lines = book.lines();
    assert_eq!(
        lines[lines.len() - 4..],
        ["0: reset", "1: reset", "0: exit", "1: exit"]
    );
    drop(guest);
}

#[test]
fn an_acknowledgement_of_nothing_never_leaves() {
    let daemon = Daemon::start();
    let mut guest = Guest::start(daemon.connect(), 4);
    daemon.book.deaf_to(Some("disable"));
    guest
        .frontend
        .set_vring_enable(0, false)
        .expect_err("cut instead");
    daemon.book.deaf_to(None);
    daemon.book.wait("1: reset", 1);
    Guest::start(daemon.connect(), 4);
}

#[test]
fn an_unanswered_stop_cuts_the_session_too() {
    let daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    daemon.book.deaf_to(Some("stop"));
    guest.frontend.get_vring_base(0).expect_err("cut instead");
    daemon.book.deaf_to(None);
    daemon.book.wait("1: reset", 1);
    Guest::start(daemon.connect(), 4);
}

#[test]
fn a_worker_that_cannot_be_reset_ends_the_daemon() {
    let mut daemon = Daemon::start();
    let guest = Guest::start(daemon.connect(), 4);
    daemon.book.deaf_to(Some("reset"));
    drop(guest);
    let error = daemon
        .join()
        .expect_err("nobody knows what that worker still does");
    assert!(
        matches!(error, Error::Serve(ServeError::Device(_))),
        "{error}"
    );
    assert!(!daemon.path().exists());
}

#[test]
fn a_stuck_worker_does_not_hold_up_the_end() {
    let daemon = Daemon::start();
    let path = daemon.path();
    let guest = Guest::start(daemon.connect(), 4);
    daemon.book.deaf_to(Some("reset"));
    let began = Instant::now();
    let error = daemon.stop().expect_err("it did not drain");
    assert!(matches!(error, Error::NotDrained), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(!path.exists());
    drop(guest);
}

#[test]
fn a_worker_that_ends_by_itself_ends_the_daemon() {
    let mut daemon = Daemon::start();
    let mut guest = Bytes::negotiated(daemon.connect());
    daemon.end_worker("queue pair 1: out of luck");
    let error = daemon.join().expect_err("half a daemon is none");
    assert!(error.to_string().contains("out of luck"), "{error}");
    drop(guest.0.shutdown(Shutdown::Both));
    assert!(!daemon.path().exists());
    guest.send(Request::SET_VRING_NUM, 0, &state(0, 256));
}
