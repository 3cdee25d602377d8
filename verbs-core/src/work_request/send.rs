//! Sends.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use verbs_sys::IBV_WR_SEND;

use super::{WorkRequest, carries_data, work_request};
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

    /// A signalled send of an empty message.
    #[inline]
    #[must_use]
    pub fn empty() -> Self {
        Self::new::<Sge>(&mut [])
    }
}

work_request!(SendWorkRequest);
carries_data!(SendWorkRequest, IBV_WR_SEND_WITH_IMM, "", "");
