//! The atomics, the lock and the wake-ups of counters: the loom test replaces them by its own.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

pub(super) use crate::panics::discard;
use crate::panics::{log_error, panics};

/// Wakes a task, in the record of an immediate: a panic of its waker is logged.
pub(super) fn wake(waker: Waker) {
    if panics(|| waker.wake()) {
        log_error(format_args!(
            "the waker of a task that waits for immediates panicked"
        ));
    }
}
