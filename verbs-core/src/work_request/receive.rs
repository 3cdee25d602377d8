//! Receives.

use std::fmt;
use std::marker::PhantomData;
use std::{ptr, slice};

use verbs_sys::ibv_recv_wr;

use super::link;
use crate::memory::{Scatter, compact};

/// A receive: room for one message from the peer.
///
/// A peer's write with immediate data completes a receive too, but its bytes are not in the
/// receive's buffers: they are where the peer wrote them.
#[repr(transparent)]
#[doc(alias = "ibv_recv_wr")]
pub struct ReceiveWorkRequest<'l> {
    wr: ibv_recv_wr,
    list: PhantomData<&'l ()>,
}

impl<'l> ReceiveWorkRequest<'l> {
    /// A receive into one element, or into the elements of an array, slice or vector in their order.
    ///
    /// Empty elements are moved to the end of the list and receive nothing.
    #[inline]
    #[must_use]
    pub fn new<E: Scatter + 'l>(elements: &'l mut (impl AsMut<[E]> + ?Sized)) -> Self {
        let (sg_list, count) = compact(elements.as_mut());
        Self {
            wr: ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list,
                num_sge: i32::try_from(count).unwrap_or(i32::MAX),
            },
            list: PhantomData,
        }
    }

    /// A receive with no room: for an empty message, or for a write with immediate.
    #[inline]
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            wr: ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            },
            list: PhantomData,
        }
    }

    /// The ID in its completion; 0 unless set.
    #[inline]
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr.wr_id = wr_id;
        self
    }

    /// Changes the ID in its completion, to post the request again.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
    }

    pub(crate) fn num_sge(&self) -> u64 {
        self.wr.num_sge.unsigned_abs().into()
    }

    /// Links the requests in their order, and returns the first.
    #[inline]
    pub(crate) fn chain(requests: &mut [Self]) -> Option<*mut ibv_recv_wr> {
        link(requests, |request, next| request.wr.next = next)
    }
}

impl AsMut<[Self]> for ReceiveWorkRequest<'_> {
    #[inline]
    fn as_mut(&mut self) -> &mut [Self] {
        slice::from_mut(self)
    }
}

impl fmt::Debug for ReceiveWorkRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveWorkRequest")
            .field("wr_id", &self.wr.wr_id)
            .field("num_sge", &self.wr.num_sge)
            .finish_non_exhaustive()
    }
}

const _: () = assert!(size_of::<ReceiveWorkRequest<'static>>() == size_of::<ibv_recv_wr>());
