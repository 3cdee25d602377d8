//! Everything that can be tested without a device, on [`fake_libibverbs`].
//!
//! The tests check what this crate passes to C, and what it makes of C's results. Results that no
//! software device has are made up: InfiniBand ports, drivers with negative errnos, a device that
//! dies.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts to the fake library")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

mod chains;
mod datagrams;
mod device;
mod domains;
mod events;
mod foreign;
#[cfg(not(miri))]
mod forks;
mod memory;
mod modify;
mod moved;
mod path;
mod poll;
mod post;
mod removed;
mod shared_receives;
mod thread_domains;
mod topology;
mod unreliable;
