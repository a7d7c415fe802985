//! Messages that are wrong, slow, or of features that were not offered: B47 B49 B60, rarp.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use tapring_guest::Resume;
use tapring_tests::{Rig, Vitals, scenario};

use crate::NEEDS;
use crate::mini::{PROTOCOL, VERSION_1};
use crate::raw::{Answer, NEED_REPLY, RawFrontend, VERSION, message, request, ring_state};

const SOON: Duration = Duration::from_secs(2);

/// A message, its descriptors, and whether the rest of the session may go on.
struct Bad {
    name: String,
    bytes: Vec<u8>,
    fds: usize,
}

fn bad_messages() -> Vec<Bad> {
    let mut all = Vec::new();
    let mut add = |name: String, bytes: Vec<u8>, fds: usize| all.push(Bad { name, bytes, fds });
    let flags = VERSION | NEED_REPLY;
    for index in [2u32, 4, 255, 256, 65_536, 0x10001, u32::MAX] {
        for code in [
            request::SET_VRING_NUM,
            request::SET_VRING_BASE,
            request::GET_VRING_BASE,
            request::SET_VRING_ENABLE,
        ] {
            let body = ring_state(index, 1);
            add(
                format!("request {code}, ring {index}"),
                message(code, flags, 8, &body),
                0,
            );
        }
        let mut body = [index, 0].map(u32::to_ne_bytes).concat();
        body.extend([0; 32]);
        let code = request::SET_VRING_ADDR;
        add(
            format!("request {code}, ring {index}"),
            message(code, flags, 40, &body),
            0,
        );
        for code in [
            request::SET_VRING_KICK,
            request::SET_VRING_CALL,
            request::SET_VRING_ERR,
        ] {
            let body = (u64::from(index) & !0x100).to_ne_bytes();
            if u64::from(index) & !0x100 >= 2 {
                add(
                    format!("request {code}, ring {index}"),
                    message(code, flags, 8, &body),
                    1,
                );
            }
            let body = (1u64 << 32).to_ne_bytes();
            add(
                format!("request {code}, high bits"),
                message(code, flags, 8, &body),
                1,
            );
        }
    }
    let code = request::SET_VRING_ENABLE;
    add(
        "enable 2".into(),
        message(code, flags, 8, &ring_state(0, 2)),
        0,
    );
    let code = request::SET_VRING_BASE;
    add(
        "base 65536".into(),
        message(code, flags, 8, &ring_state(0, 65_536)),
        0,
    );
    for code in [0, 45, 200, u32::MAX] {
        add(format!("request {code}"), message(code, flags, 0, &[]), 0);
    }
    for size in [0, 1, 7, 9, 4096, 4097, u32::MAX] {
        for code in [
            request::SET_FEATURES,
            request::SET_VRING_NUM,
            request::SET_MEM_TABLE,
        ] {
            let body = vec![0; if size <= 4096 { size as usize } else { 0 }];
            add(
                format!("request {code}, size {size}"),
                message(code, flags, size, &body),
                0,
            );
        }
    }
    for version in [0, 2, 3, 0x11] {
        add(
            format!("flags {version:#x}"),
            message(request::GET_FEATURES, version, 0, &[]),
            0,
        );
    }
    add(
        "a reply".into(),
        message(request::GET_FEATURES, 5, 8, &[0; 8]),
        0,
    );
    let kick = |fds| (message(request::SET_VRING_KICK, flags, 8, &[0; 8]), fds);
    for (bytes, fds) in [kick(0), kick(2), kick(33)] {
        add(format!("kick with {fds} descriptors"), bytes, fds);
    }
    add(
        "a descriptor where none belongs".into(),
        message(
            request::SET_FEATURES,
            flags,
            8,
            &(VERSION_1 | PROTOCOL).to_ne_bytes(),
        ),
        1,
    );
    all
}

