//! Buffers that a channel can own.

mod atomic;
mod backing;
mod free_list;
mod owned;
mod pool;
mod waiting;
mod wake;

pub use owned::OwnedBuffer;
pub use pool::{BufferPool, PoolBuffer, TakeWhenFree};
