//! Streams on [`fake_libibverbs`], with the thread that drives them when no task does.
//!
//! Each test shares its library with that thread, so they take turns.
#![cfg(test)]
#![expect(unsafe_code, reason = "writes to posted memory, as a device does")]

mod asleep;
#[path = "../offline/bench.rs"]
#[expect(dead_code, reason = "the offline tests use all of it")]
mod bench;
mod streams;
