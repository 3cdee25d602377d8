//! Everything that can be proven without a device, on [`fake_libibverbs`]. What this crate tells C, and what it makes of C's answers, is seen from both
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
mod endings;
mod events;
mod logger;
mod memory;
mod modify;
mod path;
mod poll;
mod post;
mod receive;
mod refused;
