//! A pool of registered buffers: fixed blocks, taken and returned without a lock unless tasks wait.
#![expect(unsafe_code, reason = "cuts a region into blocks")]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbs_core::memory::{Buffer, HugePages};
use verbs_core::{GatherElement, MemoryRegion, ProtectionDomain, ScatterElement};

use super::block::{Backing, SharedPool};
use super::element::PdTag;
use super::free_list::Free;
use super::owned::{OwnedBuffer, within};
use crate::error::{Error, Result};

/// A pool of registered blocks of one size.
///
/// A block returns to the pool when it is dropped, on any thread. Taking or returning a block does not allocate,
/// register or lock anything, unless a task [waits](Self::take_when_free) for a block. Cloning is cheap and shares
/// the pool. The memory lives until the last clone and the last taken block are dropped.
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
    shared: Arc<SharedPool>,
}

/// A block of a [`BufferPool`], returned to it when dropped.
///
/// It converts into an [`OwnedBuffer`]. Both are pointers, so moving them is cheap.
pub struct PoolBuffer {
    // Always a block, with its full range.
    buffer: OwnedBuffer,
}

/// Waits for a free block, and takes it: from [`BufferPool::take_when_free`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct TakeWhenFree<'a> {
    pool: &'a BufferPool,
    // Its number among the tasks that wait, while it does.
    place: Option<u64>,
}

/// Contents of a new pool.
static ZEROS: [u8; 4096] = [0; 4096];

impl BufferPool {
    /// Registers a pool of `count` blocks of `block_len` bytes each, zeroed.
    ///
    /// # Errors
    ///
    /// - [`verbs_core::Error::OutOfRange`]: the total length exceeds the address space.
    /// - [`verbs_core::Error::Registration`]: there is not enough memory.
    /// - Those of [`ProtectionDomain::reg_mr`]: the pool has no bytes, or more than `ulimit -l` allows.
    pub fn new(pd: &ProtectionDomain, block_len: usize, count: usize) -> Result<Self> {
        let total = total(block_len, count)?;
        let mut memory = Vec::new();
        if memory.try_reserve_exact(total).is_err() {
            return Err(Error::Core(verbs_core::Error::Registration {
                len: total as u64,
                source: io::ErrorKind::OutOfMemory.into(),
            }));
        }
        // In pieces: `resize` writes byte by byte in a build without optimization.
        while memory.len() < total {
            let piece = ZEROS.len().min(total - memory.len());
            memory.extend_from_slice(&ZEROS[..piece]);
        }
        let region = pd.reg_mr(memory.into_boxed_slice())?;
        Self::of_blocks(region, block_len, count)
    }

