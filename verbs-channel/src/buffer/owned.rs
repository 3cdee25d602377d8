//! Owned buffers: registered memory that can be moved into a channel.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;

use verbs_core::__private::indices;
use verbs_core::memory::Sge;
use verbs_core::{Error as CoreError, MemoryRegion};

use super::block::{Backing, Owner};
use super::deregistration::Leaked;
use super::element::PdTag;
use super::shared_part::SharedPart;
use crate::error::{Error, RejectReason, Result};

/// A registered buffer that a channel can own while the device uses it.
///
/// It is a block of a [`BufferPool`](crate::BufferPool), a registered vector, or a
/// [slice](crate::buffer::SharedSlice) of shared memory. Operations use its
/// [range](Self::set_range), which is all of it unless set. It is a pointer, so moving it is cheap.
///
/// It derefs to the bytes of its range. The bytes of shared memory cannot be borrowed: a slice of
/// it derefs to an empty slice, whatever its range. A [message](crate::Completed::message) that was
/// received into it also reads as empty.
#[derive(Default)]
pub struct OwnedBuffer {
    // `None` if it has no memory.
    pub(super) backing: Option<Owner>,
}

impl OwnedBuffer {
    #[inline]
    pub(crate) const fn new(backing: Owner) -> Self {
        let backing = Some(backing);
        Self { backing }
    }

    /// Sets the range of the buffer, in bytes, that operations and `Deref` use.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the end of the buffer. It is not
    /// changed.
    pub fn set_range(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        let range = within(range, self.capacity())?;
        if let Some(backing) = &mut self.backing {
            backing.set_range(range);
        }
        Ok(())
    }

    /// The length of the whole buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.backing
            .as_ref()
            .map_or(0, |backing| backing.capacity())
    }

    /// Converts into the registered vector, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is not a registered vector.
    pub fn into_region(mut self) -> Result<MemoryRegion<Vec<u8>>, Self> {
        let backing = self.backing.take().ok_or_else(Self::empty)?;
        backing.into_region().map_err(Self::new)
    }

    /// A buffer without memory, for messages without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { backing: None }
    }

    /// The range that operations use.
    pub(crate) fn range(&self) -> Range<usize> {
        let backing = self.backing.as_ref();
        backing.map_or(0..0, |backing| backing.range().clone())
    }

    /// Converts into memory that [parts](Self::part) share, if it has any.
    pub(crate) fn into_shares(self) -> Option<Arc<Owner>> {
        self.backing.map(Arc::new)
    }

    /// A part of memory that several share, within its bounds.
    pub(crate) fn part(whole: &Arc<Owner>, range: Range<usize>) -> Self {
        Self::new(Backing::of_part(Arc::clone(whole), range))
    }

    /// The memory again, unless it has parts, which the device may have.
    pub(crate) fn from_shares(whole: Arc<Owner>) -> Option<Self> {
        Arc::into_inner(whole).map(Self::new)
    }

    /// Takes the memory, and leaves an empty buffer.
    #[inline(always)]
    pub(crate) const fn take(&mut self) -> Self {
        mem::replace(self, Self::empty())
    }

    /// The part of shared memory, if it is one.
    pub(super) fn shared(&self) -> Option<&SharedPart> {
        self.backing.as_ref()?.shared()
    }

    /// It is to be leaked, since a device may keep it: adds its memory.
    #[cold]
    pub(crate) fn announce_leak(&self, leaked: &mut Leaked) {
        if let Some(backing) = &self.backing {
            backing.announce_leak(leaked);
        }
    }

    /// The range as an element, to be posted in this protection domain, inline or not.
    #[inline(always)]
    pub(crate) fn element(&self, pd: PdTag, is_inline: bool) -> Result<Sge, RejectReason> {
        match (self.element_in(pd), &self.backing) {
            (Some(element), _) => Ok(*element),
            (None, Some(backing)) => backing.element(pd, is_inline),
            (None, None) => Ok(NOTHING),
        }
    }

    /// [`element`](Self::element) in the usual case: the memory can be borrowed, and is of this protection domain.
    #[inline(always)]
    pub(crate) fn element_in(&self, pd: PdTag) -> Option<&Sge> {
        match &self.backing {
            None => Some(&NOTHING),
            Some(backing) => backing.element_in(pd),
        }
    }

    /// The range as an element, inline or not, and the protection domain that it can be posted in: any, if
    /// it has no memory.
    #[inline(always)]
    pub(crate) fn element_and_domain(
        &self,
        is_inline: bool,
    ) -> Result<(Sge, Option<PdTag>), RejectReason> {
        let Some(backing) = &self.backing else {
            return Ok((NOTHING, None));
        };
        let (element, pd) = backing.element_and_domain(is_inline)?;
        Ok((element, Some(pd)))
    }
}

/// No memory: as of an empty slice.
const NOTHING: Sge = Sge::new(1, 0, 0);

/// A range of a buffer, in numbers.
pub(crate) fn within(range: impl RangeBounds<usize>, capacity: usize) -> Result<Range<usize>> {
    let (start, end) = indices(capacity, range);
    if start > end || end > capacity {
        return Err(Error::Core(CoreError::OutOfBounds {
            start: start as u64,
            end: end as u64,
            len: capacity as u64,
        }));
    }
    Ok(start..end)
}

impl From<MemoryRegion<Vec<u8>>> for OwnedBuffer {
    fn from(region: MemoryRegion<Vec<u8>>) -> Self {
        Self::new(Backing::of_region(region))
    }
}

impl Deref for OwnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.backing.as_ref().map_or(&[], |backing| backing.bytes())
    }
}

impl DerefMut for OwnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let backing = self.backing.as_mut();
        backing.map_or(&mut [], |backing| backing.bytes_mut())
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = self.backing.as_ref().map(|backing| backing.range());
        f.debug_struct("OwnedBuffer")
            .field("range", range.unwrap_or(&(0..0)))
            .field("capacity", &self.capacity())
            .finish()
    }
}
