//! Datagrams to send.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use std::fmt;

use verbs_sys::{IBV_WR_SEND, ibv_send_wr__bindgen_ty_2__bindgen_ty_3 as Ud};

use super::{Remote, SIGNALED, WorkRequest, as_any, carries_data};
use crate::memory::Gather;
use crate::path::{AddressHandle, DatagramEndpoint, QKey};

/// A datagram to send: its bytes, its path, and the queue pair that it is for.
///
/// It borrows the address handle until it is posted. The device needs the handle until the request
/// has completed: see [`DatagramQueuePair::post_send`](crate::datagram::DatagramQueuePair::post_send).
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_SEND")]
#[doc(alias = "IBV_WR_SEND_WITH_IMM")]
pub struct DatagramWorkRequest<'l> {
    any: WorkRequest<'l>,
}

impl<'l> DatagramWorkRequest<'l> {
    /// A signalled datagram of one element, or of the elements of an array, slice or vector in their
    /// order.
    ///
    /// It is for the queue pair `remote_qpn`, 24 bits, or 0xffffff for a multicast group. `remote_qkey` is
    /// the key of that queue pair, and `ah` the path to its port.
    ///
    /// Empty elements are moved to the end of the list and are not sent.
    #[inline]
    #[must_use]
    #[doc(alias = "remote_qkey")]
    pub fn new<E: Gather + 'l>(
        elements: &'l mut (impl AsMut<[E]> + ?Sized),
        ah: &'l AddressHandle,
        remote_qpn: u32,
        remote_qkey: QKey,
    ) -> Self {
        let mut any = WorkRequest::new(IBV_WR_SEND, elements.as_mut());
        let ud = Ud {
            ah: ah.as_ptr(),
            remote_qpn,
            remote_qkey: remote_qkey.get(),
        };
        any.wr.wr.write(Remote { ud });
        Self { any }
    }

    /// A signalled datagram to a peer's endpoint: as [`new`](Self::new), with its queue pair and key.
    ///
    /// `ah` is an [address handle](crate::datagram::DatagramQueuePair::address_handle) for the same endpoint.
    #[inline]
    #[must_use]
    pub fn to<E: Gather + 'l>(
        elements: &'l mut (impl AsMut<[E]> + ?Sized),
        ah: &'l AddressHandle,
        peer: &DatagramEndpoint,
    ) -> Self {
        Self::new(elements, ah, peer.qp_num(), peer.qkey())
    }

    /// The ID in its completion; 0 unless set.
    #[inline]
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.any.wr.wr_id = wr_id;
        self
    }

    /// Changes the ID in its completion, to post the request again.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.any.wr.wr_id = wr_id;
    }

    /// The request produces no completion if it succeeds. Its place in the send queue is free only when
    /// a later signalled request has completed.
    #[inline]
    #[must_use]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub const fn unsignaled(mut self) -> Self {
        self.any.wr.send_flags &= !SIGNALED;
        self
    }
}

as_any!(DatagramWorkRequest);
carries_data!(DatagramWorkRequest, IBV_WR_SEND_WITH_IMM, "", "");

impl fmt::Debug for DatagramWorkRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.any, f)
    }
}
