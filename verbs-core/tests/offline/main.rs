//! Everything that can be proven without a device: this program brings its own libibverbs.
//!
//! The `ibv_*` symbols that `verbs-core` links to are defined in [`library`], so the linker takes
//! them from there. What this crate tells C, and what it makes of C's answers, is seen from both
//! sides; answers that no software device gives (InfiniBand ports, drivers with negative errnos, a
//! device that dies) are made up.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts, and is the library that is posted to")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

#[cfg(miri)]
mod caught;
mod channel;
mod device;
#[path = "../device/harness/drops.rs"]
mod drops;
mod endings;
mod events;
#[expect(
    dead_code,
    unused_imports,
    reason = "other crates' tests use the rest of it"
)]
mod library;
mod logger;
mod memory;
mod modify;
mod path;
mod poll;
mod post;
mod receive;
mod refused;
