//! Waking, where nothing is locked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes all of them: one that panics does not leave the others asleep.
pub(crate) fn all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panicked = 0_usize;
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            panicked += 1;
        }
    }
    // Last: a logger may panic, too.
    if panicked > 0 {
        log::error!("wakers of {panicked} tasks panicked");
    }
}
