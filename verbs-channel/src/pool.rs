//! A pool of registered buffers: fixed blocks, taken and returned without a lock.
#![expect(
    unsafe_code,
    reason = "lets blocks outlive the borrow they were made from"
)]

use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use verbs_core::{MemoryRegion, ProtectionDomain, ScatterElement};

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
    inner: Arc<Inner>,
}

struct Inner {
    // First: these are parts of `region`.
    free: ArrayQueue<ScatterElement<'static>>,
    block_len: usize,
    _region: MemoryRegion<Box<[u8]>>,
}

/// A block of a [`BufferPool`], returned to it when dropped.
pub struct PoolBuffer {
    element: ManuallyDrop<ScatterElement<'static>>,
    pool: Arc<Inner>,
}

impl BufferPool {
    /// Registers a pool of `count` blocks of `block_len` bytes each, zeroed.
    ///
    /// # Errors
    ///
    /// Those of [`ProtectionDomain::reg_mr`]: no bytes, or too many for `ulimit -l`;
    /// [`verbs_core::Error::Limit`] for more than there can be at all, and
    /// [`verbs_core::Error::Verb`] of `malloc` for more memory than there is.
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
            return Err(Error::Core(verbs_core::Error::Verb {
                verb: "malloc",
                source: io::ErrorKind::OutOfMemory.into(),
            }));
        }
        memory.resize(total, 0_u8);
        let mut region = pd.reg_mr(memory.into_boxed_slice())?;
        let free = ArrayQueue::new(count);
        for start in (0..total).step_by(block_len) {
            let block = region.scatter_element(start..start + block_len)?;
            // SAFETY: the bytes are on the heap and registered as long as `Inner` lives, which each
            // block that is out keeps; blocks do not overlap, and the region is not used otherwise.
            let block =
                unsafe { mem::transmute::<ScatterElement<'_>, ScatterElement<'static>>(block) };
            drop(free.push(block));
        }
        let inner = Arc::new(Inner {
            free,
            block_len,
            _region: region,
        });
        Ok(Self { inner })
    }

    /// Takes a free block; `None` if all are out. What was in it before is still there.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        let element = self.inner.free.pop()?;
        Some(PoolBuffer {
            element: ManuallyDrop::new(element),
            pool: Arc::clone(&self.inner),
        })
    }

    /// How many blocks are free at this moment.
    #[must_use]
    pub fn available(&self) -> usize {
        self.inner.free.len()
    }

    /// How many blocks there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.free.capacity()
    }

    /// The length of a block, in bytes.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.inner.block_len
    }
}

impl PoolBuffer {
    /// The block as an element of a request; nobody else has it while this borrow lasts.
    #[inline]
    pub fn element(&mut self) -> ScatterElement<'_> {
        self.element.reborrow()
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.element
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.element
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        // SAFETY: the element is not used again.
        let element = unsafe { ManuallyDrop::take(&mut self.element) };
        // There is room: it was taken from there.
        drop(self.pool.free.push(element));
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
