//! The cases, each with EVENT_IDX and with flags.

use std::time::Duration;

use tapring_queue::{Budget, BusyPoll, BusyPollInterrupt, KickRearm, Policy, RxWake};

use crate::case::{Case, Ring};
use crate::frontend::Kind;

/// The last index before the wrap.
const LAST: u16 = 0xffff;

const POLL: Duration = Duration::from_micros(10);

const BEFORE_SUBMIT: Policy = Policy {
    kick_rearm: KickRearm::BeforeSubmit,
    ..Policy::DEFAULT
};

const POLLING: Policy = Policy {
    busy_poll: BusyPoll::For(POLL),
    ..Policy::DEFAULT
};

const POLLING_REARM: Policy = Policy {
    busy_poll_interrupt: BusyPollInterrupt::Rearm,
    ..POLLING
};

const POLLING_BEFORE_SUBMIT: Policy = Policy {
    kick_rearm: KickRearm::BeforeSubmit,
    ..POLLING
};

const AUTO: Policy = Policy {
    busy_poll: BusyPoll::Auto,
    ..Policy::DEFAULT
};

const ONE_FRAME: Budget = Budget::new(1).expect("at least one");

const BUDGETS: Policy = Policy {
    tx_budget: ONE_FRAME,
    rx_budget: ONE_FRAME,
    ..Policy::DEFAULT
};

const fn waking(rx_wake: RxWake) -> Policy {
    Policy {
        rx_wake,
        ..Policy::DEFAULT
    }
}

