//! Requests in, actions out; no socket anywhere.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use tapring_queue::Features;

use super::*;
use crate::features::FeatureFault;

const REPLY_ACK: u64 = 0x8;
const MQ: u64 = 0x1;
const PROTOCOL: u64 = 1 << 30;

fn adapter() -> Adapter {
    Adapter::new(Offer::new(2, 1024), QueueNum::Auto)
}

/// An adapter behind the usual negotiation.
fn negotiated() -> Adapter {
    let mut adapter = adapter();
    accept(
        &mut adapter,
        u64_message(FrontendReq::SET_PROTOCOL_FEATURES, MQ | REPLY_ACK),
    );
    accept(
        &mut adapter,
        u64_message(FrontendReq::SET_FEATURES, Features::VERSION_1 | PROTOCOL),
    );
    adapter
}

fn message(request: FrontendReq) -> Message {
    Message::request(request, Vec::new())
}

fn u64_message(request: FrontendReq, value: u64) -> Message {
    Message::request(request, value.to_ne_bytes().to_vec())
}

fn state_message(request: FrontendReq, ring: u32, value: u32) -> Message {
    Message::request(request, [ring, value].map(u32::to_ne_bytes).concat())
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd")
}

fn accept(adapter: &mut Adapter, message: Message) -> Actions {
    let actions = adapter.on_request(message).expect("the session goes on");
    assert_eq!(actions.refusal, None);
    actions
}

