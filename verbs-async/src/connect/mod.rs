//! Connecting: exchanges of endpoints and handshakes, over any runtime's TCP or any stream.
//!
//! The protocol is that of [`verbs_channel::exchange`], so either side can be blocking.

#[cfg(feature = "tokio")]
mod adapter;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod alone;
mod exchange;
mod failure;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod listener;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod time;

#[cfg(any(feature = "tokio", feature = "async-io"))]
pub use listener::{Arrival, Listener};
