//! Shared memory: regions whose bytes cannot be borrowed, and slices of them that a channel can own.
#![expect(unsafe_code, reason = "registers memory that the caller keeps")]

use std::any::Any;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_core::error::Rejected;
use verbs_core::memory::{Buffer, DmabufRegion, MwBindInfo, RawRegion};
use verbs_core::{
    AccessFlags, Error as CoreError, ProtectionDomain, RemoteMemoryRegion, SharedRegion,
};

use super::block::{Backing, Owner};
use super::deregistration::{Deregistration, Leaked, Registered};
use super::element::PdTag;
use super::notify::Returns;
use super::owned::{OwnedBuffer, within};
use super::shared_part::{Registration, Shared, SharedPart};
use crate::error::{RejectReason, Result, TransportError};
use crate::panics::discard;

/// Memory whose bytes cannot be borrowed, registered in any number of protection domains: of a GPU, of huge pages,
/// of `mmap`, or shared with peers.
///
/// Any number of [slices](Self::slice) of it can be in flight at once, and they may overlap. A slice can be posted
/// on each of the devices: the key of the right one is picked when it is posted. It keeps the memory until the
/// device is done with the slice, and so does it keep its [owner](SharedSlice::owned_by), if it has one.
///
/// Cloning is cheap and shares the memory. It is deregistered when all clones and slices have been dropped.
/// [`deregister`](Self::deregister) waits for that.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_channel::verbs_core::{AccessFlags, Context, SharedRegion};
/// use verbs_channel::{Channel, SharedMemory};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let (mut left, mut right) = Channel::loopback(&pd)?;
/// let memory = SharedMemory::register([&pd], vec![0_u8; 1 << 20], AccessFlags::REMOTE_READ)?;
///
/// // Two pages at once, read from the peer's memory.
/// let remote = memory.remote(&pd)?.slice(..4096)?;
/// let first = left.start_read(memory.slice(4096..8192)?, remote)?;
/// let second = left.start_read(memory.slice(8192..12288)?, remote)?;
/// for ticket in [first, second] {
///     let completed = left.wait(ticket, None)?.ok_or("no timeout")?;
///     completed.result?;
/// }
/// let mut bytes = [0; 4096];
/// let region: &SharedRegion<Vec<u8>> = memory.region().ok_or("it is of another type")?;
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

/// A region that can be of a [`SharedMemory`]: [`SharedRegion`], [`RawRegion`] or [`DmabufRegion`].
pub trait Shareable: Registered {}

impl<R: Registered> Shareable for R {}

macro_rules! shareable {
    ($([$($bounds:tt)*] $region:ty, $start:expr;)*) => {$(
        impl<$($bounds)*> Registered for $region {
            fn memory(&self) -> (RemoteMemoryRegion, u32) {
                (self.remote(), self.lkey())
            }

            fn pd(&self) -> &ProtectionDomain {
                self.pd()
            }

            fn dereg(self: Arc<Self>) -> Result<(), CoreError> {
                // If it is not the last, a registration of the same bytes keeps it that could not be ended.
                let object = "a region whose bytes the device may reach by another registration";
                let last = Arc::into_inner(self).ok_or(CoreError::InUse { object })?;
                last.dereg().map(discard)
            }

            fn access(&self) -> AccessFlags {
                self.access()
            }

            fn bind_info(
                &self,
                part: Range<usize>,
                access: AccessFlags,
            ) -> Result<MwBindInfo<'_>, CoreError> {
                self.mw_bind_info(part, access)
            }

            fn start(&self) -> Option<NonNull<u8>> {
                let start: fn(&Self) -> Option<NonNull<u8>> = $start;
                start(self)
            }
        }
    )*};
}

