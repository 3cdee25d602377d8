//! Work requests: what the device is to do, as plain values.
//!
//! A request borrows its list of elements. Their memory must stay valid as
//! [`QueuePair::post`](crate::QueuePair::post) requires. Requests have the layout of the C structs, so one
//! can be built once and posted many times, with only its `wr_id` changed:
//!
//! ```
//! use verbs_core::{SendWorkRequest, Sge};
//!
//! let mut element = Sge::new(0x1000, 64, 7);
//! let mut request = SendWorkRequest::new(&mut element).solicited();
//! for wr_id in 0..3 {
//!     request.set_wr_id(wr_id);
//!     // post it, poll its completion
//! }
//! ```
#![expect(unsafe_code, reason = "sees one kind of request as another")]

mod atomic;
mod rdma;
mod receive;
mod send;

use std::fmt;
use std::marker::PhantomData;
use std::{ptr, slice};

use verbs_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_send_wr,
    ibv_wr_opcode,
};

pub use atomic::AtomicWorkRequest;
pub use rdma::{ReadWorkRequest, WriteWorkRequest};
pub use receive::ReceiveWorkRequest;
pub use send::SendWorkRequest;

use crate::memory::{Element, compact, total_len};

/// A work request for the send queue, of any kind: for chains of several kinds.
///
/// Made by `into()` from [`SendWorkRequest`], [`WriteWorkRequest`], [`ReadWorkRequest`] or
/// [`AtomicWorkRequest`], and posted by [`QueuePair::post`](crate::QueuePair::post).
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
pub struct WorkRequest<'l> {
    wr: ibv_send_wr,
    list: PhantomData<&'l ()>,
}

impl<'l> WorkRequest<'l> {
    /// A signalled request over a list of elements; the empty ones are left out.
    #[inline]
    #[expect(clippy::field_reassign_with_default, reason = "measured, see below")]
    fn new<E: Element>(opcode: ibv_wr_opcode, list: &'l mut [E]) -> Self {
        let (sg_list, count) = compact(list);
        // Field by field into zeros: a struct update would build the zeros apart and copy them.
        let mut wr = ibv_send_wr::default();
        wr.sg_list = sg_list;
        wr.num_sge = i32::try_from(count).unwrap_or(i32::MAX);
        wr.opcode = opcode;
        wr.send_flags = SIGNALED;
        let list = PhantomData;
        Self { wr, list }
    }

    /// Changes the ID reported in its completion.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
    }

    /// The bytes in its list.
    #[inline]
    pub(crate) fn total_len(&self) -> u64 {
        // SAFETY: both are from `compact`, and `'l` keeps the list.
        unsafe { total_len(self.wr.sg_list, self.wr.num_sge.unsigned_abs() as usize) }
    }

    pub(crate) fn num_sge(&self) -> u64 {
        self.wr.num_sge.unsigned_abs().into()
    }

    pub(crate) const fn is_inline(&self) -> bool {
        self.wr.send_flags & INLINE != 0
    }

    /// Links the requests in their order, and returns the first.
    #[inline]
    pub(crate) fn chain(requests: &mut [Self]) -> Option<*mut ibv_send_wr> {
        chain(requests, |request, next| request.wr.next = next)
    }
}

impl AsMut<[Self]> for WorkRequest<'_> {
    #[inline]
    fn as_mut(&mut self) -> &mut [Self] {
        slice::from_mut(self)
    }
}

impl fmt::Debug for WorkRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkRequest")
            .field("wr_id", &self.wr.wr_id)
            .field("opcode", &self.wr.opcode)
            .field("send_flags", &self.wr.send_flags)
            .field("num_sge", &self.wr.num_sge)
            .finish_non_exhaustive()
    }
}

