//! Memory windows: keys of parts of a region that a request gives out, and another takes back.
#![expect(unsafe_code, reason = "owns an `ibv_mw`")]

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::ptr::NonNull;

use verbs_sys::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_alloc_mw, ibv_inc_rkey, ibv_mr, ibv_mw, ibv_mw_bind_info,
};

use super::range::indices;
use super::{AccessFlags, RemoteMemoryRegion};
use crate::codes::macros::man;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

/// A memory window (MW): a key for a part of a region, given to a peer by one request, and taken back by another.
///
/// A region's key lives as long as the region, and a registration is expensive. A window is allocated once. It is
/// *bound* to a part of a region with a new key, which the peer can use once the completion of the bind has been
/// polled. When the completion of its invalidation has been polled, no access with that key succeeds any more, and the
/// window can be bound again, with the next key: 255 other keys come before one returns.
///
/// | type | bound by | taken back by | the key is good on |
/// |---|---|---|---|
/// | [1](MwType::Type1) | [`QueuePair::bind_mw`](crate::QueuePair::bind_mw) | the next bind, which may be to an empty part | all queue pairs of the protection domain |
/// | [2](MwType::Type2) | [`BindWorkRequest`](crate::work_request::BindWorkRequest) | [`InvalidateWorkRequest`](crate::work_request::InvalidateWorkRequest), or the peer's send with [`invalidate`](crate::SendWorkRequest::invalidate) | the queue pair it was bound on |
///
/// Not all devices have windows: see [`DeviceCapFlags`](crate::codes::DeviceCapFlags). Soft-RoCE checks the bounds of
/// the region only, not those of the window.
///
/// A region has to stay registered while a window is bound to it: drop the window first, which also ends its key.
/// soft-RoCE does not deregister such a region, which is leaked then.
///
/// ```no_run
/// use verbs_core::memory::MemoryWindow;
/// use verbs_core::work_request::{BindWorkRequest, InvalidateWorkRequest};
/// use verbs_core::{AccessFlags, QueuePair, RemoteMemoryRegion, SharedRegion};
///
/// /// Memory for the peer, once the completion with `wr_id` has been polled.
/// fn lend(
///     qp: &QueuePair,
///     window: &mut MemoryWindow,
///     region: &SharedRegion<Vec<u8>>,
///     wr_id: u64,
/// ) -> verbs_core::Result<RemoteMemoryRegion> {
///     let page = region.mw_bind_info(4096..8192, AccessFlags::REMOTE_WRITE)?;
///     let bind = BindWorkRequest::new(window, &page)?.wr_id(wr_id);
///     let remote = bind.remote();
///     // Sound: the request has no memory of this program, and no other layer polls this queue.
///     unsafe { qp.post(&mut [bind.into()])? };
///     Ok(remote)
/// }
///
/// /// The peer has no access any more, once the completion with `wr_id` has been polled.
/// fn take_back(qp: &QueuePair, window: &MemoryWindow, wr_id: u64) -> verbs_core::Result<()> {
///     let invalidate = InvalidateWorkRequest::new(window)?.wr_id(wr_id);
///     // Sound: as the bind.
///     unsafe { qp.post(&mut [invalidate.into()])? };
///     Ok(())
/// }
/// ```
#[doc = man!("ibv_alloc_mw")]
#[derive(Debug)]
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    mw: Handle<ibv_mw>,
    mw_type: MwType,
    // The key of the last bind. C's field has the one before until the next bind, whose post reads it.
    rkey: u32,
    pd: ProtectionDomain,
}

/// The two types of [`MemoryWindow`], which are bound and taken back in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// Bound by a call, for all queue pairs of its protection domain.
    #[doc(alias = "IBV_MW_TYPE_1")]
    Type1,
    /// Bound by a work request, for its queue pair only.
    #[doc(alias = "IBV_MW_TYPE_2")]
    Type2,
}

