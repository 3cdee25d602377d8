//! Sends.
#![expect(unsafe_code, reason = "is seen as a request of any kind")]

use verbs_sys::IBV_WR_SEND;

use super::{WorkRequest, carries_data, work_request};
use crate::memory::{Gather, Sge};

/// A send: its bytes go into the oldest receive that the peer has posted.
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
carries_data!(SendWorkRequest, IBV_WR_SEND_WITH_IMM);