const _: () = assert!(size_of::<WorkRequest<'static>>() == size_of::<ibv_send_wr>());

/// Links requests in their order, each by `link` to the next as C sees it, and returns the first.
#[inline]
fn chain<R, C>(requests: &mut [R], link: impl Fn(&mut R, *mut C)) -> Option<*mut C> {
    const { assert!(size_of::<R>() == size_of::<C>()) };
    let len = requests.len();
    // Only through this one from here on: it is what C gets.
    let first = requests.as_mut_ptr();
    for index in 0..len {
        let next = index + 1;
        let next = if next < len {
            first.wrapping_add(next).cast()
        } else {
            ptr::null_mut()
        };
        // SAFETY: it is the request at `index`, and `requests` is borrowed mutably.
        let request = unsafe { &mut *first.wrapping_add(index) };
        link(request, next);
    }
    (len > 0).then_some(first.cast())
}

/// What every kind of request for the send queue has.
macro_rules! work_request {
    ($request:ident) => {
        impl<'l> $request<'l> {
            /// The ID reported in its completion; 0 unless set.
            #[inline]
            #[must_use]
            pub const fn wr_id(mut self, wr_id: u64) -> Self {
                self.any.wr.wr_id = wr_id;
                self
            }

            /// Changes the ID reported in its completion, to post the request again.
            #[inline]
            pub const fn set_wr_id(&mut self, wr_id: u64) {
                self.any.wr.wr_id = wr_id;
            }

            /// Starts only after earlier reads and atomics of this queue pair are done.
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_FENCE")]
            pub const fn fence(mut self) -> Self {
                self.any.wr.send_flags |= $crate::work_request::FENCE;
                self
            }

            /// Produces no completion on success. Its slot in the send queue becomes free only when a
            /// later signalled request completes.
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_SIGNALED")]
            pub const fn unsignaled(mut self) -> Self {
                self.any.wr.send_flags &= !$crate::work_request::SIGNALED;
                self
            }

            /// These requests, as requests of any kind.
            #[inline]
            pub(crate) fn as_any<'a>(
                requests: &'a mut [Self],
            ) -> &'a mut [$crate::work_request::WorkRequest<'l>] {
                let all =
                    std::ptr::from_mut(requests) as *mut [$crate::work_request::WorkRequest<'l>];
                // SAFETY: `repr(transparent)`, and the borrow goes on.
                unsafe { &mut *all }
            }
        }

        impl<'l> From<$request<'l>> for $crate::work_request::WorkRequest<'l> {
            #[inline]
            fn from(request: $request<'l>) -> Self {
                request.any
            }
        }

        impl AsMut<[Self]> for $request<'_> {
            #[inline]
            fn as_mut(&mut self) -> &mut [Self] {
                std::slice::from_mut(self)
            }
        }

        impl std::fmt::Debug for $request<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.any, f)
            }
        }
    };
}

/// What sends and writes have beside.
macro_rules! carries_data {
    ($request:ident, $with_imm:ident) => {
        impl $request<'_> {
            /// Sends 32 bits along, which the peer finds in its completion.
            #[inline]
            #[must_use]
            #[doc(alias = "imm_data")]
            pub const fn immediate(mut self, imm_data: u32) -> Self {
                self.any.wr.opcode = verbs_sys::$with_imm;
                self.any
                    .wr
                    .set_imm_data(verbs_sys::__be32(imm_data.to_be()));
                self
            }

            /// Copies the bytes into the request while it is posted. No `lkey` is needed, and the
            /// buffer can be reused when the post returns.
            ///
            /// All of its elements together have at most
            /// [`max_inline_data`](crate::QpCap::max_inline_data) bytes, in memory that this processor
            /// can read and that nothing writes to during the post. Drivers do not check this: see
            /// [`QueuePair::post`](crate::QueuePair::post).
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_INLINE")]
            pub const fn inline(mut self) -> Self {
                self.any.wr.send_flags |= $crate::work_request::INLINE;
                self
            }

            /// Causes an event at a peer that armed its queue for solicited completions only. A write
            /// needs [`immediate`](Self::immediate) too.
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_SOLICITED")]
            pub const fn solicited(mut self) -> Self {
                self.any.wr.send_flags |= $crate::work_request::SOLICITED;
                self
            }
        }
    };
}

const FENCE: u32 = IBV_SEND_FENCE.0;
const SIGNALED: u32 = IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = IBV_SEND_SOLICITED.0;
const INLINE: u32 = IBV_SEND_INLINE.0;

use {carries_data, work_request};