fn refusal(adapter: &mut Adapter, message: Message) -> Refusal {
    match adapter.on_request(message) {
        Err(Fault::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The same message with NEED_REPLY: an error reply, and the session goes on.
fn refusal_reply(adapter: &mut Adapter, message: Message) -> Refusal {
    let actions = adapter
        .on_request(message.needing_reply())
        .expect("the session goes on");
    assert_eq!(replied(&actions), Some(FAILURE));
    assert!(actions.forward.is_empty() && !actions.awaits_reply);
    actions.refusal.expect("a line for the log")
}

fn replied(actions: &Actions) -> Option<u64> {
    let reply = actions.reply.as_ref()?;
    assert!(reply.header.is_reply());
    Some(u64_at(&reply.body, 0))
}

/// Request and first two words of everything that goes to the crate.
fn forwarded(actions: &Actions) -> Vec<(FrontendReq, Vec<u32>)> {
    let read = |message: &Message| {
        let request = FrontendReq::try_from(message.header.request).expect("known");
        let words = message.body.chunks_exact(4).take(2);
        (request, words.map(|word| u32_at(word, 0)).collect())
    };
    actions.forward.iter().map(read).collect()
}

#[test]
fn early_enables_are_held_and_replayed_behind_set_features() {
    let mut adapter = adapter();
    for (ring, value) in [(0, 1), (1, 1), (2, 1), (3, 0), (2, 0)] {
        let held = accept(
            &mut adapter,
            state_message(FrontendReq::SET_VRING_ENABLE, ring, value),
        );
        assert!(held.forward.is_empty() && held.reply.is_none() && !held.awaits_reply);
    }
    let features = u64_message(FrontendReq::SET_FEATURES, Features::VERSION_1 | PROTOCOL);
    let actions = accept(&mut adapter, features);
    let sent = forwarded(&actions);
    assert_eq!(sent[0].0, FrontendReq::SET_FEATURES);
    let enables: Vec<_> = sent[1..].iter().map(|(_, words)| words.clone()).collect();
    assert_eq!(
        enables,
        [[0, 1], [1, 1], [2, 0], [3, 0]],
        "the last value for each ring"
    );
    assert!(
        actions.forward[1..]
            .iter()
            .all(|message| !message.header.needs_reply())
    );
}

#[test]
fn a_held_enable_is_acknowledged_at_once_if_asked() {
    let mut adapter = adapter();
    accept(
        &mut adapter,
        u64_message(FrontendReq::SET_PROTOCOL_FEATURES, REPLY_ACK),
    );
    let enable = state_message(FrontendReq::SET_VRING_ENABLE, 0, 1).needing_reply();
    assert_eq!(replied(&accept(&mut adapter, enable)), Some(SUCCESS));
}

#[test]
fn need_reply_means_nothing_before_it_was_negotiated() {
    let mut adapter = adapter();
    let enable = state_message(FrontendReq::SET_VRING_ENABLE, 0, 1).needing_reply();
    assert!(accept(&mut adapter, enable).reply.is_none());
    let owner = accept(
        &mut adapter,
        message(FrontendReq::SET_OWNER).needing_reply(),
    );
    assert!(!owner.awaits_reply);
}

#[test]
fn set_features_is_acknowledged_once_though_enables_follow_it() {
    let mut adapter = adapter();
    accept(
        &mut adapter,
        u64_message(FrontendReq::SET_PROTOCOL_FEATURES, REPLY_ACK),
    );
    accept(
        &mut adapter,
        state_message(FrontendReq::SET_VRING_ENABLE, 0, 1),
    );
    let features = u64_message(FrontendReq::SET_FEATURES, Features::VERSION_1 | PROTOCOL);
    let actions = accept(&mut adapter, features.needing_reply());
    assert!(actions.awaits_reply);
    let asking = actions
        .forward
        .iter()
        .filter(|message| message.header.needs_reply());
    assert_eq!(asking.count(), 1);
}

#[test]
fn behind_set_features_enables_pass() {
    let mut adapter = negotiated();
    let actions = accept(
        &mut adapter,
        state_message(FrontendReq::SET_VRING_ENABLE, 3, 0),
    );
    assert_eq!(
        forwarded(&actions),
        [(FrontendReq::SET_VRING_ENABLE, vec![3, 0])]
    );
}

#[test]
fn without_enable_messages_the_rings_are_enabled_as_it_is() {
    let mut adapter = adapter();
    accept(
        &mut adapter,
        state_message(FrontendReq::SET_VRING_ENABLE, 0, 1),
    );
    let actions = accept(
        &mut adapter,
        u64_message(FrontendReq::SET_FEATURES, Features::VERSION_1),
    );
    assert_eq!(
        actions.forward.len(),
        1,
        "the crate takes no enable message then"
    );
    let enable = accept(
        &mut adapter,
        state_message(FrontendReq::SET_VRING_ENABLE, 0, 1),
    );
    assert!(enable.forward.is_empty());
    let disable = state_message(FrontendReq::SET_VRING_ENABLE, 0, 0);
    assert_eq!(
        refusal(&mut adapter, disable),
        Refusal::CannotDisable { ring: 0 }
    );
}

#[test]
fn reset_owner_disables_all_rings_and_holds_again() {
    let mut adapter = negotiated();
    accept(&mut adapter, message(FrontendReq::SET_OWNER));
    let actions = accept(&mut adapter, message(FrontendReq::RESET_OWNER));
    let sent = forwarded(&actions);
    let disables: Vec<_> = sent[..4].iter().map(|(_, words)| words.clone()).collect();
    assert_eq!(disables, [[0, 0], [1, 0], [2, 0], [3, 0]]);
    assert_eq!(sent[4], (FrontendReq::RESET_OWNER, vec![]));
    let enable = accept(
        &mut adapter,
        state_message(FrontendReq::SET_VRING_ENABLE, 0, 1),
    );
    assert!(enable.forward.is_empty(), "held");
    let owner = accept(&mut adapter, message(FrontendReq::SET_OWNER));
    assert_eq!(owner.forward.len(), 1, "a new owner");
}

#[test]
fn a_second_set_owner_does_not_reach_the_crate() {
    let mut adapter = negotiated();
    assert_eq!(
        accept(&mut adapter, message(FrontendReq::SET_OWNER))
            .forward
            .len(),
        1
    );
    let again = accept(
        &mut adapter,
        message(FrontendReq::SET_OWNER).needing_reply(),
    );
    assert!(again.forward.is_empty());
    assert_eq!(replied(&again), Some(SUCCESS));
}

#[test]
fn queues_are_counted_the_way_the_frontend_counts() {
    let number = |queue_num, owner_first| {
        let mut adapter = Adapter::new(Offer::new(2, 1024), queue_num);
        accept(
            &mut adapter,
            u64_message(FrontendReq::SET_PROTOCOL_FEATURES, MQ),
        );
        if owner_first {
            accept(&mut adapter, message(FrontendReq::SET_OWNER));
        }
        replied(&accept(&mut adapter, message(FrontendReq::GET_QUEUE_NUM)))
    };
    assert_eq!(number(QueueNum::Auto, true), Some(4));
    assert_eq!(number(QueueNum::Auto, false), Some(2));
    assert_eq!(number(QueueNum::Rings, false), Some(4));
    assert_eq!(number(QueueNum::Pairs, true), Some(2));
}

#[test]
fn ring_sizes_are_powers_of_two_within_the_limit() {
    let mut adapter = negotiated();
    for size in [1, 2, 256, 1024] {
        accept(
            &mut adapter,
            state_message(FrontendReq::SET_VRING_NUM, 1, size),
        );
    }
    for size in [0, 3, 100, 2048, 4096, 32768, 65536, u32::MAX] {
        let message = || state_message(FrontendReq::SET_VRING_NUM, 1, size);
        let expected = Refusal::RingSize {
            ring: 1,
            size,
            max: 1024,
        };
        assert_eq!(refusal_reply(&mut adapter, message()), expected);
        assert_eq!(refusal(&mut adapter, message()), expected);
        let line = expected.to_string();
        assert!(
            line.contains(&format!("size {size} ")) && line.contains("1024"),
            "{line}"
        );
    }
}

#[test]
fn rings_that_do_not_exist_are_refused_by_their_whole_index() {
    use FrontendReq as Request;
    let mut adapter = negotiated();
    for ring in [4u32, 255, 0x10000, 0x10001, u32::MAX] {
        for request in [
            Request::SET_VRING_NUM,
            Request::SET_VRING_BASE,
            Request::SET_VRING_ENABLE,
            Request::GET_VRING_BASE,
        ] {
            let refused = refusal(&mut adapter, state_message(request, ring, 1));
            assert!(
                matches!(refused, Refusal::RingIndex { .. }),
                "{request:?} {ring}"
            );
        }
        let addr = Message::request(
            Request::SET_VRING_ADDR,
            [ring; 10].map(u32::to_ne_bytes).concat(),
        );
        assert!(matches!(
            refusal(&mut adapter, addr),
            Refusal::RingIndex { .. }
        ));
        for request in [
            Request::SET_VRING_KICK,
            Request::SET_VRING_CALL,
            Request::SET_VRING_ERR,
        ] {
            let message = u64_message(request, ring.into()).with_descriptor(event());
            let refused = adapter.on_request(message).expect_err("refused");
            assert!(matches!(
                refused,
                Fault::Refused(Refusal::RingIndex { .. }) | Fault::Descriptors { .. }
            ));
        }
    }
}

#[test]
fn a_refused_question_ends_the_session_even_with_need_reply() {
    let mut adapter = negotiated();
    let question = state_message(FrontendReq::GET_VRING_BASE, 4, 0).needing_reply();
    adapter
        .on_request(question)
        .expect_err("an u64 is no answer to it");
}

#[test]
fn only_eventfds_are_taken() {
    let mut adapter = negotiated();
    for request in [
        FrontendReq::SET_VRING_KICK,
        FrontendReq::SET_VRING_CALL,
        FrontendReq::SET_VRING_ERR,
    ] {
        accept(
            &mut adapter,
            u64_message(request, 1).with_descriptor(event()),
        );
        let (socket, _peer) = UnixStream::pair().expect("socket pair");
        let strange = u64_message(request, 1).with_descriptor(socket.into());
        let fault = adapter
            .on_request(strange.needing_reply())
            .expect_err("ends the session");
        assert!(matches!(fault, Fault::NoEventfd { ring: 1, .. }), "{fault}");
    }
}

#[test]
fn descriptors_must_be_as_announced() {
    let mut adapter = negotiated();
    let call = |value| u64_message(FrontendReq::SET_VRING_CALL, value);
    accept(&mut adapter, call(0x101));
    for wrong in [
        call(1),
        call(0x101).with_descriptor(event()),
        call(1).with_descriptor(event()).with_descriptor(event()),
    ] {
        let fault = adapter.on_request(wrong).expect_err("ends the session");
        assert!(matches!(fault, Fault::Descriptors { .. }), "{fault}");
    }
    let polled = u64_message(FrontendReq::SET_VRING_KICK, 0x102);
    assert_eq!(
        refusal_reply(&mut adapter, polled),
        Refusal::NoKick { ring: 2 }
    );
}

#[test]
fn features_must_have_been_offered() {
    let mut adapter = negotiated();
    let packed = u64_message(FrontendReq::SET_FEATURES, Features::VERSION_1 | 1 << 34);
    let expected = Refusal::Features(FeatureFault::NotOffered(1 << 34));
    assert_eq!(refusal_reply(&mut adapter, packed), expected);
    let config = u64_message(FrontendReq::SET_PROTOCOL_FEATURES, 1 << 9);
    assert_eq!(
        refusal(&mut adapter, config),
        Refusal::ProtocolFeatures(1 << 9)
    );
}

#[test]
fn optional_requests_are_refused_or_passed_over() {
    let mut adapter = negotiated();
    for request in [FrontendReq::SEND_RARP, FrontendReq::NET_SET_MTU] {
        let refused = refusal_reply(&mut adapter, u64_message(request, 0));
        assert_eq!(refused, Refusal::Unsupported(request));
        let ignored = adapter
            .on_request(u64_message(request, 0))
            .expect("the session goes on");
        assert_eq!(ignored.refusal, Some(Refusal::Unsupported(request)));
        assert!(ignored.forward.is_empty() && ignored.reply.is_none());
    }
    assert!(matches!(
        refusal(&mut adapter, message(FrontendReq::VRING_KICK)),
        Refusal::Unsupported(_)
    ));
}

#[test]
fn nonsense_ends_the_session() {
    let mut adapter = negotiated();
    for request in [0, 45, 200, u32::MAX] {
        let mut strange = message(FrontendReq::GET_FEATURES).needing_reply();
        strange.header.request = request;
        assert_eq!(
            adapter.on_request(strange).expect_err("unknown"),
            Fault::UnknownRequest(request)
        );
    }
    let mut reply = message(FrontendReq::GET_FEATURES);
    reply.header.flags |= 0x4;
    assert!(matches!(
        adapter.on_request(reply),
        Err(Fault::ReplyFromFrontend(_))
    ));
    for request in [
        FrontendReq::SET_VRING_NUM,
        FrontendReq::SET_VRING_KICK,
        FrontendReq::SET_FEATURES,
    ] {
        let short = adapter.on_request(message(request)).expect_err("no body");
        assert!(matches!(short, Fault::BodySize { bytes: 0, .. }));
    }
    assert_eq!(
        refusal(
            &mut adapter,
            state_message(FrontendReq::SET_VRING_ENABLE, 0, 2)
        ),
        Refusal::EnableValue { ring: 0, value: 2 }
    );
    assert_eq!(
        refusal(
            &mut adapter,
            state_message(FrontendReq::SET_VRING_BASE, 0, 0x10000)
        ),
        Refusal::RingBase {
            ring: 0,
            base: 0x10000
        }
    );
}

#[test]
fn the_crates_answer_is_awaited_exactly_when_there_is_one() {
    let mut adapter = negotiated();
    assert!(accept(&mut adapter, message(FrontendReq::GET_FEATURES)).awaits_reply);
    assert!(
        accept(
            &mut adapter,
            message(FrontendReq::GET_FEATURES).needing_reply()
        )
        .awaits_reply
    );
    assert!(
        accept(
            &mut adapter,
            state_message(FrontendReq::GET_VRING_BASE, 0, 0)
        )
        .awaits_reply
    );
    let num = || state_message(FrontendReq::SET_VRING_NUM, 0, 256);
    assert!(!accept(&mut adapter, num()).awaits_reply);
    assert!(accept(&mut adapter, num().needing_reply()).awaits_reply);
}
