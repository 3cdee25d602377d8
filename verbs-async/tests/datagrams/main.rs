//! Awaited datagram endpoints. Their address handles are made by threads of the crate.
//!
//! Every test shares its [`fake_libibverbs`] with them.
#![cfg(test)]

#[expect(dead_code, reason = "is the base of other tests, too")]
#[path = "../offline/bench.rs"]
mod bench;
mod connects;
mod ends;
mod waits;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
