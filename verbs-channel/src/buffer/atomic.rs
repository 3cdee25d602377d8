//! The atomics and the lock of the pool: the loom test replaces them by its own.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
