//! A connected RDMA endpoint whose safe API cannot misuse memory.
//!
//! This crate will hold the safety layer over [`verbs_core`]: scoped channels, loans, owned
//! buffers, deadlines and bounded teardown. It has no items of its own yet; it re-exports the
//! layer below.

pub use verbs_core;
