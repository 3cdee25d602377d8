//! Async RDMA: completion-channel notification, on any runtime.
//!
//! This crate will hold `CqNotifier`, `AsyncCq` and async channels with cancel-safe operations,
//! over [`verbs_channel`]. It has no items of its own yet; it re-exports the layer below.

mod channel;
mod connect;
mod cq;
mod device_events;
mod driver;
mod error;
mod events;
mod group;
mod incoming;
pub mod notifier;
mod operation;
mod ring;
mod stream;
mod sync;
mod wake;

pub use channel::AsyncChannel;
pub use cq::{AsyncCq, CqPollState};
pub use device_events::DeviceEvents;
pub use error::{Error, Result};
pub use events::CqEvents;
pub use group::AsyncGroup;
pub use incoming::{IncomingMessages, Message};
#[doc(inline)]
pub use notifier::CqNotifier;
pub use operation::{Batch, Operation};
pub use stream::{ByteStream, StreamError};
pub use verbs_channel;
