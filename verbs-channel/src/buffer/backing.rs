//! What is behind an owned buffer: its memory, and the range of it that operations work on.
#![expect(unsafe_code, reason = "keeps an element beside the memory it is of")]

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use verbs_core::{MemoryRegion, ScatterElement};

use crate::error::{Refusal, Result};

/// Memory that is given away as one pointer, and posted without a look at what it is.
///
/// Each is in a box of its own, which has one owner at a time: a buffer, or the pool that it is free
/// in.
pub(crate) struct Backing {
    /// The range as an element; `None` if it is too long to be one.
    element: Option<ScatterElement<'static>>,
    range: Range<usize>,
    memory: Memory,
}

/// What a pool's clones, and its blocks that are out, share.
pub(crate) struct Shared {
    // First: these are parts of `region`.
    pub(super) free: ArrayQueue<Box<Backing>>,
    pub(super) block_len: usize,
    pub(super) _region: MemoryRegion<Box<[u8]>>,
}

enum Memory {
    Block {
        all: ScatterElement<'static>,
        // Only while it is out: a pool would own itself.
        pool: Option<Arc<Shared>>,
    },
    Region(MemoryRegion<Vec<u8>>),
}

impl Backing {
    /// For a block of a pool, which is free.
    ///
    /// # Safety
    ///
    /// - The element is the only way to its bytes as long as this is out of its pool.
    /// - They stay registered as long as the pool that it is taken from.
    pub(crate) unsafe fn of_block(all: ScatterElement<'_>) -> Box<Self> {
        // SAFETY: while it is out it keeps its pool, and while it is free nobody looks at it.
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

    /// Sets the range, which is within the memory.
    pub(crate) fn set_range(&mut self, range: Range<usize>) {
        let element = self.memory.part(range.clone());
        // SAFETY: it is of `memory`, which keeps its bytes where they are, goes where this goes, and
        // is borrowed by nobody while `element` is.
        self.element = unsafe {
            mem::transmute::<Option<ScatterElement<'_>>, Option<ScatterElement<'static>>>(element)
        };
        self.range = range;
    }

    /// Sets the range to all of the memory, if it is not.
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

    /// The range's bytes, to write to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        self.memory.bytes_mut().get_mut(range).unwrap_or_default()
    }

    /// Takes it out of its pool, which it keeps from then on.
    #[inline]
    pub(crate) fn take_out(&mut self, of: &Arc<Shared>) {
        if let Memory::Block { pool, .. } = &mut self.memory {
            *pool = Some(Arc::clone(of));
        }
    }

    /// Sets the range to all of it if it is a block of a pool; whether it is.
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

    /// Gives a block back to its pool; all else ends here.
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
    /// Takes back a block that was taken from here.
    pub(crate) fn give_back(&self, block: Box<Backing>) {
        // There is room: each block was in there.
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

    /// A part of it as an element; `None` if it is too long to be one, or not within.
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
