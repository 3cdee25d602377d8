//! Shared memory: regions whose bytes cannot be borrowed, and slices of them that a channel can own.

use std::any::Any;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_core::memory::{Buffer, DmabufRegion, RawRegion};
use verbs_core::{ProtectionDomain, RemoteMemoryRegion, SharedRegion};

use super::block::{Backing, Owner};
use super::element::PdTag;
use super::notify::Returns;
use super::owned::{OwnedBuffer, within};
use super::shared_part::{Shared, SharedPart};
use crate::error::Result;

/// A region whose bytes cannot be borrowed: of a GPU, of huge pages, of `mmap`, or shared with peers.
///
/// Any number of [slices](Self::slice) of it can be in flight at once, and they may overlap. Each slice
/// keeps the region until the device is done with the slice.
///
/// Cloning is cheap and shares the memory. The region is deregistered when all clones, slices and `Arc`s of it have been
/// dropped. To do that at a known point, keep an `Arc`: [`Arc::into_inner`] returns the region once it is the last,
/// and [`SharedRegion::dereg`] the buffer, which no device reaches any more.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use verbs_channel::verbs_core::{AccessFlags, Context};
/// use verbs_channel::{Channel, SharedMemory};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let (mut left, mut right) = Channel::loopback(&pd)?;
/// let region = Arc::new(pd.reg_shared(vec![0_u8; 1 << 20], AccessFlags::REMOTE_READ)?);
/// let memory = SharedMemory::new(Arc::clone(&region), 64);
///
/// // Two pages at once, read from the peer's memory.
/// let remote = region.remote().slice(..4096)?;
/// let first = left.start_read(memory.slice(4096..8192)?, remote)?;
/// let second = left.start_read(memory.slice(8192..12288)?, remote)?;
/// for ticket in [first, second] {
///     let completed = left.wait(ticket, None)?.ok_or("no timeout")?;
///     completed.result?;
/// }
/// let mut bytes = [0; 4096];
/// region.read(4096, &mut bytes)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedMemory {
    shared: Arc<Shared>,
    _announced: Announced,
}

/// Dropped after what it announces.
#[derive(Clone)]
struct Announced(Option<Arc<Returns>>);

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(returns) = &self.0 {
            returns.notify();
        }
    }
}

/// A part of a [`SharedMemory`], which converts into an [`OwnedBuffer`].
///
/// Its bytes cannot be borrowed, nor sent inline. After an operation, [`OwnedBuffer::into_shared`] takes it
/// out of the returned buffer. Cloning it is cheap.
pub struct SharedSlice {
    // Always a part of shared memory, with its full range.
    buffer: OwnedBuffer,
}

/// A region that can become a [`SharedMemory`]: [`SharedRegion`], [`RawRegion`] or [`DmabufRegion`].
pub trait Shareable: sealed::Shareable {}

impl<R: sealed::Shareable> Shareable for R {}

mod sealed {
    use std::any::Any;

    use verbs_core::{ProtectionDomain, RemoteMemoryRegion};

    #[expect(unnameable_types, reason = "seals `Shareable`")]
    pub trait Shareable: Any + Send + Sync {
        /// How peers address it, its length and its key.
        fn memory(&self) -> (RemoteMemoryRegion, usize, u32);

        fn pd(&self) -> &ProtectionDomain;
    }
}

macro_rules! shareable {
    ($([$($bounds:tt)*] $region:ty;)*) => {$(
        impl<$($bounds)*> sealed::Shareable for $region {
            fn memory(&self) -> (RemoteMemoryRegion, usize, u32) {
                (self.remote(), self.len(), self.lkey())
            }

            fn pd(&self) -> &ProtectionDomain {
                self.pd()
            }
        }
    )*};
}

