//! Streams on a device that does as it is told, with the thread that drives them when no task does.
//!
//! This program brings its own libibverbs, [`library`], as verbs-core's offline tests do. Each test
//! shares its library with that thread, so they take turns.
#![cfg(test)]
#![expect(unsafe_code, reason = "shares a library that is C's")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

#[path = "../../../verbs-core/tests/offline/library/mod.rs"]
#[expect(dead_code, unused_imports, reason = "verbs-core's tests use all of it")]
mod library;

mod asleep;
#[path = "../offline/bench.rs"]
#[expect(dead_code, reason = "the offline tests use all of it")]
mod bench;
#[path = "../../../verbs-channel/tests/offline/faulty.rs"]
#[expect(dead_code, reason = "verbs-channel's tests use all of it")]
mod faulty;
mod fuzz;
mod streams;
