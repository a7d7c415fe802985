//! Changes of policy, between the control socket and the workers.

use std::thread;

use tapring::control::client::{self, ClientError};
use tapring::policy::PolicyChange;
use tapring_queue::{Budget, BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake, TxPoll};

use crate::frontend::Guest;
use crate::harness::Daemon;

const OTHERWISE: Policy = Policy {
    kick_rearm: KickRearm::BeforeSubmit,
    busy_poll: BusyPoll::Auto,
    busy_poll_interrupt: BusyPollInterrupt::Rearm,
    tx_poll: TxPoll::Always,
    rx_wake: RxWake::Chains(8),
    tx_budget: Budget::new(1).expect("allowed"),
    rx_budget: Budget::new(2).expect("allowed"),
};

fn kick_rearm(kick_rearm: KickRearm) -> PolicyChange {
    PolicyChange {
        kick_rearm: Some(kick_rearm),
        ..PolicyChange::default()
    }
}

#[test]
fn a_change_is_answered_when_every_worker_has_it() {
    let daemon = Daemon::start();
    let before = kick_rearm(KickRearm::BeforeSubmit);
    let policy = client::set_policy(&daemon.control(), &before).expect("taken");
    assert_eq!(policy.kick_rearm, KickRearm::BeforeSubmit);
    let told = ["0: set policy before-submit", "1: set policy before-submit"];
    assert_eq!(daemon.book.lines(), told);

    let guest = Guest::start(daemon.connect(), 4);
    client::set_policy(&daemon.control(), &before).expect("as it is");
    client::set_policy(&daemon.control(), &kick_rearm(KickRearm::AfterCompletion)).expect("taken");
    let lines = daemon.book.lines();
    let told = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!((told("before-submit"), told("after-completion")), (2, 2));
    drop(guest);
}

#[test]
fn changes_at_once_do_not_undo_each_other() {
    let daemon = Daemon::start();
    let all = PolicyChange::from(OTHERWISE);
    let none = PolicyChange::default();
    let changes = [
        PolicyChange {
            kick_rearm: all.kick_rearm,
            ..none
        },
        PolicyChange {
            busy_poll_us: all.busy_poll_us,
            ..none
        },
        PolicyChange {
            busy_poll_interrupt: all.busy_poll_interrupt,
            ..none
        },
        PolicyChange {
            tx_poll: all.tx_poll,
            ..none
        },
        PolicyChange {
            rx_wake: all.rx_wake,
            ..none
        },
        PolicyChange {
            tx_budget: all.tx_budget,
            ..none
        },
        PolicyChange {
            rx_budget: all.rx_budget,
            ..none
        },
    ];
    thread::scope(|scope| {
        for change in &changes {
            scope.spawn(|| client::set_policy(&daemon.control(), change).expect("taken"));
        }
    });
    assert_eq!(client::policy(&daemon.control()).expect("told"), OTHERWISE);
}

#[test]
fn a_stuck_worker_stops_nobody() {
    let daemon = Daemon::start();
    daemon.book.deaf_to(Some("set policy"));
    let control = daemon.control();
    let change = thread::spawn({
        let control = control.clone();
        move || client::set_policy(&control, &kick_rearm(KickRearm::BeforeSubmit))
    });
    daemon.book.wait("0: set policy", 1);
    assert_eq!(
        client::policy(&control).expect("told at once"),
        Policy::DEFAULT
    );
    let guest = Guest::start(daemon.connect(), 4);
    drop(guest);

    let refused = change.join().expect("no panic");
    assert!(
        matches!(&refused, Err(ClientError::Refused(why)) if why.contains("did not answer")),
        "{refused:?}"
    );
    // It takes the policy as soon as it runs, so that counts as in force.
    let shown = client::policy(&control).expect("told");
    assert_eq!(shown.kick_rearm, KickRearm::BeforeSubmit);
    daemon.book.deaf_to(None);
    client::set_policy(&control, &kick_rearm(KickRearm::AfterCompletion)).expect("taken");
    drop(Guest::start(daemon.connect(), 4));
}
