//! Code that is not this crate's, wakers and the log: what panics there goes no further.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes all of them, where nothing is locked: one that panics does not leave the others asleep.
pub(crate) fn all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panicked = 0_usize;
    for waker in wakers {
        panicked += usize::from(panics(|| waker.wake()));
    }
    if panicked > 0 {
        say(format_args!("wakers of {panicked} tasks panicked"));
    }
}

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// Until this is dropped, drivers wake nobody on this thread: what is due stays with the driver.
///
/// For code that uses a driver under a lock of its own. After unlocking it calls the driver's
/// `settle`.
#[must_use]
pub(crate) struct Held {
    before: bool,
}

/// Holds wake-ups back on this thread.
pub(crate) fn hold() -> Held {
    let before = HELD.replace(true);
    Held { before }
}

/// Whether wake-ups are held back on this thread.
pub(crate) fn are_held() -> bool {
    HELD.get()
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// Says it to the log, whose panic would keep what comes next from being done.
pub(crate) fn say(words: fmt::Arguments<'_>) {
    let _panicked = panics(|| log::error!("{words}"));
}

/// Drops it, where nothing is locked.
pub(crate) fn let_go<T>(what: T) {
    let _panicked = panics(|| drop(what));
}

/// Whether it panics; then that ends here.
pub(crate) fn panics(what: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else {
        return false;
    };
    #[expect(clippy::mem_forget, reason = "dropping it may panic once more")]
    mem::forget(panic);
    true
}
