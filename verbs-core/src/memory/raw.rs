//! Memory regions over memory by address.
#![expect(unsafe_code, reason = "registers memory it does not own")]

use std::ptr::NonNull;

use verbs_sys::ibv_mr;

use super::external::Unowned;
use super::region::{EMPTY, reg_mr_iova};
use super::{AccessFlags, RemoteMemoryRegion};
use crate::codes::macros::man;
use crate::domain::ProtectionDomain;
use crate::error::Result;
use crate::ffi::Destroy;
use crate::ffi::handle::Handle;

/// A memory region (MR) over a raw pointer: `mmap`, huge pages, another language's memory.
///
/// `K` is the *keepalive*, which keeps the memory: for example a mapping that is unmapped when it is
/// dropped, an `Arc` of an allocator, or `()` if other means keep the memory. It is dropped after the
/// memory has been deregistered. It is leaked if the driver fails to deregister the memory, or if the
/// region is leaked.
///
/// Its registration is `unsafe`. After that, it can be used like a [`SharedRegion`](crate::SharedRegion):
/// the layers above use its [elements](Self::element) without further promises.
#[doc = man!("ibv_reg_mr")]
#[doc(alias = "ibv_mr")]
pub struct RawRegion<K = ()> {
    pub(super) registration: Unowned<K>,
}

impl ProtectionDomain {
    /// Registers memory by address, and takes the keepalive, which keeps that memory.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::ptr::NonNull;
    /// use verbs_core::{AccessFlags, Context};
    ///
    /// # let pd = Context::first_active()?.alloc_pd()?;
    /// // Any type that frees its memory when it is dropped: of a crate for `mmap`, for example.
    /// struct Pages(NonNull<u8>);
    /// # impl Pages { fn map(len: usize) -> Self { Self(NonNull::dangling()) } }
    ///
    /// let pages = Pages::map(1 << 21);
    /// let start = pages.0;
    /// // SAFETY: `Pages` unmaps the memory only when it is dropped, it is mapped for reads and writes,
    /// // it has bytes and nothing else, and nothing else in this program has its address.
    /// let region = unsafe { pd.register_raw(start, 1 << 21, AccessFlags::LOCAL_WRITE, pages) }?;
    /// let page = region.element(..4096)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// The following holds from this call until the region no longer exists. That is when
    /// [`dereg`](RawRegion::dereg) has returned `Ok`, or the region was dropped and no error was log. If
    /// the region is leaked, or the driver fails to deregister it, it holds forever.
    ///
    /// - The memory from `ptr` to `ptr + len` stays mapped while `keepalive` has not been dropped, and
    ///   nothing that can be done with a `&K` unmaps it. Mapping other memory at the same address is no
    ///   substitute: the device would still use the old pages. If `keepalive` is `()`, it stays mapped by
    ///   other means.
    /// - Unless `access` is empty, the memory is writable.
    /// - No `&mut` to the memory is live: safe code may let the device read it at any moment, and send it to
    ///   any peer.
    /// - If `access` has [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), or permits a peer to write: the device
    ///   may write any bytes to the memory at any moment. So no `&` to it is live, and nothing in this
    ///   program relies on its contents. It is accessed through raw pointers or atomics only, by code
    ///   for which all bytes are valid.
    ///
    /// This includes what this side's own requests do, however they are posted. So the rules of
    /// [`QueuePair::post`](crate::QueuePair::post) about references to the memory are promised here
    /// already.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr). The keepalive is dropped.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw<K: 'static>(
        &self,
        ptr: NonNull<u8>,
        len: usize,
        access: AccessFlags,
        keepalive: K,
    ) -> Result<RawRegion<K>> {
        let iova = ptr.as_ptr().expose_provenance() as u64;
        // SAFETY: the caller promises what `register_raw_iova` asks for.
        unsafe { self.register_raw_iova(ptr, len, iova, access, keepalive) }
    }

    /// Registers memory by address, and lets work requests and peers address it from `iova` on instead.
    ///
    /// With an `iova` of 0, for example, they address its bytes by their offset. Within a page, `iova` and
    /// `ptr` must be at the same place: if `ptr` is at the start of a page, `iova` must be a multiple of the
    /// page size.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](Self::register_raw). A bare [`Sge`](crate::memory::Sge) of the region names these
    /// bytes by `iova` too.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr): the errno is `EINVAL` if `iova` and `ptr` are not at the same place
    /// within a page. [`Error::OutOfRange`](crate::Error::OutOfRange) if `iova + len` overflows. The
    /// keepalive is dropped.
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
    pub unsafe fn register_raw_iova<K: 'static>(
        &self,
        ptr: NonNull<u8>,
        len: usize,
        iova: u64,
        access: AccessFlags,
        keepalive: K,
    ) -> Result<RawRegion<K>> {
        // Before anything is registered: a region that wraps could name no element.
        RemoteMemoryRegion::new(iova, len as u64, 0)?;
        let bytes = NonNull::slice_from_raw_parts(ptr, len);
        // SAFETY: the caller keeps the memory mapped.
        let mr = unsafe { reg_mr_iova(self, bytes, iova, access) }?;
        Ok(RawRegion {
            registration: Unowned::new(mr, iova, len, access, self, keepalive),
        })
    }
}

impl<K> RawRegion<K> {
    /// Its first byte; `None` if requests name it by another address, from an `iova` on.
    #[must_use]
    pub fn start(&self) -> Option<NonNull<u8>> {
        // SAFETY: the region keeps the `ibv_mr`, in which libibverbs has the address that was registered.
        let addr = unsafe { (*self.as_mr_ptr()).addr };
        let start = NonNull::<u8>::new(addr.cast())?;
        (start.as_ptr().addr() as u64 == self.remote().addr()).then_some(start)
    }
}

impl RawRegion {
    /// Takes over a region that another library registered, for example with `ibv_import_mr`.
    ///
    /// It is over `len` bytes from `ptr` on. `destroy` can own what keeps the memory.
    ///
    /// # Safety
    ///
    /// - `mr` is alive, belongs to `pd`, and is over these bytes: requests name them by their address
    ///   (no `iova` of their own, not zero-based).
    /// - The contract of [`register_raw`](ProtectionDomain::register_raw), with the access that `mr`
    ///   was registered with.
    /// - Nothing but `destroy` deregisters it. If `destroy` does not do so, it stays alive until
    ///   `destroy` has been called. `destroy` does not panic.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it belongs to another context,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if `len` is 0. `destroy` is dropped then
    /// without having been called.
    #[doc(alias = "ibv_import_mr")]
    pub unsafe fn from_raw(
        mr: NonNull<ibv_mr>,
        ptr: NonNull<u8>,
        len: usize,
        pd: &ProtectionDomain,
        destroy: Destroy<ibv_mr>,
    ) -> Result<Self> {
        // SAFETY: the caller has a living region, whose context is not changed.
        let context = unsafe { (*mr.as_ptr()).context };
        pd.context().must_be(context, "the memory region")?;
        if len == 0 {
            return Err(EMPTY);
        }
        // SAFETY: the caller hands it over, with what destroys it.
        let mr = unsafe { Handle::foreign(mr, destroy) };
        let addr = ptr.as_ptr().expose_provenance() as u64;
        Ok(Self {
            registration: Unowned::new(mr, addr, len, AccessFlags::empty(), pd, ()),
        })
    }
}
