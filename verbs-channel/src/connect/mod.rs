//! Connecting: what is prepared, and how it meets its peer.

mod builder;
pub(crate) mod tcp;

pub use builder::{CreateChannel, PreparedChannel};
pub use tcp::refuse;