shareable! {
    [B: Buffer + Send + Sync + 'static] SharedRegion<B>, |region| NonNull::new(region.as_ptr());
    [K: Send + Sync + 'static] RawRegion<K>, RawRegion::start;
    [K: Send + Sync + 'static] DmabufRegion<K>, |_of_a_gpu| None;
}

impl SharedMemory {
    /// Makes shared memory of regions of the same bytes, each in another protection domain; most often of one.
    ///
    /// If they differ in length, the memory has the length of the shortest. Without any, it is empty, and its slices
    /// are of [no channel's domain](RejectReason::OtherDomain).
    ///
    /// Slices allocate nothing, unless more of them exist at once than ever before: then the memory makes room for
    /// several times that number, up to 87,360.
    #[must_use]
    pub fn new<R: Shareable>(regions: impl IntoIterator<Item = R>) -> Self {
        let regions = regions.into_iter().map(Arc::new);
        Self::of_registrations(regions.map(registration).collect())
    }

    /// Registers a buffer in each of these protection domains, which peers may access as these flags permit.
    ///
    /// [`region::<SharedRegion<B>>`](Self::region) reads and writes its bytes.
    ///
    /// # Errors
    ///
    /// As [`reg_shared`](ProtectionDomain::reg_shared), for the first domain that fails; or
    /// [`OutOfRange`](CoreError::OutOfRange), if there is none. The buffer is handed back, unless a driver then fails to
    /// deregister it, and it is leaked.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<'d, B: Buffer + Send + Sync + 'static>(
        domains: impl IntoIterator<Item = &'d ProtectionDomain>,
        buffer: B,
        access: AccessFlags,
    ) -> Result<Self, Rejected<Option<B>>> {
        let mut domains = domains.into_iter();
        let mut registrations = Vec::new();
        let Some(pd) = domains.next() else {
            return Err(Rejected::new(NO_DOMAIN, Some(buffer)));
        };
        let first = pd.reg_shared(buffer, access);
        let first = first.map_err(|rejected| {
            let (error, buffer) = rejected.into_parts();
            Rejected::new(error, Some(buffer))
        });
        let first = Arc::new(first?);
        for pd in domains {
            match first.reg_on(pd, access) {
                Ok(region) => registrations.push(registration(Arc::new(region))),
                Err(error) => {
                    drop(registrations);
                    let buffer = Arc::into_inner(first).and_then(|first| first.dereg().ok());
                    return Err(Rejected::new(error, buffer));
                }
            }
        }
        registrations.insert(0, registration(first));
        Ok(Self::of_registrations(registrations))
    }

    /// Registers memory by address in each of these protection domains, and takes the keepalive, which keeps that
    /// memory.
    ///
    /// The keepalive is dropped when the memory has been deregistered in all of them. It is leaked if a driver fails
    /// to do that.
    ///
    /// # Safety
    ///
    /// The contract of [`register_raw`](ProtectionDomain::register_raw), from this call until the keepalive is
    /// dropped:
    ///
    /// - The memory from `ptr` to `ptr + len` stays mapped while `keepalive` has not been dropped, and nothing that
    ///   can be done with a `&K` unmaps it.
    /// - Unless `access` is empty, the memory is writable.
    /// - No `&mut` to the memory is live.
    /// - If `access` has [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), or permits a peer to write: no `&` to the memory
    ///   is live, and nothing in this program relies on its contents.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](ProtectionDomain::reg_mr), or [`OutOfRange`](CoreError::OutOfRange) without any domain. The
    /// keepalive is dropped.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw<'d, K: Send + Sync + 'static>(
        domains: impl IntoIterator<Item = &'d ProtectionDomain>,
        ptr: NonNull<u8>,
        len: usize,
        access: AccessFlags,
        keepalive: K,
    ) -> Result<Self> {
        let keepalive = Arc::new(keepalive);
        let mut regions = Vec::new();
        for pd in domains {
            // SAFETY: the caller promises what `register_raw` asks for; each region has a share of the keepalive,
            // which is dropped with the last.
            let region = unsafe { pd.register_raw(ptr, len, access, Arc::clone(&keepalive)) };
            regions.push(region?);
        }
        match regions.is_empty() {
            true => Err(NO_DOMAIN.into()),
            false => Ok(Self::new(regions)),
        }
    }

    /// The memory of one region, with a value that is dropped after it. That slices and clones are dropped is
    /// announced.
    pub(crate) fn with_follower<R: Shareable>(
        region: R,
        follower: impl Any + Send + Sync,
        returns: Option<Arc<Returns>>,
    ) -> Self {
        let registrations = vec![registration(Arc::new(region))];
        let follower = Box::new(follower);
        Self::of(Arc::new(Shared::new(registrations, follower, returns)))
    }

    fn of_registrations(registrations: Vec<Registration>) -> Self {
        Self::of(Arc::new(Shared::new(registrations, Box::new(()), None)))
    }

    fn of(shared: Arc<Shared>) -> Self {
        let _announced = Announced(shared.returns.clone());
        Self { shared, _announced }
    }

    /// A part of the memory, for one operation at a time. The range counts bytes.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the memory.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<SharedSlice> {
        let range = within(range, self.len())?;
        Ok(Self::part(&self.shared, range, None))
    }

    /// A part without bytes.
    pub(crate) fn empty(&self) -> SharedSlice {
        Self::part(&self.shared, 0..0, None)
    }

    #[inline]
    fn part(
        shared: &Arc<Shared>,
        range: Range<usize>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> SharedSlice {
        let part = SharedPart::new(Arc::clone(shared), range, owner);
        let owner = match shared.take_place() {
            Some(place) => {
                let mut owner = Owner::of_free(place);
                owner.put_shared(part);
                owner
            }
            None => Owner::of_box(Box::new(Backing::of_shared(part))),
        };
        SharedSlice {
            buffer: OwnedBuffer::new(owner),
        }
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// The address, length and key that a peer needs to access all of the memory, over queue pairs of this
    /// protection domain and as the access flags permit.
    ///
    /// # Errors
    ///
    /// [`RejectReason::OtherDomain`]: the memory is not registered in it.
    pub fn remote(&self, pd: &ProtectionDomain) -> Result<RemoteMemoryRegion> {
        let pd = PdTag::of(pd);
        let mut registrations = self.shared.registrations.iter();
        let its = registrations.find(|each| each.pd == pd);
        its.map(|each| each.remote)
            .ok_or_else(|| TransportError::from(RejectReason::OtherDomain).into())
    }

    /// The first region of this type.
    #[must_use]
    pub fn region<R: Shareable>(&self) -> Option<&R> {
        let mut regions = self
            .shared
            .registrations
            .iter()
            .filter_map(|each| each.region.as_deref());
        regions.find_map(|region| {
            let region: &dyn Any = region;
            region.downcast_ref()
        })
    }

    /// Whether nothing else has the memory: no slice and no clone.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Drops the memory, and returns a handle that waits until it has been deregistered: with the last slice and
    /// clone.
    ///
    /// After that no device reaches the memory, and its keepalive or buffer has been dropped. After an operation that is
    /// [stuck](TransportError::Stuck), it is [`NotDeregistered`](crate::Error::NotDeregistered).
    ///
    /// ```no_run
    /// # async fn of(memory: verbs_channel::SharedMemory) -> verbs_channel::Result<()> {
    /// memory.deregister().await?;
    /// # Ok(())
    /// # }
    /// # fn blocking(memory: verbs_channel::SharedMemory) {
    /// # use std::time::Duration;
    /// match memory.deregister().wait(Duration::from_secs(1)) {
    ///     Some(result) => println!("{result:?}"),
    ///     None => println!("a slice or a clone is left"),
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Deregistration {
        let end = Arc::clone(&self.shared.end);
        Deregistration { end }
    }
}

/// Memory is to be registered in no domain.
const NO_DOMAIN: CoreError = CoreError::OutOfRange {
    what: "the number of protection domains",
    value: 0,
    min: 1,
    max: u64::MAX,
};

/// A region among those of a memory.
fn registration<R: Shareable>(region: Arc<R>) -> Registration {
    let ((remote, lkey), pd) = (region.memory(), PdTag::of(region.pd()));
    Registration {
        remote,
        lkey,
        pd,
        region: Some(region),
    }
}

impl SharedSlice {
    /// Gives it an owner, such as the block of a pool of the program's, in place of any that it has.
    ///
    /// The owner is dropped with the slice. An operation has the slice until the device is done with it, whatever the
    /// program does with its ticket or future; if the device cannot be made to let go of it, the owner is leaked. A
    /// [`Transfer`](crate::Transfer) has it until it is drained. A clone of the slice shares the owner.
    #[must_use]
    pub fn owned_by<O: Send + Sync + 'static>(self, owner: Arc<O>) -> Self {
        self.again(Some(owner))
    }

    /// The same part of the memory, with this owner.
    fn again(&self, owner: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let range = self.offset()..self.offset() + self.len();
        SharedMemory::part(self.kept(), range, owner)
    }

    fn kept(&self) -> &Arc<Shared> {
        let memory = self.buffer.shared().and_then(SharedPart::memory);
        // It is made of a part that has its memory, or of a buffer that is such a part; that is taken out when the
        // part is dropped.
        memory.expect("a slice keeps its memory")
    }

    /// Its region in this protection domain, and its range there: to be lent to a peer.
    pub(crate) fn lent(&self, pd: PdTag) -> Option<(Arc<dyn Registered>, Range<usize>)> {
        let mut registrations = self.kept().registrations.iter();
        let its = registrations.find(|each| each.pd == pd)?;
        let range = self.offset()..self.offset() + self.len();
        Some((Arc::clone(its.region.as_ref()?), range))
    }

    /// It is to be leaked: adds its memory.
    pub(crate) fn announce_leak(&self, leaked: &mut Leaked) {
        self.buffer.announce_leak(leaked);
    }

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
    pub fn memory(&self) -> SharedMemory {
        SharedMemory::of(Arc::clone(self.kept()))
    }

    /// Converts into an owned buffer, of which a [range](OwnedBuffer::set_range) can be used.
    #[must_use]
    pub(crate) fn into_owned(self) -> OwnedBuffer {
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
        self.again(self.buffer.shared().and_then(SharedPart::owner).cloned())
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
