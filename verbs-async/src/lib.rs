//! Async RDMA: completion-channel notification, on any runtime.
//!
//! This crate will hold `CqNotifier`, `AsyncCq` and async channels with cancel-safe operations,
//! over [`verbs_channel`]. It has no items of its own yet; it re-exports the layer below.

pub use verbs_channel;
