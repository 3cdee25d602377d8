//! The atomics of the pool: the loom test replaces them by its own.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