shareable! {
    [B: Buffer + Send + Sync + 'static] SharedRegion<B>;
    [K: Send + Sync + 'static] RawRegion<K>;
    [K: Send + Sync + 'static] DmabufRegion<K>;
}

impl SharedMemory {
    /// Makes shared memory of a region, with room for this many slices at once, and for 65,536 at most.
    ///
    /// Slices allocate nothing, unless more than there is room for exist at once: each further slice
    /// allocates 128 bytes. To read and write the bytes of a [`SharedRegion`], keep a clone of the
    /// `Arc`.
    #[must_use]
    pub fn new<R: Shareable>(region: Arc<R>, slices: usize) -> Self {
        Self::with_follower(region, slices, (), None)
    }

    /// The same, with a value that is dropped after the region. That slices and clones are dropped is
    /// announced.
    pub(crate) fn with_follower<R: Shareable>(
        region: Arc<R>,
        slices: usize,
        follower: impl Any + Send + Sync,
        returns: Option<Arc<Returns>>,
    ) -> Self {
        let (memory, pd) = (region.memory(), PdTag::of(region.pd()));
        let region: Arc<dyn Any + Send + Sync> = region;
        let follower = Box::new(follower);
        Self::of(Arc::new(Shared::new(
            region, memory, pd, slices, follower, returns,
        )))
    }

    fn of(shared: Arc<Shared>) -> Self {
        let _announced = Announced(shared.returns.clone());
        Self { shared, _announced }
    }

    /// Whether nothing else has the memory: no slice, no clone, and no [region](Self::region).
    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1 && Arc::strong_count(&self.shared.region) == 1
    }

    /// A part of the memory, for one operation at a time. The range counts bytes.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the memory.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<SharedSlice> {
        let range = within(range, self.len())?;
        let part = SharedPart::new(Arc::clone(&self.shared), range);
        let owner = match self.shared.take_place() {
            Some(place) => {
                let mut owner = Owner::of_free(place);
                let part = part.in_place_of(owner.shared());
                // The place was free: there is nothing in it.
                drop(owner.replace_shared(part));
                owner
            }
            None => Owner::of_box(Box::new(Backing::of_shared(part))),
        };
        Ok(SharedSlice {
            buffer: OwnedBuffer::new(owner),
        })
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// The address, length and key that the peer needs to access all of the memory, as the access flags of
    /// its region permit.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        self.shared.remote
    }

    /// The region, if it is of this type.
    #[must_use]
    pub fn region<R: Shareable>(&self) -> Option<Arc<R>> {
        Arc::clone(&self.shared.region).downcast().ok()
    }
}

impl SharedSlice {
    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.capacity()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset of its first byte in its memory, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.buffer.shared().map_or(0, |part| part.range().start)
    }

    /// The memory that it is a part of.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "only free places have no memory")]
    pub fn memory(&self) -> SharedMemory {
        // It is made of a part that has its memory, or of a buffer that is such a part; that is taken out when the
        // part is dropped.
        let memory = self.buffer.shared().and_then(SharedPart::memory);
        let memory = memory.expect("a slice keeps its memory");
        SharedMemory::of(Arc::clone(memory))
    }

    /// Converts into an owned buffer, of which a [range](OwnedBuffer::set_range) can be used.
    #[must_use]
    pub fn into_owned(self) -> OwnedBuffer {
        self.buffer
    }
}

impl OwnedBuffer {
    /// Converts into the slice of shared memory, if it is one.
    ///
    /// # Errors
    ///
    /// The buffer, if it is not a slice of shared memory.
    pub fn into_shared(mut self) -> Result<SharedSlice, Self> {
        if self.is_shared() {
            // All of it always fits.
            drop(self.set_range(..));
            return Ok(SharedSlice { buffer: self });
        }
        Err(self)
    }

    /// Whether the buffer is a slice of shared memory.
    ///
    /// Its bytes cannot be borrowed then, so it [derefs](std::ops::Deref) to an empty slice.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared().is_some()
    }
}

impl Clone for SharedSlice {
    fn clone(&self) -> Self {
        let range = self.offset()..self.offset() + self.len();
        let again = self.memory().slice(range);
        again.expect("a slice is within its memory")
    }
}

impl From<SharedSlice> for OwnedBuffer {
    #[inline]
    fn from(slice: SharedSlice) -> Self {
        slice.into_owned()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.len())
    }
}

impl fmt::Debug for SharedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({} bytes at {})", self.len(), self.offset())
    }
}