    /// Takes a free block; `None` if there is none. Its previous contents are not cleared.
    #[inline(always)]
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        Some(self.taken(self.shared.free.pop()?))
    }

    /// Takes a free block, and copies these bytes to its start; `None` if no block is free.
    ///
    /// Operations use only these bytes: they are the [range](OwnedBuffer::set_range) of the buffer. The
    /// buffer keeps that range when an operation returns it. Before a receive, make it whole again:
    /// [`into_block`](OwnedBuffer::into_block).
    ///
    /// ```no_run
    /// # use verbs_channel::{BufferPool, Channel};
    /// # fn example(pool: &BufferPool, channel: &mut Channel) -> verbs_channel::Result<()> {
    /// if let Some(hello) = pool.take_with(b"hello")? {
    ///     let ticket = channel.start_send(hello)?; // sends 5 bytes
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::BlockTooShort`]: there are more bytes than a block has. None is taken.
    pub fn take_with(&self, bytes: &[u8]) -> Result<Option<OwnedBuffer>> {
        if bytes.len() > self.block_len() {
            return Err(too_short(bytes, self.block_len()));
        }
        self.take().map(|block| block.filled(bytes)).transpose()
    }

    /// Takes a block as soon as one is free: a future for any runtime.
    ///
    /// Waiting tasks get blocks in the order in which they began to wait. While tasks wait,
    /// [`take`](Self::take) returns `None`. The thread that drops a block wakes the task without holding
    /// a lock. Nothing is allocated if a block is free.
    ///
    /// It waits forever if no block is returned to the pool. Dropping the future ends the wait. A woken
    /// future holds its block until it is polled, or until it is dropped, which passes the block on to
    /// the next task: do not leak the future. A future that is polled again after it was ready takes
    /// another block.
    ///
    /// If a block is free, it is ready at once: it never yields to other tasks. A loop that awaits nothing
    /// else keeps its executor from running them.
    ///
    /// ```no_run
    /// # use verbs_channel::{BufferPool, OwnedBuffer};
    /// # async fn example(pool: &BufferPool) -> verbs_channel::Result<OwnedBuffer> {
    /// let block = pool.take_when_free().await;
    /// let hello = block.filled(b"hello")?;
    /// # Ok(hello)
    /// # }
    /// ```
    pub const fn take_when_free(&self) -> TakeWhenFree<'_> {
        TakeWhenFree {
            pool: self,
            place: None,
        }
    }

    /// Registers a pool of `count` blocks of `block_len` bytes each, zeroed, in huge pages: see
    /// [`HugePages`].
    ///
    /// ```no_run
    /// # fn main() -> verbs_channel::Result<()> {
    /// # use verbs_channel::{BufferPool, verbs_core::Context};
    /// # let pd = Context::first_active()?.alloc_pd()?;
    /// // Needs 128 free huge pages of 2 MiB.
    /// let pool = BufferPool::in_huge_pages(&pd, 1 << 20, 256)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new). [`verbs_core::Error::HugePages`]: there are not enough free huge pages.
    /// The pool does not fall back to pages of the usual size.
    #[doc(alias = "MAP_HUGETLB")]
    pub fn in_huge_pages(pd: &ProtectionDomain, block_len: usize, count: usize) -> Result<Self> {
        let total = total(block_len, count)?;
        let memory = HugePages::new(total).map_err(Error::Core)?;
        let region = pd.reg_mr(memory)?;
        Self::of_blocks(region, block_len, count)
    }

    /// A pool whose blocks are parts of a region, of `block_len` bytes each.
    ///
    /// It is for memory that the other constructors do not make. The blocks keep the contents of the
    /// region. Bytes after the last whole block are not used.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfRange`]: `block_len` is 0, or the region is shorter than a
    /// block.
    pub fn from_region<B>(region: MemoryRegion<B>, block_len: usize) -> Result<Self>
    where
        B: Buffer<Item = u8> + Send + Sync + 'static,
    {
        let count = region.len().checked_div(block_len).unwrap_or(0);
        if count == 0 {
            return Err(Error::Core(verbs_core::Error::OutOfRange {
                what: "block_len",
                value: block_len as u64,
                min: 1,
                max: region.len() as u64,
            }));
        }
        Self::of_blocks(region, block_len, count)
    }

    /// The region has at least that many blocks of that length, and one at least.
    fn of_blocks<B>(mut region: MemoryRegion<B>, block_len: usize, count: usize) -> Result<Self>
    where
        B: Buffer<Item = u8> + Send + Sync + 'static,
    {
        let pd = PdTag::of(region.pd());
        let mut blocks = Vec::with_capacity(count);
        for start in (0..count).map(|index| index * block_len) {
            let block = region.scatter_element(start..start + block_len)?;
            // SAFETY: blocks do not overlap, and the region, which has no other user, is dropped with
            // the pool. They are given to it below.
            blocks.push(unsafe { Backing::of_block(block, pd) });
        }
        let pd = region.pd().clone();
        let shared = SharedPool::new((Box::new(region), pd), block_len, blocks);
        Ok(Self { shared })
    }

    #[inline(always)]
    fn taken(&self, block: Free<Backing>) -> PoolBuffer {
        let buffer = OwnedBuffer::new(self.shared.owner(block));
        PoolBuffer { buffer }
    }

    /// Whether this is a block of the pool.
    pub(crate) fn has(&self, block: &OwnedBuffer) -> bool {
        let pool = block.backing.as_deref().and_then(Backing::pool);
        pool.is_some_and(|pool| Arc::ptr_eq(pool, &self.shared))
    }

    /// How many blocks are free.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.free.len()
    }

    /// How many blocks the pool has, free or taken.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.free.capacity()
    }

    /// The protection domain in which its blocks are registered.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// The length of a block, in bytes.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.shared.block_len
    }
}

