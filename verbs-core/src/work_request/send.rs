//! Sends.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use verbs_sys::{__be32, IBV_WR_SEND, IBV_WR_SEND_WITH_INV};

use super::{WorkRequest, as_any, carries_data, work_request};
use crate::memory::{Gather, Sge};

/// A send: a message that goes into the oldest receive that the peer has posted.
///
/// A request can be built once and posted many times, with only its `wr_id` changed:
///
/// ```
/// use verbs_core::SendWorkRequest;
/// use verbs_core::memory::Sge;
///
/// let mut element = Sge::new(0x1000, 64, 7);
/// let mut request = SendWorkRequest::new(&mut element).solicited();
/// for wr_id in 0..3 {
///     request.set_wr_id(wr_id);
///     // post it, poll its completion
/// }
/// ```
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "IBV_WR_SEND")]
#[doc(alias = "IBV_WR_SEND_WITH_IMM")]
pub struct SendWorkRequest<'l> {
    any: WorkRequest<'l>,
}

impl<'l> SendWorkRequest<'l> {
    /// A signalled send of one element, or of the elements of an array, slice or vector in their
    /// order.
    ///
    /// Empty elements are moved to the end of the list and are not sent.
    #[inline]
    #[must_use]
    pub fn new<E: Gather + 'l>(elements: &'l mut (impl AsMut<[E]> + ?Sized)) -> Self {
        Self {
            any: WorkRequest::new(IBV_WR_SEND, elements.as_mut()),
        }
    }

    /// The send also takes back a key of the peer: that of one of its memory windows of type 2, bound on this
    /// connection, whose [`remote`](crate::work_request::BindWorkRequest::remote) it has sent.
    ///
    /// The peer finds the key in the completion of its receive: see
    /// [`invalidated_rkey`](crate::WorkSuccess::invalidated_rkey). If the key is none of such a window, the request
    /// fails, or whatever has the key is invalidated. It replaces [`immediate`](Self::immediate) data.
    #[inline]
    #[must_use]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub const fn invalidate(mut self, rkey: u32) -> Self {
        self.any.wr.opcode = IBV_WR_SEND_WITH_INV;
        // C's union has the key in this machine's byte order here.
        self.any.wr.imm_data = __be32(rkey);
        self
    }

    /// A signalled send of an empty message.
    #[inline]
    #[must_use]
    pub fn empty() -> Self {
        Self::new::<Sge>(&mut [])
    }
}

work_request!(SendWorkRequest);
as_any!(SendWorkRequest);
carries_data!(SendWorkRequest, IBV_WR_SEND_WITH_IMM, "", "");
