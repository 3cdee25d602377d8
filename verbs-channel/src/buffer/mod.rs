//! Buffers that a channel can own.

mod atomic;
mod block;
mod free_list;
mod notify;
mod owned;
mod pd_tag;
mod pool;
mod shared;
mod shared_part;
mod wait_queue;
mod wake;

pub(crate) use notify::{Returns, Watch};
pub use owned::OwnedBuffer;
pub(crate) use owned::{bounds, within};
pub(crate) use pd_tag::PdTag;
pub use pool::{BufferPool, PoolBuffer, TakeWhenFree};
pub use shared::{Shareable, SharedMemory, SharedSlice};
