//! Every interleaving of small worlds, on the real engine.
//!
//! # Theory of operation
//!
//! A world (`world.rs`) is a guest, a `QueuePair` with its worker, a tap, a frontend and a clock, each
//! of which takes one atomic step at a time; whose turn it is is a choice (`choice.rs`). The search
//! (`explore.rs`) tries every choice in every state there is, so within a case (`cases.rs`) there is
//! no order of events that was not tried. After each step the checks (`checks.rs`) say what must hold.
//!
//! ```text
//!  guest   ── add ── decide ── ring ──────────── add ── …
//!  worker  ── events ── complete ── fill ── deliver ── read ── door ── …
//!  tap     ───────── full ─────────────── drains ── …
//!  frontend, clock ── …
//! ```
//!
//! The engine is the real one; the worker is the daemon's turn, step by step (`worker.rs`). A run that
//! breaks a check is printed step by step, and is one of the shortest that do.
//!
//! So that "nothing was found" means something, each rule of the engine is taken out in turn
//! (`mutants.rs`), and the exploration fails unless it notices.
//!
//! # What is not interleaved here
//!
//! A call into the engine is one step, but for the guest's steps in the middle of it that the sink,
//! the source and the outcomes make room for. Between the store, the fence and the look of one
//! hand-shake the guest does not act, and memory is sequentially consistent: that is what the
//! memory-model check of `src/handshake.rs` is for. Indices wrap here, but no ring goes once around
//! the index space: `src/index/tests.rs` tries all distances. Worlds are small; long runs at random,
//! with both rings, malformed chains and every policy, are the simulation in `tests/engine`.
//!
//! `cargo test -p tapring-queue --test exploration [WORDS]` explores the cases with WORDS in their
//! names; `-- --deep` larger ones, for minutes.

mod case;
mod cases;
mod checks;
mod choice;
#[allow(
    dead_code,
    reason = "the driver of the engine's other tests can do more"
)]
#[path = "../engine/driver.rs"]
mod driver;
mod explore;
#[path = "../engine/frames.rs"]
mod frames;
mod frontend;
mod guest;
mod host;
mod mix;
mod mutants;
mod notes;
mod quiet;
mod report;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use case::{Case, Lacks};
use explore::{Explorer, Found};
use report::Report;
use world::Stage;

fn main() -> ExitCode {
    let words = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    quiet::expect_panics();
    let mut all = cases::all();
    if std::env::args().any(|word| word == "--deep") {
        all.iter_mut().for_each(Case::deepen);
    }
    let mut cases = all.clone();
    cases.extend(mutants::cases(&all));
    let wanted = |case: &Case| words.as_ref().is_none_or(|words| case.name.contains(words));
    cases.retain(wanted);
    let mut report = Report::new();
    explore_all(&cases, |case, found| report.tell(case, &found));
    report.end()
}

/// On all CPUs; told in the order of the cases.
fn explore_all(cases: &[Case], mut tell: impl FnMut(&Case, Found)) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    let found = Explorer::new(case, &Stage::new(case)).explore();
                    sender.send((at, found)).unwrap();
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut told = 0;
        for (at, found) in receiver {
            early.insert(at, found);
            while let Some(found) = early.remove(&told) {
                tell(&cases[told], found);
                told += 1;
            }
        }
    });
}

impl Case {
    /// Whether all is as it should be: nothing is wrong, or what is missing was missed.
    fn is_right(&self, found: &Found) -> bool {
        found.broken.is_some() == (self.lacks != Lacks::Nothing)
    }
}
