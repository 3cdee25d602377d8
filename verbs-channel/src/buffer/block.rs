//! The memory of an owned buffer, and the range of it that operations use.
#![expect(unsafe_code, reason = "keeps an element beside its memory")]

use std::any::Any;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_core::memory::Sge;
use verbs_core::{GatherElement, MemoryRegion, ProtectionDomain, ScatterElement};

use super::deregistration::Leaked;
use super::element::PdTag;
use super::free_list::{Free, FreeList};
// tidy: allow(circle): a part is in a backing, and free backings are kept with the memory
use super::shared_part::{Shared, SharedPart};
use crate::error::{RejectReason, Result};
use crate::panics::discard;

/// The memory of an owned buffer: moved as one pointer, and posted without regard to its kind.
///
/// Each is in memory of its own, which has one owner at a time: an [`Owner`], or the pool in which it
/// is free.
pub(crate) struct Backing {
    /// The range as an element.
    element: Sge,
    /// Where the element can be posted: nowhere if the range is too long to be one.
    pd: PdTag,
    range: Range<usize>,
    memory: Memory,
}

/// Owns a [`Backing`]: a block that was taken from its pool, or any other memory.
///
/// It is no `Box`: what is in an argument of that type must be accessed by nothing else until the
/// function returns, and a block that is dropped in it may have its next owner before that.
pub(crate) struct Owner(NonNull<Backing>);

// SAFETY: an `Owner` owns a `Backing`, which is `Send`.
unsafe impl Send for Owner {}
// SAFETY: by reference it gives access to a `&Backing`, which is `Sync`.
unsafe impl Sync for Owner {}

/// The memory of a pool, which each clone and each taken block keeps.
pub(crate) struct SharedPool {
    pub(super) free: FreeList<Backing>,
    pub(super) block_len: usize,
    // The region, whatever its buffer is: for its drop.
    pub(super) _region: Box<dyn Any + Send + Sync>,
    /// The domain the region is registered in.
    pub(super) pd: ProtectionDomain,
}

enum Memory {
    Block {
        all: ScatterElement<'static>,
        /// `None` while it is free.
        pool: Option<Arc<SharedPool>>,
        pd: PdTag,
    },
    Region(MemoryRegion<Vec<u8>>),
    Shared(SharedPart),
    /// A part of a buffer that several requests share, whose bytes are not borrowed meanwhile.
    Part(Arc<Owner>, Range<usize>),
}

impl Backing {
    /// A free block.
    ///
    /// # Safety
    ///
    /// - It is given to [`SharedPool::new`] before anything else is done with it.
    /// - While the block is taken, its bytes are accessed through the element only.
    /// - The bytes stay registered until the pool is dropped.
    pub(crate) unsafe fn of_block(all: ScatterElement<'_>, pd: PdTag) -> Self {
        // SAFETY: a taken block keeps its pool alive, and a free one is not accessed.
        let all = unsafe { mem::transmute::<ScatterElement<'_>, ScatterElement<'static>>(all) };
        let pool = None;
        Self::new(Memory::Block { all, pool, pd })
    }

    pub(crate) fn of_shared(part: SharedPart) -> Self {
        Self::new(Memory::Shared(part))
    }

    /// A part of a buffer, within its bounds.
    pub(crate) fn of_part(whole: Arc<Owner>, range: Range<usize>) -> Owner {
        Owner::of_box(Box::new(Self::new(Memory::Part(whole, range))))
    }

    pub(crate) fn of_region(region: MemoryRegion<Vec<u8>>) -> Owner {
        Owner::of_box(Box::new(Self::new(Memory::Region(region))))
    }

    fn new(memory: Memory) -> Self {
        let mut this = Self {
            element: Sge::new(1, 0, 0),
            pd: PdTag::NONE,
            range: 0..0,
            memory,
        };
        this.set_range(0..this.capacity());
        this
    }

    /// The range as an element, to be posted to a queue pair of this protection domain, if it is not shared memory,
    /// whose tag has a mark.
    #[inline(always)]
    pub(crate) fn element_in(&self, pd: PdTag) -> Option<&Sge> {
        (self.pd == pd).then_some(&self.element)
    }

    /// The range as an element, inline or not, and the protection domain that it can be posted in.
    #[inline(always)]
    pub(crate) fn element_and_domain(&self, is_inline: bool) -> Result<(Sge, PdTag), RejectReason> {
        let pd = self.pd.not_shared();
        if self.pd != pd || pd == PdTag::NONE {
            return Ok((self.element(pd, is_inline)?, pd));
        }
        Ok((self.element, pd))
    }

