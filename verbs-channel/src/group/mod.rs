//! Groups: many channels on one completion queue and one poller.

mod channel_group;
mod closing;

pub use channel_group::{ChannelGroup, ConnectedMember, Preparer};
pub use closing::{Closed, Closing};
