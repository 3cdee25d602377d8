//! The driver with a fake device: backlogs, outcomes, wakers, and a model of all of it.
//!
//! The driver's own files are compiled here, as in the models that loom checks: loom checks their races.
#![cfg(test)]

mod backlog;
mod drained;
#[path = "../../src/driver/mod.rs"]
#[expect(dead_code, reason = "the crate also uses its ring")]
mod driver;
mod ends;
mod fixture;
mod hooks;
mod line;
#[path = "../../src/task/sync.rs"]
#[expect(dead_code, reason = "the driver does not use all of it")]
mod locks;
mod model;
mod queueing;
mod ring;
mod undispatched;
mod wakers;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The modules that the driver imports.
#[path = "../../src/task"]
mod task {
    #[expect(dead_code, reason = "datagram endpoints use all of it")]
    pub(crate) mod deferred;
    #[expect(dead_code, reason = "nothing is readable here")]
    pub(crate) mod wake;

    pub(crate) mod sync {
        pub(crate) use crate::locks::{Mutex, MutexGuard};
        pub(crate) use std::sync::Arc;
    }
}
