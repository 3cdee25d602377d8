//! Datagrams: one endpoint for any number of peers, without connections.

mod builder;
mod endpoint;
mod engine;
mod handles;
mod slots;

pub use builder::DatagramsBuilder;
pub use endpoint::Datagrams;
pub use engine::{Datagram, DatagramEngine};
