//! Owned buffers: registered memory that can be given away.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut, Range, RangeBounds};

use verbs_core::{Error as CoreError, MemoryRegion, ScatterElement};

use crate::error::{Error, Refusal, Result};
use crate::pool::PoolBuffer;

/// A registered buffer that a channel can own while the card uses it: a block of a
/// [`BufferPool`](crate::BufferPool), or a registered vector.
///
/// Operations work on its [`range`](Self::set_range), which is all of it unless set.
#[derive(Default)]
pub struct OwnedBuffer {
    source: Source,
    range: Range<usize>,
}

#[derive(Default)]
enum Source {
    #[default]
    Nothing,
    Pool(PoolBuffer),
    // Apart: what is given away and comes back is moved often.
    Region(Box<MemoryRegion<Vec<u8>>>),
}

impl OwnedBuffer {
    /// No memory, of capacity 0: messages without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        let source = Source::Nothing;
        Self {
            source,
            range: 0..0,
        }
    }

    /// Lets operations, and `Deref`, see only this part of the buffer.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`] past the buffer's end; the range stays as it was.
    pub fn set_range(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        let capacity = self.capacity();
        let start = match range.start_bound() {
            std::ops::Bound::Included(start) => *start,
            std::ops::Bound::Excluded(before) => before.saturating_add(1),
            std::ops::Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            std::ops::Bound::Included(last) => last.saturating_add(1),
            std::ops::Bound::Excluded(end) => *end,
            std::ops::Bound::Unbounded => capacity,
        };
        if start > end || end > capacity {
            return Err(Error::Core(CoreError::OutOfBounds {
                start: start as u64,
                end: end as u64,
                len: capacity as u64,
            }));
        }
        self.range = start..end;
        Ok(())
    }

    /// The length of the whole buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.source {
            Source::Nothing => 0,
            Source::Pool(block) => block.len(),
            Source::Region(region) => region.len(),
        }
    }

    /// The registered vector, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is something else; dropping a block of a pool returns it.
    pub fn into_region(self) -> Result<MemoryRegion<Vec<u8>>, Self> {
        match self.source {
            Source::Region(region) => Ok(*region),
            source => Err(Self {
                source,
                range: self.range,
            }),
        }
    }

    /// The block, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is something else.
    pub fn into_block(self) -> Result<PoolBuffer, Self> {
        match self.source {
            Source::Pool(block) => Ok(block),
            source => Err(Self {
                source,
                range: self.range,
            }),
        }
    }

    /// All of it; what is left is empty.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        let source = mem::replace(&mut self.source, Source::Nothing);
        let range = mem::replace(&mut self.range, 0..0);
        Self { source, range }
    }

    /// The range as an element.
    #[inline]
    pub(crate) fn element(&mut self) -> Result<ScatterElement<'_>, Refusal> {
        let len = self.range.len() as u64;
        // The range was checked when it was set, so it is its length.
        self.part().map_err(|_long| Refusal::ElementTooLong { len })
    }

    #[inline]
    fn part(&mut self) -> verbs_core::Result<ScatterElement<'_>> {
        let Range { start, end } = self.range;
        let whole = match &mut self.source {
            Source::Nothing => ScatterElement::empty(),
            Source::Pool(block) => {
                let is_all = start == 0 && end == block.len();
                let whole = block.element();
                if is_all {
                    return Ok(whole);
                }
                whole
            }
            Source::Region(region) => return region.scatter_element(start..end),
        };
        let (_, from_start) = whole.split_at_mut(start)?;
        let (element, _) = from_start.split_at_mut(end - start)?;
        Ok(element)
    }
}

impl From<PoolBuffer> for OwnedBuffer {
    fn from(block: PoolBuffer) -> Self {
        let range = 0..block.len();
        let source = Source::Pool(block);
        Self { source, range }
    }
}

impl From<MemoryRegion<Vec<u8>>> for OwnedBuffer {
    fn from(region: MemoryRegion<Vec<u8>>) -> Self {
        let range = 0..region.len();
        let source = Source::Region(Box::new(region));
        Self { source, range }
    }
}

impl Deref for OwnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.source {
            Source::Nothing => &[],
            Source::Pool(block) => block,
            Source::Region(region) => region,
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl DerefMut for OwnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        let all: &mut [u8] = match &mut self.source {
            Source::Nothing => &mut [],
            Source::Pool(block) => block,
            Source::Region(region) => region,
        };
        all.get_mut(range).unwrap_or_default()
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBuffer")
            .field("range", &self.range)
            .field("capacity", &self.capacity())
            .finish()
    }
}
