//! Parts of shared memory, and the places that they are posted from.
#![expect(unsafe_code, reason = "keeps places that have one owner at a time")]

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use verbs_core::RemoteMemoryRegion;
use verbs_core::memory::Sge;

use super::block::Backing;
use super::deregistration::{End, Registered};
use super::element::PdTag;
use super::free_list::{Free, FreeList};
use super::notify::Returns;

/// The memory of regions that cannot be borrowed, and free places for its parts.
pub(crate) struct Shared {
    // Each level is made when all places of those before it are taken.
    places: [OnceLock<FreeList<Backing>>; LEVELS],
    pub(super) len: usize,
    /// One for each protection domain, of the same bytes. After the places, which may be of the memory.
    pub(super) registrations: Vec<Registration>,
    // After the regions.
    _follower: Box<dyn Any + Send + Sync>,
    /// Notified when a part of it has been given back.
    pub(super) returns: Option<Arc<Returns>>,
    /// Has the result of the deregistration.
    pub(super) end: Arc<End>,
}

/// The bytes as one device reaches them.
pub(super) struct Registration {
    /// How peers address them.
    pub(super) remote: RemoteMemoryRegion,
    pub(super) lkey: u32,
    pub(super) pd: PdTag,
    /// `None` once it is deregistered.
    pub(super) region: Option<Arc<dyn Registered>>,
}

/// Sizes of places: 64, and 4 times those of the level before. Slices beyond all of them, 87,360, allocate.
const LEVELS: usize = 6;
const fn places_of(level: usize) -> usize {
    64 << (2 * level)
}

/// A part of shared memory. It keeps the memory, except in a place that is free.
pub(crate) struct SharedPart {
    memory: Option<Arc<Shared>>,
    /// The first byte, and one past the last.
    range: Range<usize>,
    /// The level of its place among those of the memory; `None` if that had no free one.
    level: Option<usize>,
    /// Dropped with the part.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Shared {
    /// The memory of these regions. The follower is dropped after them. Parts that are given back are
    /// announced, if anywhere.
    pub(super) fn new(
        registrations: Vec<Registration>,
        follower: Box<dyn Any + Send + Sync>,
        returns: Option<Arc<Returns>>,
    ) -> Self {
        let lens = registrations.iter().map(|each| each.remote.len());
        // A length in memory fits.
        let len = lens
            .min()
            .map_or(0, |len| usize::try_from(len).unwrap_or(usize::MAX));
        Self {
            places: [const { OnceLock::new() }; LEVELS],
            len,
            registrations,
            _follower: follower,
            returns,
            end: Arc::default(),
        }
    }

    /// A free place, which has an owner from now on; `None` if all are taken.
    #[inline]
    pub(super) fn take_place(&self) -> Option<Free<Backing>> {
        let mut levels = self.places.iter().enumerate();
        levels.find_map(|(level, places)| places.get_or_init(|| make_places(level)).pop())
    }

    /// Takes back a place of this level.
    pub(super) fn return_place(self: Arc<Self>, level: usize, place: Free<Backing>) {
        if let Some(places) = self.places.get(level).and_then(OnceLock::get) {
            places.push(place);
        }
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

#[cold]
fn make_places(level: usize) -> FreeList<Backing> {
    let place = |_| {
        let part = SharedPart {
            memory: None,
            range: 0..0,
            level: Some(level),
            owner: None,
        };
        let place = Box::leak(Box::new(Backing::of_shared(part)));
        Free(NonNull::from(place))
    };
    FreeList::new((0..places_of(level)).map(place))
}

impl Drop for Shared {
    fn drop(&mut self) {
        let lists = self.places.iter_mut().filter_map(OnceLock::get_mut);
        for Free(place) in lists.flat_map(FreeList::drain) {
            // SAFETY: the place was a box, and is back: a part in a place that is taken keeps the
            // memory.
            drop(unsafe { Box::from_raw(place.as_ptr()) });
        }
        // The first is last: it may have the buffer.
        let regions = self.registrations.iter_mut().rev();
        self.end
            .deregister(self.len, regions.filter_map(|each| each.region.take()));
    }
}

impl SharedPart {
    /// A part of this memory, within its bounds, which keeps its owner until it is dropped. It is in a place of its own.
    pub(super) const fn new(
        memory: Arc<Shared>,
        range: Range<usize>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self {
            memory: Some(memory),
            range,
            level: None,
            owner,
        }
    }

    /// The value that it keeps.
    pub(super) const fn owner(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.owner.as_ref()
    }

    /// Puts another part in the place of this one, which was free: there was nothing in it.
    #[inline]
    pub(super) fn replace(&mut self, by: Self) {
        let level = self.level;
        *self = Self { level, ..by };
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

    /// A part of it as an element, and where that can be posted: in the first protection domain of the memory.
    /// `None` if it is too long for one.
    pub(super) fn element(&self, range: Range<usize>) -> Option<(Sge, PdTag)> {
        let registration = self.memory.as_ref()?.registrations.first()?;
        Some((self.element_of(registration, range)?, registration.pd))
    }

    /// The same in this protection domain.
    pub(super) fn element_in(&self, pd: PdTag, range: Range<usize>) -> Option<Sge> {
        let mut registrations = self.memory.as_ref()?.registrations.iter();
        self.element_of(registrations.find(|each| each.pd == pd)?, range)
    }

    fn element_of(&self, of: &Registration, range: Range<usize>) -> Option<Sge> {
        let len = u32::try_from(range.len()).ok()?;
        let start = (self.range.start + range.start) as u64;
        Some(Sge::new(of.remote.addr() + start, len, of.lkey))
    }

    /// Takes what keeps the memory, to be [given back](Shared::give_back), and the level of its place there, if it has
    /// one.
    pub(super) const fn release(&mut self) -> (Option<Arc<Shared>>, Option<usize>) {
        (self.memory.take(), self.level)
    }

    /// Takes the value that it keeps.
    pub(super) const fn take_owner(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.owner.take()
    }
}
