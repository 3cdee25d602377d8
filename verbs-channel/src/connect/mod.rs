//! Connecting: builders, prepared channels, and the exchange over TCP or datagrams.

pub(crate) mod accept;
mod builder;
mod datagrams;
pub(crate) mod deadline;
#[cfg(feature = "rdmacm")]
pub(crate) mod manager;
#[cfg(feature = "rdmacm")]
mod meeting;
mod member;
#[cfg(feature = "rdmacm")]
mod multicast;
#[cfg(feature = "rdmacm")]
mod pair;
mod prepared;
#[cfg(feature = "rdmacm")]
mod services;
pub(crate) mod tcp;
mod unlocked;

pub use builder::CreateChannel;
pub use datagrams::DatagramListener;
pub(crate) use prepared::sealed;
pub use prepared::{Connected, PreparedChannel};
pub use tcp::refuse;
