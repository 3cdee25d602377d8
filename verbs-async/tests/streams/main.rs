//! Streams on [`fake_libibverbs`], with the threads that drive them when no task does.
//!
//! Each test shares its library with those threads, so they take turns.
#![cfg(test)]
#![expect(unsafe_code, reason = "writes to posted memory, as a device does")]

mod asleep;
#[path = "../offline/bench.rs"]
#[expect(dead_code, reason = "the offline tests use all of it")]
mod bench;
mod no_threads;
mod streams;