/// One bad message a session: it is refused or ends that session, and nothing is left of it.
#[test]
fn b47_bad_messages_cost_their_session_at_most() {
    scenario("B47 bad-messages: one by one", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        rig.ensure_alive()?;
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
        let before = Vitals::of(rig.daemon.id())?;
        let mut survived = 0;
        for Bad { name, bytes, fds } in bad_messages() {
            let stream = rig.guest.stream().context("connected")?.try_clone()?;
            let raw = RawFrontend::over(stream)?;
            raw.send_bytes(&bytes, &vec![event.as_fd(); fds])
                .with_context(|| name.clone())?;
            if bytes.len() == 12 && bytes[8..12] != [0; 4] {
                raw.half_close()?;
            }
            let answer = raw
                .answer()
                .with_context(|| format!("{name}\n{}", rig.daemon.tail()))?;
            match &answer {
                Answer::Closed => {
                    rig.guest.detach();
                    rig.guest
                        .attach(Resume::Used)
                        .with_context(|| name.clone())?;
                }
                Answer::Reply(..) => survived += 1,
            }
            ensure!(
                !matches!(&answer, Answer::Reply(_, body) if body[..] == [0; 8])
                    || name.contains("where none belongs"),
                "{name}: taken as good"
            );
            rig.ensure_alive().with_context(|| name.clone())?;
        }
        ensure!(survived > 40, "only {survived} were harmless");
        let after = Vitals::of(rig.daemon.id())?;
        ensure!(after.fds == before.fds, "{before:?} became {after:?}");
        rig.daemon.signal(Signal::SIGTERM)?;
        let lines = rig.daemon.finish(SOON)?.lines;
        ensure!(
            lines.len() < 130,
            "{} lines:\n{}",
            lines.len(),
            lines.join("\n")
        );
        ensure!(
            !lines.iter().any(|line| line.contains("panicked")),
            "a panic"
        );
        Ok(())
    });
}

/// Descriptors that are no eventfds.
#[test]
fn b47_only_eventfds_are_kicks_and_calls() {
    scenario("B47 bad-messages: strange descriptors", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let file = tempfile::tempfile()?;
        let null = std::fs::File::open("/dev/null")?;
        let (pipe, _other) = std::io::pipe()?;
        let strange: [BorrowedFd<'_>; 3] = [file.as_fd(), null.as_fd(), pipe.as_fd()];
        for fd in strange {
            for code in [
                request::SET_VRING_KICK,
                request::SET_VRING_CALL,
                request::SET_VRING_ERR,
            ] {
                let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
                let answer = raw.ask(code, VERSION | NEED_REPLY, &[0; 8], &[fd])?;
                ensure!(answer.number(code) != Some(0), "request {code} took it");
                if answer == Answer::Closed {
                    rig.guest.detach();
                    rig.guest.attach(Resume::Used)?;
                }
                rig.ensure_alive()?;
            }
        }
        Ok(())
    });
}

/// Byte by byte, with the descriptor on the first one, while frames go on.
#[test]
fn b47_slow_messages_are_waited_for() {
    scenario("B47 bad-messages: slow", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        rig.ensure_alive()?;
        let stream = rig.guest.stream().context("connected")?.try_clone()?;
        let raw = RawFrontend::over(stream)?;
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
        let code = request::SET_VRING_ERR;
        let bytes = message(code, VERSION | NEED_REPLY, 8, &[0; 8]);
        for (at, byte) in bytes.iter().enumerate() {
            let fds: &[_] = if at == 0 { &[event.as_fd()] } else { &[] };
            raw.send_bytes(&[*byte], fds)?;
            thread::sleep(Duration::from_millis(5));
            rig.ensure_alive()
                .with_context(|| format!("after {at} bytes"))?;
        }
        let answer = raw.answer()?;
        ensure!(answer.number(code) == Some(0), "{answer:?}");
        let code = request::SET_VRING_NUM;
        let bytes = message(code, VERSION | NEED_REPLY, 8, &ring_state(0, 256));
        raw.send_bytes(&bytes[..12], &[])?;
        thread::sleep(Duration::from_millis(100));
        raw.send_bytes(&bytes[12..], &[])?;
        let answer = raw.answer()?;
        ensure!(answer.number(code) == Some(0), "{answer:?}");
        // Two at once.
        let two = [bytes.clone(), bytes].concat();
        raw.send_bytes(&two, &[])?;
        for _ in 0..2 {
            ensure!(
                raw.answer()?.number(code) == Some(0),
                "the second of two at once"
            );
        }
        rig.ensure_alive()
    });
}

