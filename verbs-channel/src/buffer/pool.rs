//! A pool of registered buffers: fixed blocks, taken and returned without a lock.
#![expect(unsafe_code, reason = "cuts a region into blocks")]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use verbs_core::{ProtectionDomain, ScatterElement};

use super::backing::{Backing, Shared};
use super::owned::OwnedBuffer;
use crate::error::{Error, Result};

/// A pool of registered blocks of one size.
///
/// Blocks come back when they are dropped, from any thread. Nothing is allocated, registered or
/// locked after the pool has been made. Cloning is cheap and shares the pool; its memory lives as
/// long as the last clone, or the last block that is out.
///
/// ```no_run
/// # fn main() -> verbs_channel::Result<()> {
/// # use verbs_channel::{BufferPool, verbs_core::Context};
/// # let pd = Context::first_active()?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 4096, 64)?;
/// let mut block = pool.take().expect("64 blocks are free");
/// block[..5].copy_from_slice(b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

/// A block of a [`BufferPool`], returned to it when dropped.
///
/// It is a pointer, as the [`OwnedBuffer`] that it can become is: to move it costs nothing.
pub struct PoolBuffer {
    // A block, and all of it.
    buffer: OwnedBuffer,
}

impl BufferPool {
    /// Registers a pool of `count` blocks of `block_len` bytes each, zeroed.
    ///
    /// # Errors
    ///
    /// Those of [`ProtectionDomain::reg_mr`]: no bytes, or too many for `ulimit -l`;
    /// [`verbs_core::Error::Limit`] for more than there can be at all, and
    /// [`verbs_core::Error::Registration`] for more memory than there is.
    pub fn new(pd: &ProtectionDomain, block_len: usize, count: usize) -> Result<Self> {
        let total = block_len.saturating_mul(count);
        if isize::try_from(total).is_err() {
            return Err(Error::Core(verbs_core::Error::Limit {
                what: "block_len * count",
                asked: total as u64,
                max: Some(isize::MAX.unsigned_abs() as u64),
            }));
        }
        let mut memory = Vec::new();
        if memory.try_reserve_exact(total).is_err() {
            return Err(Error::Core(verbs_core::Error::Registration {
                len: total as u64,
                source: io::ErrorKind::OutOfMemory.into(),
            }));
        }
        memory.resize(total, 0_u8);
        let mut region = pd.reg_mr(memory.into_boxed_slice())?;
        let free = ArrayQueue::new(count);
        for start in (0..total).step_by(block_len) {
            let block = region.scatter_element(start..start + block_len)?;
            // SAFETY: blocks do not overlap, and the region, which is used by nobody else, goes
            // last of what they share.
            let block = unsafe { Backing::of_block(block) };
            drop(free.push(block));
        }
        let shared = Arc::new(Shared {
            free,
            block_len,
            _region: region,
        });
        Ok(Self { shared })
    }

    /// Takes a free block; `None` if all are out. What was in it before is still there.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        let mut block = self.shared.free.pop()?;
        block.take_out(&self.shared);
        Some(PoolBuffer::new(OwnedBuffer::new(block)))
    }

    /// How many blocks are free at this moment.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.free.len()
    }

    /// How many blocks there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.free.capacity()
    }

    /// The length of a block, in bytes.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.shared.block_len
    }
}

impl PoolBuffer {
    /// A buffer that is a block, and all of it.
    #[inline]
    pub(crate) const fn new(buffer: OwnedBuffer) -> Self {
        Self { buffer }
    }

    #[inline]
    pub(crate) fn into_owned(self) -> OwnedBuffer {
        self.buffer
    }

    /// The block as an element of a request; nothing else can use it during this borrow.
    #[inline]
    pub fn element(&mut self) -> ScatterElement<'_> {
        // A block is made from an element, so it is not too long.
        let element = self.buffer.element();
        element.unwrap_or_else(|_too_long| ScatterElement::empty())
    }
}

impl OwnedBuffer {
    /// The block, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is something else.
    pub fn into_block(mut self) -> Result<PoolBuffer, Self> {
        if self.make_whole_block() {
            return Ok(PoolBuffer::new(self));
        }
        Err(self)
    }
}

impl From<PoolBuffer> for OwnedBuffer {
    #[inline]
    fn from(block: PoolBuffer) -> Self {
        block.into_owned()
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("block_len", &self.block_len())
            .field("available", &self.available())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} bytes)", self.len())
    }
}
