//! Calls of the user's code whose panics go no further: loggers, wakers, and what drops connections. No such call is
//! made while a scope has its engine borrowed: see `engine/afterwards.rs`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use log::Level;

/// Calls a function. Returns whether it panicked, and contains the panic.
pub(crate) fn panics(what: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else {
        return false;
    };
    #[expect(clippy::mem_forget, reason = "dropping it may panic once more")]
    std::mem::forget(panic);
    true
}

/// Drops a waker, or what kept memory, between two steps that belong together: a panic of its drop is logged.
pub(crate) fn discard<T>(value: T) {
    if panics(|| drop(value)) {
        log_error(format_args!(
            "a waker, or what kept memory, panicked when it was dropped"
        ));
    }
}

/// Writes an error to the log.
pub(crate) fn log_error(line: fmt::Arguments<'_>) {
    log(Level::Error, line);
}

/// Writes to the log. A logger that panics ends no borrow and no call: the panic stops here.
pub(crate) fn log(level: Level, line: fmt::Arguments<'_>) {
    let _panicked = panics(|| log::log!(level, "{line}"));
}
