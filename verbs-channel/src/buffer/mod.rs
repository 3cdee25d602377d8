//! Buffers that a channel can own.

mod atomic;
mod backing;
mod free_list;
mod owned;
mod pool;
mod shared;
mod shared_part;
mod waiting;
mod wake;

pub(crate) use backing::PdTag;
pub use owned::OwnedBuffer;
pub use pool::{BufferPool, PoolBuffer, TakeWhenFree};
pub use shared::{Shareable, SharedMemory, SharedSlice};
