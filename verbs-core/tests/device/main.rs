//! Every object, every opcode and every way an operation can end, on an RDMA device.
//!
//! The device is named by `VERBS_DEVICE`; it must exist. `VERBS_PEER_DEVICE` is the other end of
//! the wire, the same device unless set. Tests that break the wire need the network interfaces
//! behind the two, `VERBS_NETDEV` and `VERBS_PEER_NETDEV`; soft-RoCE sets them. Run all with
//! `cargo xtask soft-roce test`, or on a NIC with `VERBS_DEVICE=mlx5_0 cargo test -- --ignored`.
//!
//! Tests of features that a device lacks are skipped by name: `SKIPPED test: reason`.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts, forks, and looks at processes")]

mod atomics;
mod completion_channel;
mod completion_queue;
mod datagrams;
mod devices;
mod extended;
mod failures;
mod lifetime;
mod memory;
mod one_sided;
mod peer_dies;
mod permissions;
mod ports;
mod queue_pair;
mod quick_start;
#[cfg(feature = "rdmacm")]
mod rdmacm;
mod requests;
mod send_receive;
mod shared_receives;
mod threads;
mod transitions;
mod two_hosts;
mod unreliable;
mod windows;
mod wire;
