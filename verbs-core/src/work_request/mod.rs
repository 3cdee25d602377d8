//! Work requests: what the device is to do, as plain values.
//!
//! A request borrows its list of elements. Their memory must stay valid as
//! [`QueuePair::post`](crate::QueuePair::post) requires. Requests have the layout of the C structs, so one
//! can be built once and posted many times, with only its `wr_id` changed.
//!
//! A [`RequestChain`] owns its requests and elements instead, and links them once: for requests that
//! are posted often, and for transfers of many requests.
#![expect(unsafe_code, reason = "sees one kind of request as another")]

mod atomic;
pub(crate) mod chain;
mod datagram;
pub(crate) mod extended;
mod rdma;
mod receive;
mod send;
mod window;

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::{ptr, slice};

use verbs_sys::{
    __be32, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2 as Remote, ibv_send_wr__bindgen_ty_3, ibv_send_wr__bindgen_ty_4,
    ibv_sge, ibv_wr_opcode,
};

pub use atomic::AtomicWorkRequest;
pub use chain::{ChainRequest, RequestChain};
pub use datagram::DatagramWorkRequest;
pub use rdma::{ReadWorkRequest, WriteWorkRequest};
pub use receive::ReceiveWorkRequest;
pub use send::SendWorkRequest;
pub use window::{BindWorkRequest, InvalidateWorkRequest};

pub(crate) use chain::Block;
#[cfg(debug_assertions)]
pub(crate) use chain::Linked;

use crate::memory::{Element, compact, total_len};

/// A work request for the send queue, of any kind: for chains of several kinds.
///
/// `into()` makes one from a [`SendWorkRequest`], [`WriteWorkRequest`], [`ReadWorkRequest`],
/// [`AtomicWorkRequest`], [`BindWorkRequest`] or [`InvalidateWorkRequest`]. [`QueuePair::post`](crate::QueuePair::post) posts them, and has an example.
#[repr(transparent)]
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "ibv_wr_opcode")]
pub struct WorkRequest<'l> {
    wr: SendWr,
    list: PhantomData<&'l ()>,
}

/// An `ibv_send_wr` as far as its opcode needs it.
///
/// A send needs 40 of the 128 bytes. The others stay uninitialised: they are fields of other opcodes
/// and transports (`ibv_post_send(3)`). Drivers may copy them (siw copies `wr.rdma` of a send), and
/// ignore the copy.
#[repr(C)]
struct SendWr {
    wr_id: u64,
    next: *mut ibv_send_wr,
    sg_list: *mut ibv_sge,
    num_sge: c_int,
    opcode: ibv_wr_opcode,
    send_flags: c_uint,
    // Always initialised: rxe copies it for every opcode.
    imm_data: __be32,
    // For writes, reads, atomics and datagrams.
    wr: MaybeUninit<Remote>,
    // For XRC, which this crate does not post.
    qp_type: MaybeUninit<ibv_send_wr__bindgen_ty_3>,
    // For memory windows; this crate does not post TSO.
    bind_mw_or_tso: MaybeUninit<ibv_send_wr__bindgen_ty_4>,
}

const _: () = {
    assert!(size_of::<SendWr>() == size_of::<ibv_send_wr>());
    assert!(align_of::<SendWr>() == align_of::<ibv_send_wr>());
    assert!(offset_of!(SendWr, wr_id) == offset_of!(ibv_send_wr, wr_id));
    assert!(offset_of!(SendWr, next) == offset_of!(ibv_send_wr, next));
    assert!(offset_of!(SendWr, sg_list) == offset_of!(ibv_send_wr, sg_list));
    assert!(offset_of!(SendWr, num_sge) == offset_of!(ibv_send_wr, num_sge));
    assert!(offset_of!(SendWr, opcode) == offset_of!(ibv_send_wr, opcode));
    assert!(offset_of!(SendWr, send_flags) == offset_of!(ibv_send_wr, send_flags));
    assert!(offset_of!(SendWr, imm_data) == offset_of!(ibv_send_wr, __bindgen_anon_1));
    assert!(offset_of!(SendWr, wr) == offset_of!(ibv_send_wr, wr));
    assert!(offset_of!(SendWr, bind_mw_or_tso) == offset_of!(ibv_send_wr, __bindgen_anon_2));
};

