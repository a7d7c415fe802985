use super::*;
use rustix::event::{EventfdFlags, eventfd};

fn watching() -> (Polls, Token) {
    let mut polls = Polls::default();
    polls.install(1, eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let entry = polls.next_entry().unwrap();
    (polls, Token::from_raw(entry.get_user_data()))
}

#[test]
fn a_multishot_poll_that_ended_is_armed_again() {
    let (mut polls, token) = watching();
    polls.handle_completion(token, 1, true);
    assert!(polls.next_entry().is_none());

    polls.handle_completion(token, 1, false);

    assert_eq!(polls.take_events().kicks, [2, 0]);
    assert!(polls.is_wanted());
    assert!(polls.next_entry().is_some());
}

#[test]
fn a_cancelled_poll_is_not_armed_again_and_its_late_completion_is_ignored() {
    let (mut polls, token) = watching();
    assert!(polls.cancel(1).is_some());
    assert!(polls.cancel(1).is_none(), "one cancel at a time");
    polls.handle_completion(token, -libc::ECANCELED, false);
    assert!(
        polls.is_armed(1),
        "the cancel itself is still to be answered"
    );
    polls.handle_cancelled(1);
    assert!(!polls.is_armed(1));
    polls.close(1);

    polls.install(1, eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    polls.next_entry().unwrap();
    polls.handle_completion(token, 1, false);

    assert!(!polls.has_events());
    assert!(polls.is_armed(1));
}

#[test]
fn a_gone_tap_is_said_once_and_not_polled_again() {
    let mut polls = Polls::default();
    polls.request_tap(READABLE);
    polls.request_tap(READABLE);
    let token = Token::from_raw(polls.next_entry().unwrap().get_user_data());
    assert!(polls.next_entry().is_none(), "idempotent");

    polls.handle_completion(token, i32::from(libc::POLLERR), false);
    polls.note_gone();

    assert_eq!(
        polls.take_events(),
        Events {
            tap_gone: true,
            ..Events::default()
        }
    );
    polls.request_tap(READABLE);
    polls.note_gone();
    assert!(polls.next_entry().is_none());
    assert!(!polls.has_events());
}

#[test]
fn who_waits_for_room_in_a_tap_that_is_gone_is_not_left_waiting() {
    let mut polls = Polls::default();
    polls.note_gone();
    polls.take_events();

    polls.request_tap(WRITABLE);

    assert!(polls.next_entry().is_none());
    assert!(polls.take_events().tap_writable);
}

/// Switched on and armed.
fn always() -> (Polls, Token) {
    let mut polls = Polls::default();
    polls.set_always(true);
    let token = next_token(&mut polls).expect("the multishot poll");
    (polls, token)
}

fn next_token(polls: &mut Polls) -> Option<Token> {
    let entry = polls.next_entry()?;
    Some(Token::from_raw(entry.get_user_data()))
}

const POLLOUT: i32 = libc::POLLOUT as i32;

#[test]
fn the_poll_that_stays_is_armed_again_when_the_kernel_ended_it() {
    let (mut polls, token) = always();
    polls.handle_completion(token, POLLOUT, true);
    assert!(polls.take_events().tap_writable);

    polls.handle_completion(token, POLLOUT, false);

    assert!(polls.take_events().tap_writable);
    assert_eq!(
        next_token(&mut polls).map(Token::kind),
        Some(Some(Kind::Poll))
    );
    assert_eq!(polls.writable_arms, 2);
}

#[test]
fn one_that_ends_at_once_waits_for_somebody_who_met_a_full_tap() {
    let (mut polls, token) = always();
    polls.handle_completion(token, POLLOUT, false);
    assert!(polls.take_events().tap_writable);
    assert!(next_token(&mut polls).is_none(), "that would spin");
    polls.set_always(true);
    assert!(next_token(&mut polls).is_none());

    polls.request_tap(WRITABLE);

    assert!(next_token(&mut polls).is_some() && next_token(&mut polls).is_some());
    assert!(next_token(&mut polls).is_none());
    assert_eq!(polls.writable_arms, 3);
}

#[test]
fn one_that_is_refused_is_not_asked_for_again_and_again() {
    let (mut polls, token) = always();
    polls.handle_completion(token, -libc::EINVAL, false);
    assert!(next_token(&mut polls).is_none());
}

#[test]
fn switched_off_it_is_cancelled_and_says_nothing_more() {
    let (mut polls, token) = always();
    polls.set_always(false);
    let cancel = next_token(&mut polls).expect("a cancel");
    assert_eq!(cancel.kind(), Some(Kind::Cancel));
    assert!(next_token(&mut polls).is_none(), "one cancel at a time");

    polls.handle_completion(token, POLLOUT, true);
    polls.handle_completion(token, -libc::ECANCELED, false);
    polls.handle_cancelled(cancel.index());

    assert!(!polls.has_events());
    assert!(next_token(&mut polls).is_none());
    assert!(Polls::places().all(|place| !polls.is_armed(place)));
}

#[test]
fn switched_on_while_its_cancel_is_on_the_way_it_is_armed_anew() {
    let (mut polls, old) = always();
    polls.set_always(false);
    let cancel = next_token(&mut polls).expect("a cancel");
    polls.set_always(true);
    polls.handle_completion(old, -libc::ECANCELED, false);
    let new = next_token(&mut polls).expect("the multishot poll");
    assert!(!polls.has_events());

    // Off once more, and the first cancel is still not answered.
    polls.set_always(false);
    assert!(next_token(&mut polls).is_none());
    polls.handle_cancelled(cancel.index());
    let second = next_token(&mut polls).expect("a cancel of the new one");

    assert_eq!(second.kind(), Some(Kind::Cancel));
    assert_eq!(second.generation(), new.generation());
    polls.handle_completion(old, POLLOUT, true);
    assert!(!polls.has_events(), "stale");
}

#[test]
fn the_two_polls_for_room_are_told_apart() {
    let (mut polls, always) = always();
    polls.request_tap(WRITABLE);
    let one_shot = next_token(&mut polls).expect("the one-shot");
    assert_ne!(always.index(), one_shot.index());

    polls.handle_completion(one_shot, POLLOUT, false);
    polls.take_events();

    assert!(polls.is_armed(always.index()));
    assert!(!polls.is_armed(one_shot.index()) && next_token(&mut polls).is_none());
}

#[test]
fn a_tap_that_is_gone_is_not_polled_for_room_for_ever() {
    let (mut polls, token) = always();
    polls.handle_completion(token, POLLOUT, true);
    polls.take_events();
    polls.handle_completion(token, i32::from(libc::POLLERR), false);
    assert_eq!(
        polls.take_events(),
        Events {
            tap_gone: true,
            ..Events::default()
        }
    );
    assert!(next_token(&mut polls).is_none());

    polls.set_always(false);
    polls.set_always(true);

    assert!(next_token(&mut polls).is_none() && !polls.has_events());
}
