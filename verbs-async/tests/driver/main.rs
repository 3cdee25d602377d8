//! The driver with a fake device: backlogs, outcomes, wakers, and a model of all of it.
//!
//! The driver's own files are compiled here, as in the models that loom checks: loom checks their races.
#![cfg(test)]

mod backlog;
#[path = "../../src/deferred.rs"]
#[expect(dead_code, reason = "datagram endpoints use all of it")]
mod deferred;
mod drained;
#[path = "../../src/driver/mod.rs"]
#[expect(dead_code, reason = "the crate also uses its ring")]
mod driver;
mod ends;
mod hooks;
mod line;
mod model;
mod queueing;
mod ring;
mod task;
mod undispatched;
#[path = "../../src/wake.rs"]
#[expect(dead_code, reason = "nothing is readable here")]
mod wake;
mod wakers;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The modules that the driver imports.
mod sync {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
}
