//! Requests that give and take back the keys of memory windows.

use verbs_sys::{
    __be32, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, ibv_send_wr__bindgen_ty_4 as BindOrTso,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1 as Bind,
};

use super::{WorkRequest, work_request};
use crate::error::{Error, Result};
use crate::memory::{MemoryWindow, MwBindInfo, MwType, RemoteMemoryRegion, Sge};

/// A bind: it gives a part of a region a key for the peer, that of a [`MemoryWindow`] of type 2.
///
/// Once its completion has been polled, the peer has access, by the queue pair on which this was posted only. Later
/// requests of this queue pair can announce the key already: the bind takes effect before they do. Connections of both
/// types ([`QpType`](crate::codes::QpType)) can bind. A bind that fails breaks the queue pair: if the window is bound
/// already, or the region does not permit this.
///
/// [`QueuePair::post`](crate::QueuePair::post) posts it, once. An example is on [`MemoryWindow`].
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_BIND_MW")]
pub struct BindWorkRequest<'l> {
    any: WorkRequest<'l>,
    remote: RemoteMemoryRegion,
}

impl<'l> BindWorkRequest<'l> {
    /// A signalled bind of a window to a part of a region.
    ///
    /// The window gets its next [`rkey`](MemoryWindow::rkey). If this request is not posted, set the one before
    /// [again](MemoryWindow::set_rkey).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the window is of type 1, or the part is empty: the device
    /// would break the queue pair. [`Error::ForeignParent`](crate::Error::ForeignParent) if the region is of another
    /// protection domain. The window keeps its key then.
    #[inline]
    #[doc(alias = "ibv_inc_rkey")]
    pub fn new(window: &'l mut MemoryWindow, info: &MwBindInfo<'l>) -> Result<Self> {
        window.must_be(MwType::Type2)?;
        let bind_info = info.for_window(window)?;
        if bind_info.length == 0 {
            return Err(Error::OutOfRange {
                what: "length",
                value: 0,
                min: 1,
                max: u64::MAX,
            });
        }
        let rkey = window.next_rkey();
        let mut any = WorkRequest::new::<Sge>(IBV_WR_BIND_MW, &mut []);
        let mw = window.as_ptr();
        let bind_mw = Bind {
            mw,
            rkey,
            bind_info,
        };
        any.wr.bind_mw_or_tso.write(BindOrTso { bind_mw });
        let remote = info.remote(rkey);
        Ok(Self { any, remote })
    }

    /// The address, length and key that the peer needs.
    #[must_use]
    pub const fn remote(&self) -> RemoteMemoryRegion {
        self.remote
    }
}

/// An invalidation: it takes back the key of a [`MemoryWindow`] of type 2.
///
/// Once its completion has been polled, no access of a peer with that key succeeds any more. It must be posted on the
/// queue pair on which the window was bound, and fails, which breaks the queue pair, if the window is not bound. An
/// example is on [`MemoryWindow`].
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_LOCAL_INV")]
pub struct InvalidateWorkRequest<'l> {
    any: WorkRequest<'l>,
}

impl InvalidateWorkRequest<'_> {
    /// A signalled invalidation of the window's key.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the window is of type 1.
    #[inline]
    pub fn new(window: &MemoryWindow) -> Result<Self> {
        window.must_be(MwType::Type2)?;
        let mut any = WorkRequest::new::<Sge>(IBV_WR_LOCAL_INV, &mut []);
        // C's union has the key in this machine's byte order here.
        any.wr.imm_data = __be32(window.rkey());
        Ok(Self { any })
    }
}

work_request!(BindWorkRequest);
work_request!(InvalidateWorkRequest);
