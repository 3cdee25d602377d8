//! Async queues and channels on an RDMA device, with every notifier.
//!
//! As for `verbs-core`: the device is named by `VERBS_DEVICE`, `VERBS_PEER_DEVICE` is the other end
//! of the wire, `VERBS_NETDEV` and `VERBS_PEER_NETDEV` are links that tests may break. Run all with
//! `cargo xtask soft-roce test`, or on a device with `VERBS_DEVICE=mlx5_0 cargo test -- --ignored`.
//!
//! Tests of features that a device lacks are skipped by name: `SKIPPED test: reason`.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts with verbs_core, starts processes")]

mod allocations;
mod awaited_cq;
#[cfg(feature = "rdmacm")]
mod by_manager;
mod connecting;
mod ends;
mod exhausted;
mod incoming;
mod leases;
mod no_receive;
mod opcodes;
mod peer_dies;
#[cfg(feature = "rdmacm")]
mod services;
mod stream;
mod turns;
mod two_hosts;
mod wire;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
