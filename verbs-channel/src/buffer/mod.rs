//! Buffers that a channel can own.

mod atomic;
mod block;
mod deregistration;
mod element;
mod free_list;
mod notify;
mod owned;
mod pool;
mod shared;
mod shared_part;
mod wait_queue;
mod wake;

pub(crate) use block::Owner;
pub use deregistration::Deregistration;
pub(crate) use deregistration::{Leaked, Registered};
pub(crate) use element::PdTag;
pub(crate) use notify::Returns;
pub use owned::OwnedBuffer;
pub(crate) use owned::within;
pub use pool::{BufferPool, PoolBuffer, TakeWhenFree};
pub use shared::{Shareable, SharedMemory, SharedSlice};