impl ProtectionDomain {
    /// Allocates a memory window, which is not bound yet.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no windows. Otherwise the errno, `EINVAL` or `EOPNOTSUPP` on most
    /// devices that have no windows of this type.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow> {
        let of_c = match mw_type {
            MwType::Type1 => IBV_MW_TYPE_1,
            MwType::Type2 => IBV_MW_TYPE_2,
        };
        // SAFETY: the domain is alive, and kept next to the window.
        let mw = ret::non_null("ibv_alloc_mw", || unsafe {
            ibv_alloc_mw(self.as_ptr(), of_c)
        })?;
        // SAFETY: the object is new.
        Ok(MemoryWindow::new(unsafe { Handle::new(mw) }, mw_type, self))
    }
}

impl MemoryWindow {
    fn new(mw: Handle<ibv_mw>, mw_type: MwType, pd: &ProtectionDomain) -> Self {
        // SAFETY: the handle keeps the window, and nothing changes the field during this call.
        let rkey = unsafe { (*mw.as_ptr()).rkey };
        let pd = pd.clone();
        Self {
            mw,
            mw_type,
            rkey,
            pd,
        }
    }

    /// Takes over a window that another library allocated.
    ///
    /// # Safety
    ///
    /// - `mw` is alive, belongs to `pd`, and its `rkey` is its key.
    /// - Nothing but `destroy` deallocates it. If `destroy` does not do so, it stays alive until `destroy` has been
    ///   called. `destroy` does not panic.
    /// - It is bound by this type only.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context, [`Error::OutOfRange`] if its type is unknown.
    /// `destroy` is dropped then without having been called.
    pub unsafe fn from_raw(
        mw: NonNull<ibv_mw>,
        pd: &ProtectionDomain,
        destroy: Destroy<ibv_mw>,
    ) -> Result<Self> {
        // SAFETY: the caller has a living window, which nothing changes during this call.
        let ibv_mw { context, type_, .. } = unsafe { mw.as_ref() };
        pd.context().must_be(*context, "the memory window")?;
        let mw_type = match *type_ {
            IBV_MW_TYPE_1 => MwType::Type1,
            IBV_MW_TYPE_2 => MwType::Type2,
            unknown => return Err(wrong_type(unknown.0, 1, 2)),
        };
        // SAFETY: the caller hands it over, with what destroys it.
        let mw = unsafe { Handle::foreign(mw, destroy) };
        Ok(Self::new(mw, mw_type, pd))
    }

    /// Its type.
    #[must_use]
    pub const fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key of the last bind.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Sets the key that the device has for a window of type 2, if the last bind was not posted, or failed.
    ///
    /// It is the one from before that [`BindWorkRequest`](crate::work_request::BindWorkRequest). Otherwise the next
    /// bind fails on some devices. Only the last 8 bits are taken: the others are the window's for life.
    pub const fn set_rkey(&mut self, rkey: u32) {
        self.rkey = self.rkey & !0xff | rkey & 0xff;
    }

    /// Whether the device checks that a peer's access is within the window, and not only within its region.
    ///
    /// All devices do that by their specification; soft-RoCE (the kernel's `rdma_rxe`) does not. Its
    /// invalidation does not wait for accesses that have begun: a packet whose key was checked before is carried out after the
    /// completion. It is recognised by the attribute `parent` in its [directory](crate::Device::sysfs_path), which no
    /// other driver has.
    #[must_use]
    pub fn checks_bounds(&self) -> bool {
        let device = self.pd.context().device();
        !device.sysfs_path().join("parent").exists()
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The `ibv_mw`, for verbs this crate does not wrap. It lives as long as `self` does.
    ///
    /// Its field `rkey` is not [`rkey`](Self::rkey) if it is of type 2.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }

    /// Deallocates the window and returns the driver's error, which a drop would only log. This also ends its key.
    ///
    /// # Errors
    ///
    /// The errno. The window is leaked, and may still be bound.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn close(self) -> Result<()> {
        self.pd.context().unless_removed(self.mw.close())
    }

