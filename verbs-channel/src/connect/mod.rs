//! Connecting: over TCP, by `rdma_cm` or over datagrams.
//!
//! [`PreparedChannel::connect`] and [`accept`](PreparedChannel::accept) wait until the peer is there. Here are
//! the values that they take and return. The protocol over TCP without its I/O is [`exchange`](crate::exchange).

pub(crate) mod accept;
pub(crate) mod attempts;
mod builder;
#[cfg(feature = "rdmacm")]
pub(crate) mod cm;
#[cfg(feature = "rdmacm")]
mod cm_blocking;
#[cfg(feature = "rdmacm")]
mod cm_request;
mod datagrams;
pub(crate) mod deadline;
mod establish;
#[cfg(feature = "rdmacm")]
mod find_service;
mod member;
#[cfg(feature = "rdmacm")]
mod multicast;
mod options;
pub(crate) mod peer;
mod prepared;
pub(crate) mod tcp;
mod thread_domain;

pub use builder::CreateChannel;
pub use datagrams::DatagramListener;
pub use establish::{Accept, Caller};
pub use options::Connect;
pub use peer::{Met, Peer, PeerAddr};
pub(crate) use prepared::sealed;
pub use prepared::{Connected, PreparedChannel};
