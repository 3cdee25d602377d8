//! Buffers that can be given away.

mod backing;
mod owned;
mod pool;

pub use owned::OwnedBuffer;
pub use pool::{BufferPool, PoolBuffer};
