//! Tests of failures that no software device has: a device that dies, a queue that cannot be polled,
//! a post that fails half-way, a queue pair that cannot be destroyed.
//!
//! [`fake_libibverbs`] sends nothing, and returns the completions that a test gives it. Miri cannot fork, has no
//! level-triggered epoll sets and no timerfd, and reads neither directories nor options of sockets.
#![cfg(test)]
#![expect(
    unsafe_code,
    reason = "posts unpolled work, polls by hand, registers memory"
)]

mod advice;
mod auto_traits;
mod batches;
mod budget;
mod buffers;
mod chains;
mod closing;
mod counters;
mod datagram_costs;
mod datagram_failures;
mod datagrams;
mod deferred;
mod driven;
#[cfg(feature = "rdmacm")]
mod explained;
mod fake_device;
mod fatal;
mod foreign;
#[cfg(not(miri))]
mod forks;
mod gate;
mod guide;
mod iwarp;
mod ladder;
mod lost_polls;
mod lost_receives;
mod owned;
mod owned_chains;
mod pages;
#[cfg(not(miri))]
mod peer_checks;
#[cfg(not(miri))]
mod peers;
#[cfg(not(miri))]
mod peers_over_tcp;
mod pool_waits;
mod prepared;
mod reentered;
mod registration_cache;
mod rejected;
#[cfg(not(miri))]
mod removed;
mod replaced;
mod results;
mod scopes;
mod settings;
mod several_domains;
mod shared_endings;
mod shared_receives;
mod stuck;
mod swapped;
mod thread_domains;
mod transfer_chains;
mod transfers;
#[cfg(not(miri))]
mod unflushed;
mod waits;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
