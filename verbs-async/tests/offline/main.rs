//! Awaited queues and groups on a device that does as it is told, told of its events by hand.
//!
//! This program brings its own libibverbs, [`library`], as verbs-core's offline tests do.
#![cfg(test)]
#![expect(unsafe_code, reason = "shares a library that is C's")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

#[path = "../../../verbs-core/tests/offline/library/mod.rs"]
#[expect(dead_code, reason = "verbs-core's tests use all of it")]
mod library;

#[path = "../../../verbs-core/tests/device/harness/allocations.rs"]
#[expect(dead_code, reason = "here each thread is counted by itself")]
mod allocations;
mod announced;
mod awaited;
mod awaited_model;
mod bench;
mod closing;
mod ends;
#[path = "../../../verbs-channel/tests/offline/faulty.rs"]
#[expect(dead_code, reason = "verbs-channel's tests use all of it")]
mod faulty;
mod fuzz;
mod gate;
mod groups;
mod groups_model;
#[path = "../driver/hooks.rs"]
mod hooks;
#[path = "../../../verbs-channel/tests/offline/log.rs"]
mod log;
mod loggers;
mod peers;
mod turns;
mod untaken;
mod wakers;
