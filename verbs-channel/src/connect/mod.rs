//! Connecting: builders, prepared channels, and the exchange over TCP.

mod builder;
mod prepared;
pub(crate) mod tcp;
mod unlocked;

pub use builder::CreateChannel;
pub(crate) use prepared::sealed;
pub use prepared::{Connected, PreparedChannel};
pub use tcp::refuse;
