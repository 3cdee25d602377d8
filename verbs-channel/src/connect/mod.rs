//! Connecting: over TCP, by `rdma_cm` or over datagrams.
//!
//! [`PreparedChannel::connect`] and [`accept`](PreparedChannel::accept) wait until the peer is there. Here are
//! the values that they take and return, and [`Attempts`] and `CmExchange` for a layer that waits in its own
//! way; so are [`exchange`](crate::exchange) and [`datagram_exchange`](crate::datagram_exchange).

pub(crate) mod accept;
mod attempts;
mod builder;
#[cfg(feature = "rdmacm")]
mod cm;
#[cfg(feature = "rdmacm")]
mod cm_asking;
#[cfg(feature = "rdmacm")]
mod cm_wait;
mod datagrams;
pub(crate) mod deadline;
mod door;
mod member;
#[cfg(feature = "rdmacm")]
mod multicast;
mod options;
mod peer;
mod prepared;
#[cfg(feature = "rdmacm")]
mod services;
pub(crate) mod tcp;
mod unlocked;

#[doc(hidden)]
pub use accept::is_of_one_connection;
pub use attempts::{Attempt, Attempts};
pub use builder::CreateChannel;
#[cfg(feature = "rdmacm")]
pub use cm::{CmExchange, CmStep};
pub use datagrams::DatagramListener;
pub use door::{Accept, Caller};
pub use options::Connect;
pub use peer::{HostAddress, Met, Peer, PeerAddr};
pub(crate) use prepared::sealed;
pub use prepared::{Connected, PreparedChannel};
