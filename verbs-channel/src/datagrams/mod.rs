//! Datagrams: one endpoint for any number of peers, without connections.

mod builder;
pub(crate) mod close;
mod datagram;
mod endpoint;
pub(crate) mod engine;
mod failure;
mod handles;
#[cfg(feature = "rdmacm")]
pub(crate) mod multicast;
mod paths;
mod receives;
mod restart;
mod slots;

pub use builder::{DatagramsBuilder, DatagramsConfig};
pub use datagram::Datagram;
pub use endpoint::Datagrams;
pub use failure::DatagramFailure;