impl<'l> WorkRequest<'l> {
    /// A signalled request over a list of elements; the empty ones are left out.
    #[inline]
    fn new<E: Element>(opcode: ibv_wr_opcode, list: &'l mut [E]) -> Self {
        let (sg_list, count) = compact(list);
        let wr = SendWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list,
            num_sge: i32::try_from(count).unwrap_or(i32::MAX),
            opcode,
            send_flags: SIGNALED,
            imm_data: __be32(0),
            wr: MaybeUninit::uninit(),
            qp_type: MaybeUninit::uninit(),
            bind_mw_or_tso: MaybeUninit::uninit(),
        };
        let list = PhantomData;
        Self { wr, list }
    }

    /// Changes the ID in its completion, to post the request again.
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
        link(requests, |request, next| request.wr.next = next)
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

/// Links requests in their order, each by `set_next` to the next as C sees it, and returns the first.
#[inline]
fn link<R, C>(requests: &mut [R], set_next: impl Fn(&mut R, *mut C)) -> Option<*mut C> {
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
        // SAFETY: `request` is the request at `index`, and `requests` is borrowed mutably.
        let request = unsafe { &mut *first.wrapping_add(index) };
        set_next(request, next);
    }
    (len > 0).then_some(first.cast())
}

/// Methods of every kind of request for the send queue.
macro_rules! work_request {
    ($request:ident) => {
        impl<'l> $request<'l> {
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

            /// The device starts the request only after earlier reads and atomics of this queue pair
            /// are done.
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_FENCE")]
            pub const fn fence(mut self) -> Self {
                self.any.wr.send_flags |= $crate::work_request::FENCE;
                self
            }

            /// The request produces no completion if it succeeds. Its place in the send queue is free
            /// only when a later signalled request has completed.
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_SIGNALED")]
            pub const fn unsignaled(mut self) -> Self {
                self.any.wr.send_flags &= !$crate::work_request::SIGNALED;
                self
            }
        }

        impl<'l> From<$request<'l>> for $crate::work_request::WorkRequest<'l> {
            #[inline]
            fn from(request: $request<'l>) -> Self {
                request.any
            }
        }

        impl std::fmt::Debug for $request<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.any, f)
            }
        }
    };
}

/// A kind of requests that can be posted without others.
macro_rules! as_any {
    ($request:ident) => {
        impl<'l> $request<'l> {
            /// These requests, as requests of any kind. Only a queue pair for datagrams may get datagrams, and it gets
            /// no others: those have no handle.
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

        impl AsMut<[Self]> for $request<'_> {
            #[inline]
            fn as_mut(&mut self) -> &mut [Self] {
                std::slice::from_mut(self)
            }
        }
    };
}

/// Further methods of sends and writes, with the parts of their docs that differ.
macro_rules! carries_data {
    ($request:ident, $with_imm:ident, $immediate:literal, $solicited:literal) => {
        impl $request<'_> {
            /// Adds 32 bits of immediate data, which the peer finds in its completion: see
            /// [`imm_data`](crate::WorkSuccess::imm_data).
            #[doc = $immediate]
            #[inline]
            #[must_use]
            #[doc(alias = "imm_data")]
            pub const fn immediate(mut self, imm_data: u32) -> Self {
                self.any.wr.opcode = verbs_sys::$with_imm;
                self.any.wr.imm_data = verbs_sys::__be32(imm_data.to_be());
                self
            }

            /// The bytes are copied into the send queue during the post. No `lkey` is needed, and the
            /// buffer can be reused when the post has returned.
            ///
            /// Its elements must have at most [`max_inline_data`](crate::queue_pair::QpCap::max_inline_data) bytes
            /// in total, in memory that this processor can read and that nothing writes to during the
            /// post. Drivers do not check this: see [`QueuePair::post`](crate::QueuePair::post).
            #[inline]
            #[must_use]
            #[doc(alias = "IBV_SEND_INLINE")]
            pub const fn inline(mut self) -> Self {
                self.any.wr.send_flags |= $crate::work_request::INLINE;
                self
            }

            /// It causes an event at the peer, even if the peer armed its queue for solicited
            /// completions only.
            #[doc = $solicited]
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
pub(crate) const INLINE: u32 = IBV_SEND_INLINE.0;

use {as_any, carries_data, work_request};
