//! The memory of an owned buffer, and the range of it that operations use.
#![expect(unsafe_code, reason = "keeps an element beside its memory")]

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use verbs_core::{MemoryRegion, ScatterElement};

use crate::error::{Refusal, Result};

/// The memory of an owned buffer: moved as one pointer, and posted without regard to its kind.
///
/// Each is in a box of its own, which has one owner at a time: a buffer, or the pool in which it is
/// free.
pub(crate) struct Backing {
    /// The range as an element; `None` if it is too long to be one.
    element: Option<ScatterElement<'static>>,
    range: Range<usize>,
    memory: Memory,
}

/// The memory of a pool, shared by its clones and its taken blocks.
pub(crate) struct Shared {
    // First, so that it is dropped before the region: the blocks are parts of it.
    pub(super) free: ArrayQueue<Box<Backing>>,
    pub(super) block_len: usize,
    pub(super) _region: MemoryRegion<Box<[u8]>>,
}

enum Memory {
    Block {
        all: ScatterElement<'static>,
        // Only while the block is taken: otherwise the pool would own itself.
        pool: Option<Arc<Shared>>,
    },
    Region(MemoryRegion<Vec<u8>>),
}

impl Backing {
    /// A free block of a pool.
    ///
    /// # Safety
    ///
    /// - While the block is taken, its bytes are accessed through the element only.
    /// - The bytes stay registered until the pool from which the block is taken is dropped.
    pub(crate) unsafe fn of_block(all: ScatterElement<'_>) -> Box<Self> {
        // SAFETY: a taken block keeps its pool alive, and a free one is not accessed.
        let all = unsafe { mem::transmute::<ScatterElement<'_>, ScatterElement<'static>>(all) };
        Self::new(Memory::Block { all, pool: None })
    }

    pub(crate) fn of_region(region: MemoryRegion<Vec<u8>>) -> Box<Self> {
        Self::new(Memory::Region(region))
    }

    fn new(memory: Memory) -> Box<Self> {
        let mut this = Box::new(Self {
            element: None,
            range: 0..0,
            memory,
        });
        this.set_range(0..this.capacity());
        this
    }

    /// The range as an element.
    #[inline(always)]
    pub(crate) fn element(&mut self) -> Result<ScatterElement<'_>, Refusal> {
        match &mut self.element {
            Some(element) => Ok(element.reborrow()),
            None => Err(too_long(&self.range)),
        }
    }

    pub(crate) const fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Sets the range, which must be within the memory.
    pub(crate) fn set_range(&mut self, range: Range<usize>) {
        let element = self.memory.part(range.clone());
        // SAFETY: the element is a part of `memory`, which lives as long as `self`, does not move its
        // bytes, and is not borrowed while `element` is.
        self.element = unsafe {
            mem::transmute::<Option<ScatterElement<'_>>, Option<ScatterElement<'static>>>(element)
        };
        self.range = range;
    }

    /// Sets the range to all of the memory, unless it is that already.
    #[inline]
    fn set_all(&mut self) {
        let all = self.capacity();
        if self.range.len() != all {
            self.set_range(0..all);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.memory.bytes().len()
    }

    /// The range's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let range = self.range.clone();
        self.memory.bytes().get(range).unwrap_or_default()
    }

    /// The range's bytes, mutably.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        self.memory.bytes_mut().get_mut(range).unwrap_or_default()
    }

    /// Takes the block out of its pool, and keeps the pool alive from then on.
    #[inline]
    pub(crate) fn take_out(&mut self, of: &Arc<Shared>) {
        if let Memory::Block { pool, .. } = &mut self.memory {
            *pool = Some(Arc::clone(of));
        }
    }

    /// Whether it is a block of a pool. If it is, its range is set to all of it.
    pub(crate) fn make_whole_block(&mut self) -> bool {
        let is_block = matches!(self.memory, Memory::Block { .. });
        if is_block {
            self.set_all();
        }
        is_block
    }

    pub(crate) fn into_region(self: Box<Self>) -> Result<MemoryRegion<Vec<u8>>, Box<Self>> {
        match *self {
            Self {
                memory: Memory::Region(region),
                ..
            } => Ok(region),
            _ => Err(self),
        }
    }

    /// Returns a block to its pool; drops any other memory.
    #[inline(never)]
    pub(crate) fn release(mut self: Box<Self>) {
        if let Memory::Block { pool, .. } = &mut self.memory
            && let Some(pool) = pool.take()
        {
            self.set_all();
            pool.give_back(self);
        }
    }
}

impl Shared {
    /// Takes back a block of this pool.
    pub(crate) fn give_back(&self, block: Box<Backing>) {
        // There is room: the queue has a place for each block.
        drop(self.free.push(block));
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Block { all, .. } => all,
            Self::Region(region) => region,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Block { all, .. } => all,
            Self::Region(region) => region,
        }
    }

    /// A part of it as an element; `None` if the part is too long for one, or out of bounds.
    fn part(&mut self, range: Range<usize>) -> Option<ScatterElement<'_>> {
        match self {
            Self::Block { all, .. } => {
                let (_, from_start) = all.reborrow().split_at_mut(range.start).ok()?;
                let (part, _) = from_start.split_at_mut(range.len()).ok()?;
                Some(part)
            }
            Self::Region(region) => region.scatter_element(range).ok(),
        }
    }
}

#[cold]
#[inline(never)]
fn too_long(range: &Range<usize>) -> Refusal {
    let len = range.len() as u64;
    Refusal::ElementTooLong { len }
}
