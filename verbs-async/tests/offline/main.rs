//! Awaited queues and groups on [`fake_libibverbs`], whose events the tests deliver by hand.
#![cfg(test)]

mod allocations;
mod announced;
mod auto_traits;
mod awaited;
mod awaited_model;
mod bench;
mod closing;
mod destroys;
mod ends;
mod forks;
mod gate;
mod groups;
mod groups_model;
mod guide;
mod hooks;
mod loggers;
mod peers;
mod prepared;
mod shared_messages;
mod transfers;
mod turns;
mod wakers;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
