//! Memory regions that the program can borrow as slices.
#![expect(unsafe_code, reason = "owns an `ibv_mr` and the buffer under it")]
#![expect(
    clippy::disallowed_methods,
    reason = "the one place where registered memory becomes a slice"
)]

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use verbs_sys::{ibv_mr, ibv_pd, ibv_reg_mr_iova2};

use super::buffer::bytes;
use super::debug_regions::Known;
use super::range::{part, part_of_items};
use super::{AccessFlags, Buffer, GatherElement, ScatterElement};
use crate::codes::macros::man;
use crate::domain::ProtectionDomain;
use crate::error::causes::{self, Call, Memory};
use crate::error::{Error, ErrorChain, Rejected, Result};
use crate::ffi::handle::Handle;
use crate::ffi::{log, ret};

/// A memory region (MR) that only this program and its own work requests access.
///
/// It owns its buffer, or borrows it mutably, and derefs to a slice of the buffer's items: `[u8]` for
/// a `Vec<u8>`, `[f32]` for a `Vec<f32>`. [`as_bytes`](Self::as_bytes) and
/// [`as_bytes_mut`](Self::as_bytes_mut) return its bytes, whatever the type of the items. Peers
/// cannot access it: use a [`SharedRegion`](crate::SharedRegion) for that.
///
/// Dropping it deregisters the memory, and releases the buffer afterwards.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// # let pd = verbs_core::Context::first_active()?.alloc_pd()?;
/// let mut region = pd.reg_mr(vec![0_u8; 4096])?;
/// region[..5].copy_from_slice(b"hello");
/// let hello = region.gather_element(..5)?;
/// assert_eq!(&hello[..], b"hello");
///
/// let mut samples = pd.reg_mr(vec![0.0_f32; 1024])?;
/// samples[0] = 0.5;
/// let four_samples = samples.gather_element(..4)?;
/// assert_eq!(four_samples.length(), 16);
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_reg_mr")]
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion<B: Buffer> {
    registration: Registration<B>,
}

impl ProtectionDomain {
    /// Registers a buffer for local use: this side's work requests may read and write it.
    ///
    /// The items of the buffer can be of any [`Plain`](crate::memory::Plain) type. So `vec![0; 64]` is 64
    /// `i32`, which are 256 bytes: for 64 bytes, write `vec![0_u8; 64]`.
    ///
    /// The error carries the buffer. If the buffer is borrowed and `?` does not compile, drop the
    /// buffer first: `reg_mr(buffer).map_err(Rejected::into_error)?`.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`] if the buffer is empty.
    /// - [`Error::Memlock`] if the limit on locked memory (`ulimit -l`) is too low.
    /// - [`Error::Registration`] with the errno for anything else.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn reg_mr<B: Buffer>(&self, buffer: B) -> Result<MemoryRegion<B>, Rejected<B>> {
        self.reg_mr_with(buffer, AccessFlags::LOCAL_WRITE)
    }

    /// Registers a buffer for local use with these access flags, such as
    /// [`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING).
    ///
    /// Requests can write to the region only if the flags contain
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), which this function does not add.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr), and [`Error::RemoteAccess`] for flags that may give a peer access.
    pub fn reg_mr_with<B: Buffer>(
        &self,
        buffer: B,
        access: AccessFlags,
    ) -> Result<MemoryRegion<B>, Rejected<B>> {
        // Not a list of what is forbidden: newer flags may let peers in too, as a memory window does.
        if !AccessFlags::PRIVATE.contains(access) {
            return Err(Rejected::new(Error::RemoteAccess, buffer));
        }
        let registration = Registration::new(self, buffer, access)?;
        Ok(MemoryRegion { registration })
    }
}

impl<B: Buffer> MemoryRegion<B> {
    /// A part of the region to send from. The range counts items, as indexing does: bytes for a
    /// `Vec<u8>`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] if the range ends past the end of the region, [`Error::Limit`] if it
    /// has 4 GiB or more.
    pub fn gather_element(&self, range: impl RangeBounds<usize>) -> Result<GatherElement<'_>> {
        let (start, len) = self.registration.part_of_items(range)?;
        // SAFETY: the part is within the buffer, which `self` keeps; the borrow of `self` keeps Rust
        // from writing to it, and only a `ScatterElement` lets the device write.
        Ok(unsafe { GatherElement::new(start, len, self.lkey()) })
    }

    /// A part of the region to receive or read into. The range counts items, as indexing does.
    ///
    /// To have several parts at once, [split](ScatterElement::split_at_mut) the element.
    ///
    /// # Errors
    ///
    /// As [`gather_element`](Self::gather_element).
    pub fn scatter_element(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<ScatterElement<'_>> {
        let (start, len) = self.registration.part_of_items(range)?;
        // SAFETY: the part is within the buffer, which `self` keeps and which is borrowed mutably.
        Ok(unsafe { ScatterElement::new(start, len, self.lkey()) })
    }

    /// The region's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let Registration { ptr, len, .. } = self.registration;
        // SAFETY: `Buffer` keeps the memory valid, and a `Plain` number has no padding, so its
        // bytes are initialised. A post that writes here promises that no slice is live meanwhile.
        unsafe { from_raw_parts(ptr.as_ptr(), len) }
    }

    /// The region's bytes, to write to.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let Registration { ptr, len, .. } = self.registration;
        // SAFETY: `Buffer` keeps the memory valid, `self` is borrowed mutably, and any bytes are
        // valid numbers of a `Plain` type.
        unsafe { from_raw_parts_mut(ptr.as_ptr(), len) }
    }

    /// The key with which this side's work requests name the region.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.registration.lkey()
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.registration.pd
    }

    /// The `ibv_mr`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_mr_ptr(&self) -> *mut ibv_mr {
        self.registration.mr.as_ptr()
    }

    /// Deregisters the memory and returns the buffer.
    ///
    /// # Errors
    ///
    /// The errno. The device may still access the buffer, so it is leaked.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(self) -> Result<B> {
        self.registration.dereg()
    }
}

