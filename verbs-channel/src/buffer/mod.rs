//! Buffers that a channel can own.

mod atomic;
mod backing;
mod free_list;
mod owned;
mod pd_tag;
mod pool;
mod returns;
mod shared;
mod shared_part;
mod waiting;
mod wake;

pub use owned::OwnedBuffer;
pub(crate) use owned::{bounds, within};
pub(crate) use pd_tag::PdTag;
pub use pool::{BufferPool, PoolBuffer, TakeWhenFree};
pub(crate) use returns::{Returns, Watch};
pub use shared::{Shareable, SharedMemory, SharedSlice};
