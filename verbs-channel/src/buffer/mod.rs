//! Buffers that a channel can own.

mod backing;
mod owned;
mod pool;

pub use owned::OwnedBuffer;
pub use pool::{BufferPool, PoolBuffer};
