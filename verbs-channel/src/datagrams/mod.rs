//! Datagrams: one endpoint for any number of peers, without connections.

mod builder;
mod close;
mod datagram;
mod endpoint;
mod engine;
mod failure;
#[cfg(feature = "rdmacm")]
mod groups;
mod handles;
#[cfg(feature = "rdmacm")]
mod multicast;
mod paths;
mod receives;
mod restart;
mod slots;

pub use builder::{DatagramsBuilder, DatagramsConfig};
pub use close::DatagramEnding;
pub use datagram::Datagram;
pub use endpoint::Datagrams;
pub use engine::DatagramEngine;
pub use failure::DatagramFailure;
#[cfg(feature = "rdmacm")]
pub use multicast::Memberships;
