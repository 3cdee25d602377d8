//! Memory regions over another device's memory.
#![expect(unsafe_code, reason = "owns an `ibv_mr` over a dmabuf")]

use std::ops::RangeBounds;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

use verbs_sys::{ibv_mr, ibv_reg_dmabuf_mr};

use super::range::part;
use super::region::{EMPTY, with_length};
use super::{AccessFlags, RemoteMemoryRegion, Sge};
use crate::destroy::Destroy;
use crate::error::Result;
use crate::handle::Handle;
use crate::macros::man;
use crate::protection_domain::ProtectionDomain;
use crate::ret;

/// A memory region (MR) over a dmabuf: memory of a GPU or another device.
///
/// It has no address in this program. Work requests name its bytes by `iova`, the address chosen at
/// registration.
#[doc = man!("ibv_reg_mr")]
#[derive(Debug)]
#[doc(alias = "ibv_mr")]
pub struct DmabufRegion {
    pub(super) mr: Handle<ibv_mr>,
    iova: u64,
    len: usize,
    pub(super) pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Registers `len` bytes of a dmabuf, from `offset` on.
    ///
    /// Work requests and peers address the first of these bytes as `iova`. Within a page, `iova` and
    /// `offset` must be at the same place.
    ///
    /// # Safety
    ///
    /// - If `access` permits a peer, or work requests of this side, to write: nothing relies on the
    ///   memory's contents while the region exists.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if `len` is 0, or `iova + len` overflows.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device, its driver or the kernel
    ///   cannot do this.
    /// - [`Error::Registration`](crate::Error::Registration) with the errno for anything else.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<DmabufRegion> {
        if len == 0 {
            return Err(EMPTY);
        }
        // Before anything is registered: a region that wraps could name no element.
        RemoteMemoryRegion::new(iova, len as u64, 0)?;
        let (pd, fd, flags) = (self.as_ptr(), fd.as_raw_fd(), access.as_int());
        // SAFETY: the PD and the fd are alive; the kernel keeps the dmabuf from here on.
        let mr = unsafe { ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, flags) };
        let mr = ret::non_null("ibv_reg_dmabuf_mr", mr).map_err(|error| with_length(error, len))?;
        Ok(DmabufRegion {
            // SAFETY: it is new, and the PD is kept next to it.
            mr: unsafe { Handle::new(mr) },
            iova,
            len,
            pd: self.clone(),
        })
    }
}

impl DmabufRegion {
    /// Takes over a region that another library registered, such as by `mlx5dv_reg_dmabuf_mr` or
    /// `ibv_reg_dm_mr`.
    ///
    /// Work requests address its `len` bytes from `iova` on.
    ///
    /// # Safety
    ///
    /// - `mr` is alive, belongs to `pd`, and has these bytes.
    /// - The contract of [`reg_dmabuf_mr`](ProtectionDomain::reg_dmabuf_mr), with the access that `mr`
    ///   was registered with.
    /// - Nothing but `destroy` deregisters it. If `destroy` does not: it stays alive until `destroy`
    ///   was called.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it belongs to another context,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for no bytes or an `iova` that wraps. `destroy`
    /// is dropped then without having been called.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub unsafe fn from_raw(
        mr: NonNull<ibv_mr>,
        iova: u64,
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
        RemoteMemoryRegion::new(iova, len as u64, 0)?;
        Ok(Self {
            // SAFETY: the caller hands it over, with what destroys it.
            mr: unsafe { Handle::foreign(mr, destroy) },
            iova,
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
    /// None at present: the range was checked when the region was registered.
    pub fn remote(&self) -> Result<RemoteMemoryRegion> {
        RemoteMemoryRegion::new(self.iova, self.len as u64, self.rkey())
    }

    /// The address of its first byte in work requests.
    #[must_use]
    pub const fn iova(&self) -> u64 {
        self.iova
    }
}
