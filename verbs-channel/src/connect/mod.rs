//! Connecting: what is prepared, and how it meets its peer.

mod builder;
mod prepared;
pub(crate) mod tcp;

pub use builder::CreateChannel;
pub(crate) use prepared::sealed;
pub use prepared::{Connected, PreparedChannel};
pub use tcp::refuse;
