//! The atomics, the lock and the wake-ups of the pool: the loom test replaces them by its own.

pub(super) use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

pub(super) use crossbeam_queue::ArrayQueue;

pub(super) use super::wake::wake;
pub(super) use crate::panics::discard;
