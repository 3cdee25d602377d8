//! Connecting and registering on a device whose calls block until the test releases them.
//!
//! Every test shares its [`fake_libibverbs`] with the threads that the crate starts.
#![cfg(test)]

mod accept;
mod cached;
mod gate;
mod handshakes;
mod listeners;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
