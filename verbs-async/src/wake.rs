//! Waking, where nothing is locked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes all of them: one that panics does not leave the others asleep.
pub(crate) fn all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            log::error!("a task's waker panicked");
        }
    }
}
