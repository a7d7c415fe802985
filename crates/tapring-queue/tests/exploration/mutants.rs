//! The rules' shorter versions, each of which a case must catch.

use tapring_queue::Weakness;

use crate::case::{Case, Lacks};

/// A rule left out, and the case that is to notice.
struct Mutant {
    name: &'static str,
    lacks: Lacks,
    case: &'static str,
}

const fn of_engine(name: &'static str, weakness: Weakness, case: &'static str) -> Mutant {
    Mutant {
        name,
        lacks: Lacks::Rule(weakness),
        case,
    }
}

const MUTANTS: [Mutant; 9] = [
    of_engine(
        "no look after arming",
        Weakness::NoLookAfterArming,
        "TX, fresh ring",
    ),
    of_engine(
        "swallowed late kick",
        Weakness::SwallowedLateKick,
        // By default whatever wakes the worker makes it look, so there is nothing to swallow.
        "TX, before-submit",
    ),
    of_engine(
        "armed on start",
        Weakness::ArmedOnStart,
        "TX, restart with chains pending",
    ),
    Mutant {
        name: "POLLOUT disarmed by a later success",
        lacks: Lacks::Writability,
        case: "TX, tap full",
    },
    of_engine(
        "threshold without a look",
        Weakness::ThresholdWithoutLook,
        "RX, half of 4",
    ),
    of_engine(
        "threshold without a timer",
        Weakness::ThresholdWithoutTimer,
        "RX, half of 4",
    ),
    of_engine(
        "policy read afresh in mid-flight",
        Weakness::PolicyReadAfresh,
        "TX, policy switched in mid-flight",
    ),
    of_engine(
        "interrupted poll begins anew",
        Weakness::PollStartsAnew,
        "TX, busy poll",
    ),
    of_engine(
        "full tap is tried again",
        Weakness::FullTapIsTried,
        "TX, tap full",
    ),
];

/// The cases without the rules, each with EVENT_IDX and with flags.
pub(crate) fn cases(all: &[Case]) -> Vec<Case> {
    for weakness in Weakness::ALL {
        let lacks = Lacks::Rule(weakness);
        let has_case = MUTANTS.iter().any(|mutant| mutant.lacks == lacks);
        assert!(has_case, "no case is to notice {weakness:?}");
    }
    MUTANTS
        .iter()
        .flat_map(|mutant| mutant.cases(all))
        .collect()
}

impl Mutant {
    fn cases(&self, all: &[Case]) -> Vec<Case> {
        let of_name = |case: &&Case| case.name.ends_with(&format!(": {}", self.case));
        let cases: Vec<_> = all.iter().filter(of_name).collect();
        assert_eq!(cases.len(), 2, "{} in both modes", self.case);
        let without = |case: &Case| Case {
            name: format!("mutant `{}` in {}", self.name, case.name),
            lacks: self.lacks,
            ..case.clone()
        };
        cases.into_iter().map(without).collect()
    }
}