    /// The range as an element, to be posted to a queue pair of this protection domain; inline or not.
    #[cold]
    #[inline(never)]
    pub(crate) fn element(&self, pd: PdTag, is_inline: bool) -> Result<Sge, RejectReason> {
        let len = self.range.len() as u64;
        // Memory without any registration has no domain either.
        if self.pd == PdTag::NONE && len > u64::from(u32::MAX) {
            return Err(RejectReason::ElementTooLong { len });
        }
        let element = match self.pd == pd.shared() {
            true => Some(self.element),
            false => self.memory.part_in(pd, self.range.clone()),
        };
        match element {
            None => Err(RejectReason::OtherDomain),
            Some(_) if is_inline => Err(RejectReason::SharedInline),
            Some(element) => Ok(element),
        }
    }

    /// All of a block, to send from; empty if it is no block.
    pub(crate) fn block(&self) -> GatherElement<'_> {
        match &self.memory {
            Memory::Block { all, .. } => all.as_gather(),
            _ => ScatterElement::empty().into_gather(),
        }
    }

    /// All of a block, to receive into; empty if it is no block.
    pub(crate) fn block_mut(&mut self) -> ScatterElement<'_> {
        match &mut self.memory {
            Memory::Block { all, .. } => all.reborrow(),
            _ => ScatterElement::empty(),
        }
    }

    pub(crate) const fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Sets the range, which must be within the memory.
    pub(crate) fn set_range(&mut self, range: Range<usize>) {
        match self.memory.part(range.clone()) {
            Some((sge, pd)) => (self.element, self.pd) = (sge, pd),
            None => self.pd = PdTag::NONE,
        }
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
        match &self.memory {
            Memory::Shared(part) => part.len(),
            Memory::Part(_, range) => range.len(),
            memory => memory.bytes().len(),
        }
    }

    /// The range's bytes; none of shared memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        (self.memory.bytes().get(self.range.clone())).unwrap_or_default()
    }

    /// The range's bytes, mutably.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        (self.memory.bytes_mut().get_mut(self.range.clone())).unwrap_or_default()
    }

    /// The pool that it is a block of, if it is one.
    pub(crate) const fn pool(&self) -> Option<&Arc<SharedPool>> {
        match &self.memory {
            Memory::Block { pool, .. } => pool.as_ref(),
            _ => None,
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

    /// The part of shared memory, if it is one.
    pub(crate) const fn shared(&self) -> Option<&SharedPart> {
        match &self.memory {
            Memory::Shared(part) => Some(part),
            _ => None,
        }
    }

    /// It is to be leaked: adds its shared memory, if it is of any.
    pub(super) fn announce_leak(&self, leaked: &mut Leaked) {
        match &self.memory {
            Memory::Shared(part) => {
                if let Some(memory) = part.memory() {
                    leaked.add(&memory.end, memory.registrations.len());
                }
            }
            Memory::Part(whole, _) => whole.announce_leak(leaked),
            Memory::Block { .. } | Memory::Region(_) => {}
        }
    }

    /// Makes it this part of shared memory, if it is a free place for one.
    pub(crate) fn put_shared(&mut self, part: SharedPart) {
        if let Memory::Shared(place) = &mut self.memory {
            place.replace(part);
            self.set_range(0..self.capacity());
        }
    }
}

impl Owner {
    /// The memory, if it is no block.
    pub(crate) fn into_region(self) -> Result<MemoryRegion<Vec<u8>>, Self> {
        let Memory::Region(_) = self.memory else {
            return Err(self);
        };
        let this = ManuallyDrop::new(self);
        // SAFETY: the backing is a region, so it was made by `of_region`, and `self` was its owner.
        let backing = unsafe { Box::from_raw(this.0.as_ptr()) };
        match backing.memory {
            Memory::Region(region) => Ok(region),
            _ => unreachable!("others were handed back above"),
        }
    }

    /// Owns memory that is in no pool and in no place.
    pub(super) fn of_box(backing: Box<Backing>) -> Self {
        Self(NonNull::from(Box::leak(backing)))
    }

    /// The same, which the memory kept while it was free.
    pub(super) const fn of_free(Free(backing): Free<Backing>) -> Self {
        Self(backing)
    }

    /// Returns a block to its pool; drops any other memory.
    ///
    /// # Safety
    ///
    /// - It was an owner's, and is used by nothing else.
    #[inline(never)]
    unsafe fn release(backing: NonNull<Backing>) {
        let mut this = ManuallyDrop::new(Self(backing));
        let (mut shared, mut owner) = (None, None);
        match &mut this.memory {
            Memory::Block { pool, .. } => {
                if let Some(pool) = pool.take() {
                    this.set_all();
                    pool.free.push(Free(backing));
                    return;
                }
            }
            Memory::Shared(part) => {
                owner = part.take_owner();
                match part.release() {
                    (Some(memory), Some(level)) => {
                        memory.return_place(level, Free(backing));
                        return owner.into_iter().for_each(discard);
                    }
                    (memory, _) => shared = memory,
                }
            }
            Memory::Region(_) | Memory::Part(..) => {}
        }
        // SAFETY: in no pool, the backing was a box; the caller promises not to use it again.
        drop(unsafe { Box::from_raw(backing.as_ptr()) });
        shared.into_iter().for_each(Shared::give_back);
        owner.into_iter().for_each(discard);
    }
}

impl Deref for Owner {
    type Target = Backing;

    #[inline(always)]
    fn deref(&self) -> &Backing {
        // SAFETY: an `Owner` owns its backing, which is borrowed with it.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Owner {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Backing {
        // SAFETY: an `Owner` owns its backing, which is borrowed mutably with it.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Owner {
    // `release` takes the pointer by value, so that an owner can stay in a register.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the backing is not used after this.
        unsafe { Self::release(self.0) };
    }
}

impl SharedPool {
    /// A pool of these blocks, which are parts of the region, in the order of their places.
    pub(crate) fn new(
        (region, pd): (Box<dyn Any + Send + Sync>, ProtectionDomain),
        block_len: usize,
        blocks: Vec<Backing>,
    ) -> Arc<Self> {
        let blocks = blocks.into_iter().map(Box::new).map(Box::leak);
        Arc::new(Self {
            free: FreeList::new(blocks.map(|block| Free(NonNull::from(block)))),
            block_len,
            _region: region,
            pd,
        })
    }

    /// A block that was free is taken.
    #[expect(
        clippy::mem_forget,
        reason = "a free block has no pool, which would be dropped"
    )]
    #[inline(always)]
    pub(crate) fn owner(self: &Arc<Self>, block: Free<Backing>) -> Owner {
        let mut owner = Owner::of_free(block);
        if let Memory::Block { pool, .. } = &mut owner.memory {
            mem::forget(pool.replace(Arc::clone(self)));
        }
        owner
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        for Free(block) in self.free.drain() {
            // SAFETY: the block was a box, and is back. The region is dropped after this: a block
            // is a part of it.
            drop(unsafe { Box::from_raw(block.as_ptr()) });
        }
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Block { all, .. } => all,
            Self::Region(region) => region,
            Self::Shared(_) | Self::Part(..) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Block { all, .. } => all,
            Self::Region(region) => region,
            Self::Shared(_) | Self::Part(..) => &mut [],
        }
    }

    /// A part of it as an element, and where that can be posted; `None` if the part is too long for one.
    fn part(&self, range: Range<usize>) -> Option<(Sge, PdTag)> {
        let (addr, lkey, pd) = match self {
            Self::Block { all, pd, .. } => (all.addr(), all.lkey(), *pd),
            Self::Region(region) => {
                let start = region.as_bytes().as_ptr().addr();
                (start as u64, region.lkey(), PdTag::of(region.pd()))
            }
            Self::Shared(part) => {
                let (sge, pd) = part.element(range)?;
                return Some((sge, pd.shared()));
            }
            Self::Part(whole, of) => {
                let start = of.start + range.start;
                return whole.memory.part(start..start + range.len());
            }
        };
        // The backing keeps the memory, does not move its bytes, and does not borrow them while an
        // operation has the element.
        let len = u32::try_from(range.len()).ok()?;
        Some((Sge::new(addr + range.start as u64, len, lkey), pd))
    }

    /// A part of it as an element in this protection domain, if it is registered in several.
    fn part_in(&self, pd: PdTag, range: Range<usize>) -> Option<Sge> {
        match self {
            Self::Shared(part) => part.element_in(pd, range),
            Self::Part(whole, of) => {
                let start = of.start + range.start;
                whole.memory.part_in(pd, start..start + range.len())
            }
            Self::Block { .. } | Self::Region(_) => None,
        }
    }
}
