//! Memory regions over another device's memory.
#![expect(unsafe_code, reason = "owns an `ibv_mr` over a dmabuf")]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

use verbs_sys::{ibv_mr, ibv_reg_dmabuf_mr};

use super::external::Unowned;
use super::region::{EMPTY, explain};
use super::{AccessFlags, RemoteMemoryRegion};
use crate::codes::macros::man;
use crate::domain::ProtectionDomain;
use crate::error::Result;
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

/// A memory region (MR) over a dmabuf: memory of a GPU or another device.
///
/// It has no address in this program. Work requests name its bytes by `iova`, the address chosen at
/// registration.
///
/// `K` is the *keepalive*, such as an allocation of the GPU, which keeps the memory in its present use. (The
/// kernel keeps the dmabuf itself.) The keepalive is dropped after the memory has been deregistered. It is
/// leaked if the driver fails to deregister the memory, or if the region is leaked.
///
/// Its registration is `unsafe`. After that, it can be used like a [`SharedRegion`](crate::SharedRegion):
/// the layers above use its [elements](Self::element) without further promises.
#[doc = man!("ibv_reg_mr")]
#[doc(alias = "ibv_mr")]
pub struct DmabufRegion<K = ()> {
    pub(super) registration: Unowned<K>,
}

impl ProtectionDomain {
    /// Registers `len` bytes of a dmabuf, from `offset` on, and takes the keepalive, which keeps the memory
    /// in its present use.
    ///
    /// Work requests and peers address the first of these bytes as `iova`. Within a page, `iova` and
    /// `offset` must be at the same place. `iova` need not be an address of this program. It may also be the
    /// address of other memory: the layers above reject [elements](DmabufRegion::element) on queue pairs
    /// of another protection domain.
    ///
    /// # Safety
    ///
    /// The following holds from this call until the region no longer exists. That is when
    /// [`dereg`](DmabufRegion::dereg) has returned `Ok`, or the region was dropped and no error was log. If
    /// the region is leaked, or the driver fails to deregister it, it holds forever.
    ///
    /// - While `keepalive` has not been dropped, the exporter uses the memory for nothing else: it is not
    ///   given to another allocation of the GPU.
    /// - No `&mut` to a mapping of the memory is live: safe code may let the device read it at any moment,
    ///   and send it to any peer.
    /// - If `access` has [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), or permits a peer to write: the device
    ///   may write any bytes to the memory at any moment. So no `&` to a mapping of it is live, and nothing,
    ///   here or on the GPU, relies on its contents for safety.
    ///
    /// # Errors
    ///
    /// The keepalive is dropped.
    ///
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if `len` is 0, or `iova + len` overflows.
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device, its driver or the kernel
    ///   cannot do this.
    /// - [`Error::Registration`](crate::Error::Registration) with the errno for anything else.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn reg_dmabuf_mr<K: 'static>(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
        keepalive: K,
    ) -> Result<DmabufRegion<K>> {
        if len == 0 {
            return Err(EMPTY);
        }
        // Before anything is registered: a region that wraps could name no element.
        RemoteMemoryRegion::new(iova, len as u64, 0)?;
        let (pd, fd, flags) = (self.as_ptr(), fd.as_raw_fd(), access.as_int());
        // SAFETY: the PD and the fd are alive; the kernel keeps the dmabuf from here on.
        let call = || unsafe { ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, flags) };
        let mr = ret::non_null("ibv_reg_dmabuf_mr", call)
            .map_err(|error| explain(error, self, (None, len, iova), access))?;
        // SAFETY: the object is new, and the PD is kept next to it.
        let mr = unsafe { Handle::new(mr) };
        Ok(DmabufRegion {
            registration: Unowned::new(mr, iova, len, access, self, keepalive),
        })
    }
}

impl DmabufRegion {
    /// Takes over a region that another library registered, for example with `mlx5dv_reg_dmabuf_mr`
    /// or `ibv_reg_dm_mr`.
    ///
    /// Work requests address its `len` bytes from `iova` on. `destroy` can own what keeps the
    /// memory.
    ///
    /// # Safety
    ///
    /// - `mr` is alive, belongs to `pd`, and is over `len` bytes from `iova` on.
    /// - The contract of [`reg_dmabuf_mr`](ProtectionDomain::reg_dmabuf_mr), with the access that `mr`
    ///   was registered with.
    /// - Nothing but `destroy` deregisters it. If `destroy` does not do so, it stays alive until
    ///   `destroy` has been called. `destroy` does not panic.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it belongs to another context,
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if `len` is 0 or `iova + len` overflows.
    /// `destroy` is dropped then without having been called.
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
        // SAFETY: the caller hands it over, with what destroys it.
        let mr = unsafe { Handle::foreign(mr, destroy) };
        Ok(Self {
            registration: Unowned::new(mr, iova, len, AccessFlags::empty(), pd, ()),
        })
    }
}

impl<K> DmabufRegion<K> {
    /// The address of its first byte in work requests.
    #[must_use]
    pub const fn iova(&self) -> u64 {
        self.registration.addr
    }
}
