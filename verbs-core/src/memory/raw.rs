//! Memory regions over memory that they do not own.
#![expect(unsafe_code, reason = "registers memory it does not own")]

use std::ops::RangeBounds;
use std::ptr::NonNull;

use verbs_sys::ibv_mr;

use super::range::part;
use super::region::{EMPTY, reg_mr_iova};
use super::{AccessFlags, RemoteMemoryRegion, Sge};
use crate::destroy::Destroy;
use crate::error::Result;
use crate::handle::Handle;
use crate::macros::man;
use crate::protection_domain::ProtectionDomain;

/// A memory region (MR) over a raw pointer: `mmap`, huge pages, another language's memory.
///
/// [`ProtectionDomain::register_raw`] makes one. Dropping it deregisters the memory, which it does not
/// own.
#[doc = man!("ibv_reg_mr")]
#[derive(Debug)]
#[doc(alias = "ibv_mr")]
pub struct RawRegion {
    pub(super) mr: Handle<ibv_mr>,
    // The address of its first byte in work requests.
    iova: u64,
    len: usize,
    pub(super) pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Registers memory by address.
    ///
    /// # Safety
    ///
    /// - The memory from `ptr` to `ptr + len` stays mapped until [`dereg`](RawRegion::dereg) has
    ///   returned `Ok`, or until the region was dropped and no error was logged. If the driver fails
    ///   to deregister it, the memory stays mapped forever. Mapping other memory at the same address
    ///   is no substitute: the device would still use the old pages.
    /// - Unless `access` is empty, the memory is writable.
    /// - If `access` permits access by peers: no `&mut` to the memory is live while the region exists. If the
    ///   peer may write, no `&` to it is live either, and nothing in this program relies on the
    ///   memory's contents.
    ///
    /// The contract of each post covers what this side's own requests do with the memory: see
    /// [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr).
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(
        &self,
        ptr: NonNull<u8>,
        len: usize,
        access: AccessFlags,
    ) -> Result<RawRegion> {
        let iova = ptr.as_ptr().expose_provenance() as u64;
        // SAFETY: the caller's promise.
        unsafe { self.register_raw_iova(ptr, len, iova, access) }
    }

    /// Registers memory by address, and lets work requests and peers address it from `iova` on instead.
    ///
    /// With an `iova` of 0, for example, they address its bytes by their offset. Within a page, `iova` and
    /// `ptr` must be at the same place: if `ptr` is at the start of a page, `iova` must be a multiple of the
    /// page size.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](Self::register_raw). The elements of the region name these bytes by
    /// `iova` too.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr): the errno is `EINVAL` if `iova` and `ptr` are not at the same place
    /// within a page. [`Error::OutOfRange`](crate::Error::OutOfRange) if `iova + len` overflows.
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub unsafe fn register_raw_iova(
        &self,
        ptr: NonNull<u8>,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<RawRegion> {
        // Before anything is registered: a region that wraps could name no element.
        RemoteMemoryRegion::new(iova, len as u64, 0)?;
        let bytes = NonNull::slice_from_raw_parts(ptr, len);
        // SAFETY: the caller keeps the memory mapped.
        let mr = unsafe { reg_mr_iova(self, bytes, iova, access) }?;
        Ok(RawRegion {
            mr,
            iova,
            len,
            pd: self.clone(),
        })
    }
}

impl RawRegion {
    /// Takes over a region that another library registered, such as by `ibv_import_mr`.
    ///
    /// It is over `len` bytes from `ptr` on.
    ///
    /// # Safety
    ///
    /// - `mr` is alive, belongs to `pd`, and is over these bytes: requests name them by their address
    ///   (no `iova` of their own, not zero-based).
    /// - The contract of [`register_raw`](ProtectionDomain::register_raw), with the access that `mr`
    ///   was registered with.
    /// - Nothing but `destroy` deregisters it. If `destroy` does not: it stays alive until `destroy`
    ///   was called.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it belongs to another context,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for no bytes. `destroy` is dropped then without
    /// having been called.
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
        Ok(Self {
            // SAFETY: the caller hands it over, with what destroys it.
            mr: unsafe { Handle::foreign(mr, destroy) },
            iova: ptr.as_ptr().expose_provenance() as u64,
            len,
            pd: pd.clone(),
        })
    }

    /// A part of the region for a work request. The range counts bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the range ends after the region,
    /// [`Error::Limit`](crate::Error::Limit) if it has 4 GiB or more.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        let (start, len) = part(self.len, range)?;
        Ok(Sge::new(self.iova + start as u64, len, self.lkey()))
    }

    /// The address, length and key that a peer needs to access all of the region.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the address of its end overflows.
    pub fn remote(&self) -> Result<RemoteMemoryRegion> {
        RemoteMemoryRegion::new(self.iova, self.len as u64, self.rkey())
    }
}
