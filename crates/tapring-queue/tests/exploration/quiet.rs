//! Panics that are expected: a check that fails is what the exploration looks for.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic inside of [`quietly`] prints nothing.
pub(crate) fn expect_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !EXPECTED.get() {
            print(info);
        }
    }));
}

/// The result, or what a panic said.
pub(crate) fn quietly<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    EXPECTED.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    EXPECTED.set(false);
    result.map_err(|panic| words_of(panic.as_ref()))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(ToString::to_string);
    let formatted = || panic.downcast_ref::<String>().cloned();
    literal.or_else(formatted).unwrap_or_default()
}
