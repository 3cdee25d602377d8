//! Parts of shared memory, and the places that they are posted from.
#![expect(unsafe_code, reason = "keeps places that have one owner at a time")]

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_core::RemoteMemoryRegion;
use verbs_core::memory::Sge;

use super::block::{Backing, BlockPtr};
use super::element::PdTag;
use super::free_list::FreeList;
use super::notify::Returns;

/// The memory of a region that cannot be borrowed, and free places for its parts.
pub(crate) struct Shared {
    free: FreeList<BlockPtr>,
    pub(super) len: usize,
    addr: u64,
    lkey: u32,
    /// How peers address it.
    pub(super) remote: RemoteMemoryRegion,
    pd: PdTag,
    // After the places, which may be of its memory.
    pub(super) region: Arc<dyn Any + Send + Sync>,
    // After the region.
    _follower: Box<dyn Any + Send + Sync>,
    /// Notified when a part of it has been given back.
    pub(super) returns: Option<Arc<Returns>>,
}

/// The most places of one memory. Slices beyond them allocate.
const MOST_PLACES: usize = 1 << 16;

/// A part of shared memory. It keeps the memory, except in a place that is free.
pub(crate) struct SharedPart {
    memory: Option<Arc<Shared>>,
    /// The first byte, and one past the last.
    range: Range<usize>,
    /// Whether it is in one of the places of the memory.
    is_place: bool,
}

impl Shared {
    /// The memory of a region: how peers address it, its length and its key. The follower is dropped after
    /// the region. Parts that are given back are announced, if anywhere.
    pub(super) fn new(
        region: Arc<dyn Any + Send + Sync>,
        (remote, len, lkey): (RemoteMemoryRegion, usize, u32),
        pd: PdTag,
        places: usize,
        follower: Box<dyn Any + Send + Sync>,
        returns: Option<Arc<Returns>>,
    ) -> Self {
        let place = |_| {
            let part = SharedPart {
                memory: None,
                range: 0..0,
                is_place: true,
            };
            let place = Box::leak(Box::new(Backing::of_shared(part)));
            BlockPtr(NonNull::from(place))
        };
        Self {
            free: FreeList::new((0..places.min(MOST_PLACES)).map(place)),
            len,
            addr: remote.addr(),
            lkey,
            remote,
            pd,
            region,
            _follower: follower,
            returns,
        }
    }

    /// A free place, which has an owner from now on.
    #[inline]
    pub(super) fn take_place(&self) -> Option<BlockPtr> {
        self.free.pop()
    }

    /// Takes back a place.
    pub(super) fn return_place(self: Arc<Self>, place: BlockPtr) {
        self.free.push(place);
        self.give_back();
    }

    /// Drops what kept it, and wakes tasks that wait for that.
    #[inline]
    pub(super) fn give_back(self: Arc<Self>) {
        match &self.returns {
            None => drop(self),
            Some(returns) => Self::announce(Arc::clone(returns), self),
        }
    }

    #[cold]
    #[inline(never)]
    fn announce(returns: Arc<Returns>, memory: Arc<Self>) {
        drop(memory);
        returns.notify();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for BlockPtr(place) in self.free.drain() {
            // SAFETY: the place was a box, and is back: a part in a place that is taken keeps the
            // memory.
            drop(unsafe { Box::from_raw(place.as_ptr()) });
        }
    }
}

impl SharedPart {
    /// A part of this memory, within its bounds. It is in a place of its own.
    pub(super) const fn new(memory: Arc<Shared>, range: Range<usize>) -> Self {
        Self {
            memory: Some(memory),
            range,
            is_place: false,
        }
    }

    /// The same in the place of another part.
    #[inline]
    pub(super) fn in_place_of(mut self, other: Option<&Self>) -> Self {
        self.is_place = other.is_some_and(|other| other.is_place);
        self
    }

    pub(super) const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    pub(super) const fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) const fn memory(&self) -> Option<&Arc<Shared>> {
        self.memory.as_ref()
    }

    /// A part of it as an element, and where that can be posted; `None` if it is too long for one.
    pub(super) fn element(&self, range: Range<usize>) -> Option<(Sge, PdTag)> {
        let memory = self.memory.as_ref()?;
        let len = u32::try_from(range.len()).ok()?;
        let start = self.range.start + range.start;
        Some((
            Sge::new(memory.addr + start as u64, len, memory.lkey),
            memory.pd,
        ))
    }

    /// Takes what keeps the memory, to be [given back](Shared::give_back), and whether it is in a place of the memory.
    pub(super) const fn release(&mut self) -> (Option<Arc<Shared>>, bool) {
        (self.memory.take(), self.is_place)
    }
}