impl<B: Buffer> Deref for MemoryRegion<B> {
    type Target = [B::Item];

    fn deref(&self) -> &[B::Item] {
        let (first, count) = self.registration.items();
        // SAFETY: `Buffer` keeps the memory valid, and the items are `Plain`, so whatever the device
        // wrote is valid. Peers have no access, and the caller of a post that writes here promised
        // that no slice is live meanwhile.
        unsafe { from_raw_parts(first.as_ptr(), count) }
    }
}

impl<B: Buffer> DerefMut for MemoryRegion<B> {
    fn deref_mut(&mut self) -> &mut [B::Item] {
        let (first, count) = self.registration.items();
        // SAFETY: `Buffer` keeps the memory valid, the items are `Plain`, and `self` is borrowed
        // mutably.
        unsafe { from_raw_parts_mut(first.as_ptr(), count) }
    }
}

impl<B: Buffer> fmt::Debug for MemoryRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.debug(f, "MemoryRegion")
    }
}

/// A registered buffer and its registration, which ends first.
pub(super) struct Registration<B: Buffer> {
    mr: ManuallyDrop<Handle<ibv_mr>>,
    // Not a plain `B`: a `Box` or a `&mut` that is moved claims to be the only way to its bytes,
    // and `ptr` and the device are others.
    buffer: MaybeUninit<B>,
    ptr: NonNull<u8>,
    len: usize,
    // Copies, so that making an element reads no memory of the driver's.
    lkey: u32,
    rkey: u32,
    access: AccessFlags,
    known: Known,
    pd: ProtectionDomain,
}

impl<B: Buffer> Registration<B> {
    pub(super) fn new(
        pd: &ProtectionDomain,
        buffer: B,
        access: AccessFlags,
    ) -> Result<Self, Rejected<B>> {
        // The buffer moves first, and its address is taken after: moving a `Box` or a `&mut` ends
        // every pointer that was taken before. In a `MaybeUninit` it moves without that.
        let mut buffer = MaybeUninit::new(buffer);
        // SAFETY: `buffer` was initialised on the line above.
        let bytes = bytes(unsafe { buffer.assume_init_mut() });
        // SAFETY: `Buffer` guarantees it.
        let mr = match unsafe { reg_mr(pd, bytes, access) } {
            Ok(mr) => mr,
            Err(error) => {
                // SAFETY: `buffer` is still initialised, and was not registered.
                let buffer = unsafe { buffer.assume_init() };
                return Err(Rejected::new(error, buffer));
            }
        };
        // SAFETY: the handle keeps the `ibv_mr`.
        let ibv_mr { lkey, rkey, .. } = unsafe { &*mr.as_ptr() };
        Ok(Self {
            lkey: *lkey,
            rkey: *rkey,
            access,
            known: Known::new(pd, *lkey, bytes.addr().get() as u64, bytes.len()),
            mr: ManuallyDrop::new(mr),
            buffer,
            ptr: bytes.cast(),
            len: bytes.len(),
            pd: pd.clone(),
        })
    }

