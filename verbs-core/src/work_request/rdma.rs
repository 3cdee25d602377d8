//! RDMA writes and reads.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use verbs_sys::{
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma,
};

use super::{Remote, WorkRequest, as_any, carries_data, work_request};
use crate::error::{Error, Result};
use crate::memory::{Gather, RemoteMemoryRegion, Scatter};

/// An RDMA write: bytes of this side are copied to the peer's memory, without any action by the
/// peer.
///
/// On iWARP, it completes when TCP has the bytes. They are in the peer's memory when a read that was posted after it has
/// completed. On other networks its own completion is enough.
///
/// An example is on [`QueuePair::post`](crate::QueuePair::post).
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_RDMA_WRITE")]
#[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
pub struct WriteWorkRequest<'l> {
    any: WorkRequest<'l>,
}

/// An RDMA read: bytes of the peer's memory are copied to this side, without any action by the
/// peer.
///
/// An example is on [`QueuePair::post_read`](crate::QueuePair::post_read). A read never completes on a queue pair whose
/// [`max_rd_atomic`](crate::QueuePair::max_rd_atomic) is 0.
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_RDMA_READ")]
pub struct ReadWorkRequest<'l> {
    any: WorkRequest<'l>,
}

impl<'l> WriteWorkRequest<'l> {
    /// A signalled write of one element, or of the elements of an array, slice or vector in their
    /// order, to the start of `remote`.
    ///
    /// Empty elements are moved to the end of the list and are not sent.
    ///
    /// # Errors
    ///
    /// [`Error::RemoteTooShort`] if the elements have more bytes than `remote`.
    #[inline]
    pub fn new<E: Gather + 'l>(
        elements: &'l mut (impl AsMut<[E]> + ?Sized),
        remote: &RemoteMemoryRegion,
    ) -> Result<Self> {
        let any = WorkRequest::new(IBV_WR_RDMA_WRITE, elements.as_mut());
        Ok(Self {
            any: towards(any, remote)?,
        })
    }
}

impl<'l> ReadWorkRequest<'l> {
    /// A signalled read into one element, or into the elements of an array, slice or vector in their
    /// order, from the start of `remote`. The total length of the elements is the number of bytes
    /// that it reads.
    ///
    /// Empty elements are moved to the end of the list and receive nothing.
    ///
    /// # Errors
    ///
    /// [`Error::RemoteTooShort`] if the elements have more bytes than `remote`.
    #[inline]
    pub fn new<E: Scatter + 'l>(
        elements: &'l mut (impl AsMut<[E]> + ?Sized),
        remote: &RemoteMemoryRegion,
    ) -> Result<Self> {
        let any = WorkRequest::new(IBV_WR_RDMA_READ, elements.as_mut());
        Ok(Self {
            any: towards(any, remote)?,
        })
    }
}

#[inline]
fn towards<'l>(mut any: WorkRequest<'l>, remote: &RemoteMemoryRegion) -> Result<WorkRequest<'l>> {
    let (local, remote_len) = (any.total_len(), remote.len());
    if local > remote_len {
        return Err(Error::RemoteTooShort {
            local,
            remote: remote_len,
        });
    }
    let rdma = Rdma {
        remote_addr: remote.addr(),
        rkey: remote.rkey(),
    };
    any.wr.wr.write(Remote { rdma });
    Ok(any)
}

work_request!(WriteWorkRequest);
as_any!(WriteWorkRequest);
carries_data!(
    WriteWorkRequest,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    "With them the write completes a receive of the peer.",
    "Only a write with [`immediate`](Self::immediate) data does that."
);
work_request!(ReadWorkRequest);
as_any!(ReadWorkRequest);
