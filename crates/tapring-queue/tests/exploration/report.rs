//! What the exploration prints.

use std::process::ExitCode;
use std::time::Instant;

use crate::case::{Case, Lacks};
use crate::explore::Found;

pub(crate) struct Report {
    begin: Instant,
    cases: usize,
    mutants: usize,
    failed: usize,
    states: usize,
    interleavings: usize,
}

impl Report {
    pub(crate) fn new() -> Self {
        println!("\nexploration: every interleaving of small worlds, on the real engine");
        Self {
            begin: Instant::now(),
            cases: 0,
            mutants: 0,
            failed: 0,
            states: 0,
            interleavings: 0,
        }
    }

    pub(crate) fn tell(&mut self, case: &Case, found: &Found) {
        let right = case.is_right(found);
        let word = if right { "ok  " } else { "FAIL" };
        println!("{word} {}: {found}", case.name);
        match &found.broken {
            Some(broken) => {
                println!("     -> {}", broken.what);
                for step in &broken.steps {
                    println!("         {step}");
                }
            }
            None if !right => println!("     -> SURVIVED: nothing notices that the rule is gone"),
            None => {}
        }
        self.failed += usize::from(!right);
        if case.lacks == Lacks::Nothing {
            self.cases += 1;
            self.states += found.states;
            self.interleavings += found.interleavings;
        } else {
            self.mutants += 1;
        }
    }

    /// Ends in the words of Rust's own test harness, for whoever adds results up.
    pub(crate) fn end(self) -> ExitCode {
        let Self {
            cases,
            mutants,
            failed,
            states,
            interleavings,
            ..
        } = self;
        let seconds = self.begin.elapsed().as_secs_f64();
        println!(
            "\nexploration: {interleavings} interleavings of {states} states in {cases} cases, {mutants} mutants"
        );
        let word = if failed == 0 { "ok" } else { "FAILED" };
        let passed = cases + mutants - failed;
        println!(
            "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in {seconds:.2}s\n"
        );
        match failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}
