//! A pool of registered buffers: fixed blocks, taken and returned without a lock.
#![expect(unsafe_code, reason = "cuts a region into blocks")]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use verbs_core::{ProtectionDomain, ScatterElement};

use super::backing::{Backing, Shared, SharedPtr};
use super::owned::OwnedBuffer;
use crate::error::{Error, Result};

/// A pool of registered blocks of one size.
///
/// A block returns to the pool when it is dropped, in any thread. Nothing is allocated, registered or
/// locked after the pool has been created. Cloning is cheap and shares the pool. The memory lives
/// until the last clone and the last taken block are dropped.
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
    clones: Arc<Clones>,
}

/// What the clones of a pool share: the last one closes it.
struct Clones(SharedPtr);

impl Drop for Clones {
    fn drop(&mut self) {
        // SAFETY: the last clone is dropped once.
        unsafe { self.0.close() };
    }
}

/// A block of a [`BufferPool`], returned to it when dropped.
///
/// It converts into an [`OwnedBuffer`]. Both are pointers, so moving them is cheap.
pub struct PoolBuffer {
    // Always a block, with its full range.
    buffer: OwnedBuffer,
}

impl BufferPool {
    /// Registers a pool of `count` blocks of `block_len` bytes each, zeroed.
    ///
    /// # Errors
    ///
    /// - [`verbs_core::Error::Limit`]: the total length exceeds the address space.
    /// - [`verbs_core::Error::Registration`]: there is not enough memory.
    /// - Those of [`ProtectionDomain::reg_mr`]: the pool has no bytes, or more than `ulimit -l` allows.
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
        let mut blocks = Vec::with_capacity(count);
        for (index, start) in (0..total).step_by(block_len).enumerate() {
            let block = region.scatter_element(start..start + block_len)?;
            // SAFETY: blocks do not overlap, and the region, which has no other user, is dropped with
            // the pool. They are given to it below.
            blocks.push(unsafe { Backing::of_block(block, index) });
        }
        let clones = Clones(SharedPtr::new(region, block_len, blocks));
        Ok(Self {
            clones: Arc::new(clones),
        })
    }

    #[inline(always)]
    fn shared(&self) -> &Shared {
        // SAFETY: this is a clone of the pool.
        unsafe { self.clones.0.get() }
    }

    /// Takes a free block; `None` if there is none. Its previous contents are not cleared.
    #[inline(always)]
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        // SAFETY: this is a clone of the pool.
        let block = unsafe { self.clones.0.take() }?;
        Some(PoolBuffer::new(OwnedBuffer::new(block)))
    }

    /// How many blocks are free. It counts them, while other threads may take some.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared().free.len()
    }

    /// How many blocks the pool has, free or taken.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared().free.capacity()
    }

    /// The length of a block, in bytes.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.shared().block_len
    }
}

impl PoolBuffer {
    /// From a buffer that is a block with its full range.
    #[inline]
    pub(crate) const fn new(buffer: OwnedBuffer) -> Self {
        Self { buffer }
    }

    #[inline]
    pub(crate) fn into_owned(self) -> OwnedBuffer {
        self.buffer
    }

    /// A part of the block, to be sent or received into: as [`OwnedBuffer::set_range`].
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the block, which is dropped.
    pub fn into_range(self, range: impl RangeBounds<usize>) -> Result<OwnedBuffer> {
        let mut buffer = self.into_owned();
        buffer.set_range(range)?;
        Ok(buffer)
    }

    /// The block as an element of a request.
    #[inline]
    pub fn element(&mut self) -> ScatterElement<'_> {
        // A block is made from an element, so it is not too long.
        let element = self.buffer.element();
        element.unwrap_or_else(|_too_long| ScatterElement::empty())
    }
}

impl OwnedBuffer {
    /// The block of a pool, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is not a block of a pool.
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
