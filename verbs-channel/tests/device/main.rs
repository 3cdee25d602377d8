//! Every way to use a channel with every opcode, and every way it can end, on an RDMA device.
//!
//! As for `verbs-core`: the device is named by `VERBS_DEVICE`, `VERBS_PEER_DEVICE` is the other end
//! of the wire, `VERBS_NETDEV` and `VERBS_PEER_NETDEV` are links that tests may break. Run all with
//! `cargo xtask soft-roce test`, or on a NIC with `VERBS_DEVICE=mlx5_0 cargo test -- --ignored`.
//!
//! Tests of features that a device lacks are skipped by name: `SKIPPED test: reason`.
#![cfg(test)]
#![expect(
    unsafe_code,
    reason = "posts unpolled work, starts processes, maps memory"
)]

mod allocations;
mod blocking;
#[cfg(feature = "rdmacm")]
mod brief_clients;
#[cfg(feature = "rdmacm")]
mod by_manager;
mod connecting;
mod datagrams;
mod endings;
mod ends;
mod exhausted;
mod groups;
#[cfg(feature = "rdmacm")]
mod iwarp;
mod leases;
mod leaving;
mod lifetime;
mod meeting;
mod opcodes;
mod quick_start;
#[cfg(feature = "rdmacm")]
mod services;
mod shared_receives;
mod two_hosts;
mod wire;

use verbs_harness::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