/// A ring of `size` with that many chains to come.
fn ring(size: u8, chains: u8) -> Ring {
    Ring {
        size: u16::from(size),
        chains,
        most: size,
        posted: 0,
        naps: 0,
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for event_idx in [true, false] {
        transmit(event_idx, &mut cases);
        frontend(event_idx, &mut cases);
        receive(event_idx, &mut cases);
        both(event_idx, &mut cases);
    }
    cases
}

fn transmit(event_idx: bool, into: &mut Vec<Case>) {
    let case = |name, policy, chains| Case {
        policies: vec![policy],
        tx: Some(ring(2, chains)),
        ..Case::new(name, event_idx)
    };
    into.push(case("TX, fresh ring", Policy::DEFAULT, 4));
    into.push(case("TX, before-submit", BEFORE_SUBMIT, 4));
    for (name, policy) in [
        ("TX, busy poll", POLLING),
        ("TX, busy poll, rearm", POLLING_REARM),
        ("TX, busy poll, before-submit", POLLING_BEFORE_SUBMIT),
        ("TX, busy poll, auto", AUTO),
    ] {
        // Auto has to see a steady sender first.
        let warm_up = if policy == AUTO { 16 } else { 0 };
        into.push(Case {
            ticks: 3,
            warm_up,
            // What interrupts a poll where there is no other ring.
            frontend: vec![Kind::Kick],
            moves: 1,
            ..case(name, policy, 2)
        });
    }
    into.push(case("TX, budget of one", BUDGETS, 4));
    for (name, policy) in [
        ("TX, index wraps", Policy::DEFAULT),
        ("TX, index wraps, before-submit", BEFORE_SUBMIT),
    ] {
        into.push(Case {
            start_at: LAST,
            ..case(name, policy, 3)
        });
    }
    for (name, policy) in [
        ("TX, tap full", Policy::DEFAULT),
        ("TX, tap full, before-submit", BEFORE_SUBMIT),
    ] {
        into.push(Case {
            tap_fills: 1,
            holes: true,
            ..case(name, policy, 3)
        });
    }
    let napping = Ring {
        naps: 2,
        ..ring(2, 2)
    };
    into.push(Case {
        tx: Some(napping),
        start_at: LAST,
        ..case("TX, guest waits for calls", Policy::DEFAULT, 2)
    });
}

fn frontend(event_idx: bool, into: &mut Vec<Case>) {
    let case = |name, policies: &[Policy], kinds: &[Kind]| Case {
        policies: policies.to_vec(),
        tx: Some(ring(2, 2)),
        frontend: kinds.to_vec(),
        moves: 1,
        ..Case::new(name, event_idx)
    };
    for (name, policy) in [
        ("TX, enable and disable", Policy::DEFAULT),
        ("TX, enable and disable, before-submit", BEFORE_SUBMIT),
    ] {
        into.push(case(name, &[policy], &[Kind::Disable]));
    }
    into.push(Case {
        started: false,
        ..case(
            "TX, restart with chains pending",
            &[Policy::DEFAULT],
            &[Kind::Stop],
        )
    });
    into.push(case(
        "TX, new kick fd, new memory",
        &[Policy::DEFAULT],
        &[Kind::NewKick, Kind::NewMemory],
    ));
    into.push(Case {
        moves: 2,
        tx: Some(ring(2, 3)),
        ..case(
            "TX, policy switched in mid-flight",
            &[Policy::DEFAULT, BEFORE_SUBMIT],
            &[Kind::Switch],
        )
    });
    into.push(Case {
        moves: 2,
        ticks: 2,
        ..case(
            "TX, policy switched while polling",
            &[POLLING, POLLING_REARM, BEFORE_SUBMIT],
            &[Kind::Switch],
        )
    });
}

fn receive(event_idx: bool, into: &mut Vec<Case>) {
    // The guest had as many chains posted as it ever has, and as many frames are in the tap.
    let case = |name, policies: &[Policy], most, posts| Case {
        policies: policies.to_vec(),
        rx: Some(Ring {
            most,
            posted: most,
            ..ring(4, posts)
        }),
        queued: most,
        frames: 2,
        ticks: 3,
        ..Case::new(name, event_idx)
    };
    into.push(case("RX, half of 4", &[Policy::DEFAULT], 4, 2));
    into.push(case("RX, driver posts 1 of 4", &[Policy::DEFAULT], 1, 2));
    into.push(case("RX, driver posts 2 of 4", &[Policy::DEFAULT], 2, 2));
    into.push(Case {
        need: 2,
        queued: 2,
        ..case("RX, frame needs 2", &[Policy::DEFAULT], 4, 3)
    });
    into.push(case("RX, first-free", &[waking(RxWake::FirstFree)], 2, 3));
    into.push(Case {
        need: 2,
        queued: 2,
        ..case(
            "RX, first-free, frame needs 2",
            &[waking(RxWake::FirstFree)],
            4,
            3,
        )
    });
    into.push(case("RX, empty", &[waking(RxWake::Empty)], 2, 3));
    into.push(case("RX, 3 chains", &[waking(RxWake::Chains(3))], 3, 3));
    into.push(Case {
        start_at: LAST,
        ..case("RX, index wraps", &[waking(RxWake::Empty)], 2, 2)
    });
    into.push(case("RX, busy poll", &[POLLING], 2, 2));
    into.push(case("RX, busy poll, rearm", &[POLLING_REARM], 2, 2));
    into.push(Case {
        frontend: vec![Kind::Switch],
        moves: 1,
        ..case(
            "RX, threshold lowered at run time",
            &[waking(RxWake::Chains(4)), waking(RxWake::FirstFree)],
            4,
            2,
        )
    });
    into.push(Case {
        frontend: vec![Kind::Disable, Kind::NewKick, Kind::Kick],
        moves: 1,
        ..case("RX, enable and disable", &[waking(RxWake::Empty)], 2, 2)
    });
    into.push(Case {
        frontend: vec![Kind::Stop],
        started: false,
        moves: 1,
        ..case("RX, restart with frames held", &[Policy::DEFAULT], 2, 1)
    });
}

/// Both rings share the worker: what one does must not keep the other waiting.
fn both(event_idx: bool, into: &mut Vec<Case>) {
    let case = |name, policy| Case {
        policies: vec![policy],
        tx: Some(ring(2, 2)),
        rx: Some(Ring {
            posted: 1,
            ..ring(2, 1)
        }),
        frames: 2,
        inside: 0,
        ..Case::new(name, event_idx)
    };
    into.push(case("both rings", Policy::DEFAULT));
    into.push(case("both rings, before-submit", BEFORE_SUBMIT));
    let polling = |name, policy| Case {
        tx: Some(ring(2, 1)),
        frames: 1,
        ticks: 2,
        ..case(name, policy)
    };
    into.push(polling("both rings, busy poll", POLLING));
    into.push(polling("both rings, busy poll, rearm", POLLING_REARM));
    // Under load from the beginning.
    let loaded = Ring {
        posted: 2,
        ..ring(2, 1)
    };
    into.push(Case {
        tx: Some(loaded),
        rx: Some(loaded),
        queued: 2,
        frames: 1,
        ..case("both rings, budget of one", BUDGETS)
    });
}