    pub(super) fn dereg(self) -> Result<B> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so neither is its `mr`.
        let mr = unsafe { ManuallyDrop::take(&mut this.mr) };
        // SAFETY: `this` is `ManuallyDrop`: its `pd` is neither used nor dropped after this read.
        let pd = unsafe { std::ptr::read(&raw const this.pd) };
        // SAFETY: `this` is `ManuallyDrop`: its `known` is neither used nor dropped after this
        // read.
        let known = unsafe { std::ptr::read(&raw const this.known) };
        let closed = pd.context().unless_removed(mr.close());
        drop((known, pd));
        closed?;
        // SAFETY: `buffer` was initialised by `new`, and `this` is not used again.
        Ok(unsafe { this.buffer.assume_init_read() })
    }

    pub(super) fn part(&self, range: impl RangeBounds<usize>) -> Result<(NonNull<u8>, u32)> {
        let (start, len) = part(self.len, range)?;
        // SAFETY: `part` checked that `start` is within the buffer or one past its end.
        Ok((unsafe { self.ptr.add(start) }, len))
    }

    /// A range of the buffer's items.
    fn part_of_items(&self, range: impl RangeBounds<usize>) -> Result<(NonNull<u8>, u32)> {
        let (start, len) = part_of_items(self.len, size_of::<B::Item>(), range)?;
        // SAFETY: it was checked that `start` is within the buffer or one past its end.
        Ok((unsafe { self.ptr.add(start) }, len))
    }

    /// The first item, and how many there are.
    fn items(&self) -> (NonNull<B::Item>, usize) {
        // Items without a size have no bytes, and are not registered.
        let count = self.len.checked_div(size_of::<B::Item>());
        (self.ptr.cast(), count.unwrap_or(0))
    }

    pub(super) const fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(super) const fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(super) const fn access(&self) -> AccessFlags {
        self.access
    }

    pub(super) const fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(super) fn mr_ptr(&self) -> *mut ibv_mr {
        self.mr.as_ptr()
    }

    pub(super) fn debug(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
            .field("addr", &self.ptr)
            .field("length", &self.len)
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish()
    }
}

impl<B: Buffer> Drop for Registration<B> {
    fn drop(&mut self) {
        // SAFETY: `self.mr` is not used again; `dereg` does not come here.
        let mr = unsafe { ManuallyDrop::take(&mut self.mr) };
        match self.pd.context().unless_removed(mr.close()) {
            // SAFETY: `buffer` was initialised by `new`, and nothing reaches the bytes any more.
            Ok(()) => unsafe { self.buffer.assume_init_drop() },
            // A child may not even have the pages of the buffer: see `fork_init`.
            Err(Error::OtherProcess { .. }) => {}
            Err(error) => {
                let len = self.len;
                let error = ErrorChain::new(&error);
                log::error(format_args!(
                    "leaked a memory region and its {len} bytes, which the device may still reach: {error}"
                ));
            }
        }
    }
}

// SAFETY: `ptr` is the bytes of `buffer`, and goes where `buffer` goes.
unsafe impl<B: Buffer + Send> Send for Registration<B> {}
// SAFETY: `ptr` is the bytes of `buffer`, and goes where `buffer` goes.
unsafe impl<B: Buffer + Sync> Sync for Registration<B> {}

/// Registers memory, named by its address.
///
/// # Safety
///
/// The memory is valid for reads and writes until the handle is closed or dropped.
pub(super) unsafe fn reg_mr(
    pd: &ProtectionDomain,
    bytes: NonNull<[u8]>,
    access: AccessFlags,
) -> Result<Handle<ibv_mr>> {
    // Posted addresses come back from the device's view of the world as integers.
    let iova = bytes.cast::<u8>().as_ptr().expose_provenance() as u64;
    // SAFETY: the caller promises that the memory stays valid until the handle is gone.
    unsafe { reg_mr_iova(pd, bytes, iova, access) }
}

/// Registers memory, named from `iova` on.
///
/// # Safety
///
/// As for [`reg_mr`].
pub(super) unsafe fn reg_mr_iova(
    pd: &ProtectionDomain,
    bytes: NonNull<[u8]>,
    iova: u64,
    access: AccessFlags,
) -> Result<Handle<ibv_mr>> {
    let addr = bytes.cast::<u8>().as_ptr();
    let (of, len): (*mut ibv_pd, usize) = (pd.as_ptr(), bytes.len());
    if bytes.is_empty() {
        return Err(EMPTY);
    }
    // SAFETY: the caller vouches for the memory; the PD is alive.
    let call = || unsafe { ibv_reg_mr_iova2(of, addr.cast(), len, iova, access.bits()) };
    let mr = ret::non_null("ibv_reg_mr", call).map_err(|error| {
        let start = Some(addr.addr() as u64);
        explain(error, pd, (start, len, iova), access)
    })?;
    // SAFETY: the region is new; the owner of the handle keeps the PD next to it.
    Ok(unsafe { Handle::new(mr) })
}

/// Nothing to register.
pub(super) const EMPTY: Error = Error::OutOfRange {
    what: "a memory region of length",
    value: 0,
    min: 1,
    max: u64::MAX,
};

/// Explains why memory was not registered. `start` is its address in this program.
pub(super) fn explain(
    error: Error,
    pd: &ProtectionDomain,
    (start, len, iova): (Option<u64>, usize, u64),
    access: AccessFlags,
) -> Error {
    let device = pd.context().query_device().ok();
    let memory = Memory {
        start,
        len: len as u64,
        iova,
        local_write: access.contains(AccessFlags::LOCAL_WRITE),
        remote_write: access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC),
        max_mr_size: device.map(|device| device.max_mr_size()),
        max_mr: device.map(|device| device.max_mr()),
    };
    causes::explain(error, &Call::Register(memory))
}
