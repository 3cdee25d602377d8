//! The way that the message takes: a connection, or datagrams to one peer.
#![expect(unsafe_code, reason = "posts work requests")]

use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::PostError;
use verbs_core::path::{AddressHandle, DatagramEndpoint};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{GatherElement, QueuePair, ReceiveWorkRequest, SendWorkRequest};

/// The way to the peer.
pub(super) enum Link {
    Connected(QueuePair),
    Datagrams {
        // First, so that it is destroyed before the handle that its sends need.
        qp: DatagramQueuePair,
        handle: AddressHandle,
        peer: DatagramEndpoint,
    },
}

impl Link {
    /// Posts a send, inline if it is short enough.
    ///
    /// # Safety
    ///
    /// As [`QueuePair::post`]. The handle is kept here.
    pub(super) unsafe fn send(
        &self,
        mut element: GatherElement<'_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let len = element.len();
        let is_short = |max: u32| usize::try_from(max).is_ok_and(|max| len <= max);
        match self {
            Self::Connected(qp) => {
                let mut request = SendWorkRequest::new(&mut element).wr_id(wr_id);
                if is_short(qp.cap().max_inline_data) {
                    request = request.inline();
                }
                // SAFETY: the caller promises that the buffers stay until the request completes.
                unsafe { qp.post_send(&mut request) }
            }
            Self::Datagrams { qp, handle, peer } => {
                let request = DatagramWorkRequest::to(&mut element, handle, peer);
                let mut request = request.wr_id(wr_id);
                if is_short(qp.cap().max_inline_data) {
                    request = request.inline();
                }
                // SAFETY: the caller promises that the buffers stay until the request completes;
                // the handle goes after the queue pair.
                unsafe { qp.post_send(&mut request) }
            }
        }
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// As [`QueuePair::post_receive`].
    pub(super) unsafe fn receive(
        &self,
        request: &mut ReceiveWorkRequest<'_>,
    ) -> Result<(), PostError> {
        match self {
            // SAFETY: the caller promises that the buffers stay until the receive completes.
            Self::Connected(qp) => unsafe { qp.post_receive(request) },
            // SAFETY: the caller promises that the buffers stay until the receive completes.
            Self::Datagrams { qp, .. } => unsafe { qp.post_receive(request) },
        }
    }

    pub(super) fn close(self) -> verbs_core::Result<()> {
        match self {
            Self::Connected(qp) => qp.close(),
            Self::Datagrams { qp, handle, .. } => {
                qp.close()?;
                handle.close()
            }
        }
    }
}