/// The length of that many blocks.
fn total(block_len: usize, count: usize) -> Result<usize> {
    let total = block_len.saturating_mul(count);
    if isize::try_from(total).is_err() {
        return Err(Error::Core(verbs_core::Error::OutOfRange {
            what: "block_len * count",
            value: total as u64,
            min: 1,
            max: isize::MAX.unsigned_abs() as u64,
        }));
    }
    Ok(total)
}

impl PoolBuffer {
    /// Converts into a buffer of which operations use only this part of the block: see
    /// [`OwnedBuffer::set_range`].
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the end of the block. The block is
    /// dropped.
    pub fn into_range(self, range: impl RangeBounds<usize>) -> Result<OwnedBuffer> {
        let mut buffer = self.buffer;
        buffer.set_range(range)?;
        Ok(buffer)
    }

    /// Copies these bytes to the start of the block.
    ///
    /// Operations use only these bytes: they are the [range](OwnedBuffer::set_range) of the buffer. The
    /// buffer keeps that range when an operation returns it. Before a receive, make it whole again:
    /// [`into_block`](OwnedBuffer::into_block).
    ///
    /// # Errors
    ///
    /// [`Error::BlockTooShort`]: there are more bytes than the block has. The block is dropped.
    pub fn filled(self, bytes: &[u8]) -> Result<OwnedBuffer> {
        let block_len = self.len();
        let Ok(mut buffer) = self.into_range(..bytes.len()) else {
            return Err(too_short(bytes, block_len));
        };
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// A part of the block to send from, as [`MemoryRegion::gather_element`].
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the block.
    ///
    /// [`MemoryRegion::gather_element`]: verbs_core::MemoryRegion::gather_element
    #[inline]
    pub fn gather_element(&self, range: impl RangeBounds<usize>) -> Result<GatherElement<'_>> {
        let range = within(range, self.len())?;
        let block = self.buffer.backing.as_deref().map(Backing::block);
        let block = block.unwrap_or_else(|| ScatterElement::empty().into_gather());
        let (_, rest) = block.split_at(range.start)?;
        Ok(rest.split_at(range.len())?.0)
    }

    /// A part of the block to receive or read into, as [`MemoryRegion::scatter_element`].
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the block.
    ///
    /// [`MemoryRegion::scatter_element`]: verbs_core::MemoryRegion::scatter_element
    #[inline]
    pub fn scatter_element(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<ScatterElement<'_>> {
        let range = within(range, self.len())?;
        let block = self.buffer.backing.as_deref_mut().map(Backing::block_mut);
        let block = block.unwrap_or_else(ScatterElement::empty);
        let (_, rest) = block.split_at_mut(range.start)?;
        Ok(rest.split_at_mut(range.len())?.0)
    }
}

#[cold]
const fn too_short(bytes: &[u8], block_len: usize) -> Error {
    let len = bytes.len();
    Error::BlockTooShort { len, block_len }
}

impl Future for TakeWhenFree<'_> {
    type Output = PoolBuffer;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PoolBuffer> {
        let this = &mut *self;
        let taken = this.pool.shared.free.poll_pop(&mut this.place, context);
        taken.map(|block| this.pool.taken(block))
    }
}

impl Drop for TakeWhenFree<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.pool.shared.free.stop_waiting(place);
        }
    }
}

impl OwnedBuffer {
    /// Converts into the block of a pool, if it is one. Its range is all of the block again.
    ///
    /// # Errors
    ///
    /// The buffer, if it is not a block of a pool.
    pub fn into_block(mut self) -> Result<PoolBuffer, Self> {
        let backing = self.backing.as_deref_mut();
        if backing.is_some_and(Backing::make_whole_block) {
            return Ok(PoolBuffer { buffer: self });
        }
        Err(self)
    }
}

impl From<PoolBuffer> for OwnedBuffer {
    #[inline]
    fn from(block: PoolBuffer) -> Self {
        block.buffer
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
