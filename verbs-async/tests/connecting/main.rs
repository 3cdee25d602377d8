//! Connecting, registering and destroying on a device whose calls block until the test releases them.
//!
//! Every test shares its [`fake_libibverbs`] with the threads that the crate starts.
#![cfg(test)]

mod accept;
#[expect(dead_code, reason = "is the base of other tests, too")]
#[path = "../offline/bench.rs"]
mod bench;
mod cached;
mod clock;
mod dropped;
mod duty;
mod gate;
mod handshakes;
mod listeners;
mod names;
mod places;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