    /// The next key of a window of type 2, which has it from now on; C's field has the one before.
    pub(crate) fn next_rkey(&mut self) -> u32 {
        // SAFETY: the handle keeps the window, and no post reads the field: each borrows the window.
        unsafe { (*self.mw.as_ptr()).rkey = self.rkey };
        self.rkey = ibv_inc_rkey(self.rkey);
        self.rkey
    }

    /// The key that `ibv_bind_mw` has given a window of type 1.
    pub(crate) fn bound(&mut self) -> u32 {
        // SAFETY: the handle keeps the window, whose field is not changed during this call.
        self.rkey = unsafe { (*self.mw.as_ptr()).rkey };
        self.rkey
    }

    pub(crate) fn must_be(&self, mw_type: MwType) -> Result<()> {
        if self.mw_type == mw_type {
            return Ok(());
        }
        let number = |of: MwType| u32::from(of == MwType::Type2) + 1;
        let wanted = number(mw_type).into();
        Err(wrong_type(number(self.mw_type), wanted, wanted))
    }
}

fn wrong_type(value: u32, min: u64, max: u64) -> Error {
    Error::OutOfRange {
        what: "mw_type",
        value: value.into(),
        min,
        max,
    }
}

/// A part of a region that a [`MemoryWindow`] can be bound to, and the access that the window permits.
///
/// [`SharedRegion::mw_bind_info`](crate::SharedRegion::mw_bind_info) and the methods of the same name make one.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct MwBindInfo<'r> {
    mr: *mut ibv_mr,
    part: RemoteMemoryRegion,
    access: AccessFlags,
    pd: &'r ProtectionDomain,
    region: PhantomData<&'r ()>,
}

impl<'r> MwBindInfo<'r> {
    /// A range of a region, which lives for `'r`.
    pub(super) fn new(
        mr: *mut ibv_mr,
        region: &RemoteMemoryRegion,
        pd: &'r ProtectionDomain,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<Self> {
        let len = usize::try_from(region.len()).unwrap_or(usize::MAX);
        let (start, end) = indices(len, range);
        Ok(Self {
            mr,
            part: region.slice(start as u64..end as u64)?,
            access: access & AccessFlags::REMOTE,
            pd,
            region: PhantomData,
        })
    }

    /// As C has it, for a window of this domain.
    pub(crate) fn for_window(&self, window: &MemoryWindow) -> Result<ibv_mw_bind_info> {
        if !self.pd.is(&window.pd) {
            return Err(Error::ForeignParent {
                child: "the memory window",
                parent: "protection domain than the region",
            });
        }
        Ok(ibv_mw_bind_info {
            mr: self.mr,
            addr: self.part.addr(),
            length: self.part.len(),
            mw_access_flags: self.access.bits(),
        })
    }

    /// The part, by this key.
    pub(crate) const fn remote(&self, rkey: u32) -> RemoteMemoryRegion {
        RemoteMemoryRegion::of_memory(self.part.addr(), self.part.len(), rkey)
    }
}

/// The method of each region that windows can be bound to.
macro_rules! mw_bind_info {
    () => {
        /// A part of the region to bind a [`MemoryWindow`](crate::memory::MemoryWindow) to. The range counts bytes.
        ///
        /// `access` is what the window permits the peer: the flags of [`REMOTE`](AccessFlags::REMOTE), others have no
        /// effect. The region needs [`MW_BIND`](AccessFlags::MW_BIND), and for writes and atomics
        /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE); without them, the bind fails in its completion. It needs no
        /// remote access itself, and without it, peers have access by windows only.
        ///
        /// # Errors
        ///
        /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the range ends past the end of the region.
        #[doc(alias = "ibv_mw_bind_info")]
        pub fn mw_bind_info(
            &self,
            range: impl RangeBounds<usize>,
            access: AccessFlags,
        ) -> Result<$crate::memory::MwBindInfo<'_>> {
            $crate::memory::MwBindInfo::new(
                self.as_mr_ptr(),
                &self.remote(),
                self.pd(),
                range,
                access,
            )
        }
    };
}

pub(super) use mw_bind_info;
