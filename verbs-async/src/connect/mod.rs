//! Connecting: exchanges of endpoints and handshakes, over any runtime's TCP, any stream, or datagrams.
//!
//! The protocol is that of [`verbs_channel::exchange`], so either side can be blocking.

#[cfg(feature = "tokio")]
mod adapter;
#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
mod alone;
mod awaited;
#[cfg(feature = "rdmacm")]
mod cm_datagrams;
#[cfg(feature = "rdmacm")]
mod cm_listener;
#[cfg(feature = "rdmacm")]
mod cm_multicast;
#[cfg(feature = "rdmacm")]
mod cm_requests;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod datagram_listener;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod datagrams;
mod exchange;
mod failure;
#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
mod listener;
#[cfg(feature = "rdmacm")]
mod manager;
#[cfg(feature = "rdmacm")]
mod meeting;
#[cfg(feature = "rdmacm")]
mod message;
#[cfg(any(feature = "async-io", feature = "rdmacm"))]
mod resolve;
#[cfg(feature = "rdmacm")]
mod steps;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
mod time;

#[cfg(feature = "rdmacm")]
pub use cm_datagrams::{CmDatagramListener, CmDatagramRequest};
#[cfg(feature = "rdmacm")]
pub use cm_listener::{CmListener, CmRequest};
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub use datagram_listener::{AsyncDatagramListener, DatagramArrival};
#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
pub use listener::{Arrival, Listener};