/// CTRL_VQ is offered because cloud-hypervisor gives its guest a control virtqueue only then; it serves that itself, and the
/// ring behind the data rings is refused here.
#[test]
fn b49_the_control_virtqueue_is_the_frontends() {
    scenario("B49 ctrl-queue", NEEDS, || {
        let mut rig = Rig::start("", |config| config.more_features = 1 << 17)?;
        rig.ensure_alive()?;
        let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
        let flags = VERSION | NEED_REPLY;
        for (code, body, fds) in [
            (request::SET_VRING_NUM, ring_state(2, 64), &[][..]),
            (request::SET_VRING_BASE, ring_state(2, 0), &[]),
            (request::SET_VRING_ENABLE, ring_state(2, 1), &[]),
            (
                request::SET_VRING_KICK,
                2u64.to_ne_bytes().to_vec(),
                &[event.as_fd()],
            ),
        ] {
            let answer = raw.ask(code, flags, &body, fds)?;
            ensure!(
                answer.number(code).is_some_and(|number| number != 0),
                "{code}: {answer:?}"
            );
            rig.ensure_alive()?;
        }
        Ok(())
    });
}

/// CONFIG, RARP and the like are not offered; a frontend that sends them all the same loses its session at most.
#[test]
fn b60_what_is_not_offered_does_no_harm() {
    scenario("B60 config-space, rarp: not offered", NEEDS, || {
        let mut rig = Rig::start("", |_| {})?;
        let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
        let code = request::GET_PROTOCOL_FEATURES;
        let offered = raw
            .ask(code, VERSION, &[], &[])?
            .number(code)
            .context("an answer")?;
        ensure!(offered & 1 << 9 == 0, "CONFIG is offered now: test it");
        ensure!(offered & 1 << 2 == 0, "RARP is offered now: test it");
        // A request for an announcement that nobody waits for is passed over.
        let mac = 0x0200_0000_0002u64.to_ne_bytes();
        raw.send(request::SEND_RARP, VERSION, &mac, &[])?;
        rig.ensure_alive()?;
        let code = request::SEND_RARP;
        let answer = raw.ask(code, VERSION | NEED_REPLY, &mac, &[])?;
        ensure!(
            answer.number(code).is_some_and(|number| number != 0),
            "{answer:?}"
        );
        rig.ensure_alive()?;
        for (offset, size) in [
            (0u32, 6u32),
            (0, 60),
            (0, 256),
            (250, 10),
            (0x100, 8),
            (0xffff_fff0, 32),
            (0, 0),
        ] {
            for code in [request::GET_CONFIG, request::SET_CONFIG] {
                let raw = RawFrontend::over(rig.guest.stream().context("connected")?.try_clone()?)?;
                let mut body = [offset, size, 0].map(u32::to_ne_bytes).concat();
                body.resize(12 + size as usize, 0);
                let answer = raw.ask(code, VERSION | NEED_REPLY, &body, &[])?;
                let good = matches!(&answer, Answer::Reply(_, body) if body[..] == [0; 8]);
                ensure!(!good, "request {code} at {offset:#x}: taken as good");
                if answer == Answer::Closed {
                    rig.guest.detach();
                    rig.guest.attach(Resume::Used)?;
                }
                rig.ensure_alive()?;
            }
        }
        Ok(())
    });
}
