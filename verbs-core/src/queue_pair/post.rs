//! Posting: the half of the data path that takes work requests to the card.
//!
//! Nothing here allocates, locks, logs or formats, except to say why a post was refused.
#![expect(unsafe_code, reason = "hands work requests to the card")]

use std::fmt;
use std::ptr;

use verbs_sys::{IBV_SEND_INLINE, ibv_post_recv, ibv_post_send, ibv_recv_wr, ibv_send_wr};

use super::{PreparedQueuePair, Qp, QueuePair};
use crate::macros::man;
use crate::work_request::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};
use crate::{ErrorKind, error, ret};

impl QueuePair {
    /// Posts work requests to the send queue: of one kind or of several, as a chain with one
    /// doorbell. They are carried out in order.
    ///
    /// It returns at once. Each signalled request has a completion on the
    /// [`send_cq`](Self::send_cq) when it is done.
    ///
    /// # Errors
    ///
    /// [`PostError`], which tells how many requests the card owns all the same: those before the
    /// one that was refused.
    ///
    /// # Safety
    ///
    /// For each request, from now until its completion has been polled, or that of a later
    /// signalled request of this send queue, or the queue pair has been destroyed or reset:
    ///
    /// - what its elements name stays registered and allocated;
    /// - nobody writes to what it sends from, and nobody touches what it reads into, other than
    ///   memory of a region that peers may reach.
    ///
    /// Requests that are [`inline`](SendWorkRequest::inline) are copied: for them it need hold only
    /// during the call. So it is for the lists of elements, always.
    #[doc = man!("ibv_post_send")]
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post(&self, requests: &mut [WorkRequest<'_>]) -> Result<(), PostError> {
        let Some(head) = WorkRequest::chain(requests) else {
            return Ok(());
        };
        let mut bad: *mut ibv_send_wr = ptr::null_mut();
        // SAFETY: the queue pair is alive, `head` begins a chain of living requests that ends, and
        // the caller keeps their buffers.
        let ret = unsafe { ibv_post_send(self.as_ptr(), head, &raw mut bad) };
        // Some drivers return 0 and still refuse a request.
        if ret == 0 && bad.is_null() {
            return Ok(());
        }
        Err(self.qp.send_refused(ret, bad, requests))
    }

    /// Posts sends: [`post`](Self::post) for one kind.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub unsafe fn post_send(&self, requests: &mut [SendWorkRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.post(SendWorkRequest::as_any(requests)) }
    }

    /// Posts RDMA writes: [`post`](Self::post) for one kind.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub unsafe fn post_write(
        &self,
        requests: &mut [WriteWorkRequest<'_>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.post(WriteWorkRequest::as_any(requests)) }
    }

    /// Posts RDMA reads: [`post`](Self::post) for one kind.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub unsafe fn post_read(&self, requests: &mut [ReadWorkRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.post(ReadWorkRequest::as_any(requests)) }
    }

    /// Posts atomics: [`post`](Self::post) for one kind.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub unsafe fn post_atomic(
        &self,
        requests: &mut [AtomicWorkRequest<'_>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.post(AtomicWorkRequest::as_any(requests)) }
    }
}

macro_rules! receives {
    ($($qp:ident)*) => {$(
        impl $qp {
            /// Posts receives: one, or many as a chain with one doorbell.
            ///
            /// It returns at once. Each has a completion on the [`recv_cq`](Self::recv_cq) when the
            /// peer's message is in its buffers.
            ///
            /// # Errors
            ///
            /// [`PostError`], which tells how many receives the card owns all the same: those
            /// before the one that was refused.
            ///
            /// # Safety
            ///
            /// For each receive, from now until its completion has been polled, or the queue pair
            /// has been destroyed or reset:
            ///
            /// - what its elements name stays registered and allocated;
            /// - nobody touches it, other than memory of a region that peers may reach.
            #[doc = man!("ibv_post_recv")]
            #[doc(alias = "ibv_post_recv")]
            #[inline]
            pub unsafe fn post_receive(
                &self,
                requests: &mut [ReceiveWorkRequest<'_>],
            ) -> Result<(), PostError> {
                let Some(head) = ReceiveWorkRequest::chain(requests) else {
                    return Ok(());
                };
                let mut bad: *mut ibv_recv_wr = ptr::null_mut();
                // SAFETY: the queue pair is alive, `head` begins a chain of living requests that
                // ends, and the caller keeps their buffers.
                let ret = unsafe { ibv_post_recv(self.as_ptr(), head, &raw mut bad) };
                // Some drivers return 0 and still refuse a request.
                if ret == 0 && bad.is_null() {
                    return Ok(());
                }
                Err(self.qp.receive_refused(ret, bad, requests))
            }
        }
    )*};
}

receives! { PreparedQueuePair QueuePair }

impl Qp {
    #[cold]
    #[inline(never)]
    fn send_refused(
        &self,
        ret: i32,
        bad: *const ibv_send_wr,
        requests: &[WorkRequest<'_>],
    ) -> PostError {
        let posted = position(bad, requests);
        let errno = ret::post_errno(ret);
        let max_inline = u64::from(self.cap.max_inline_data);
        let (max_wr, max_sge) = (self.cap.max_send_wr, self.cap.max_send_sge);
        let reason = requests.get(posted).map_or(Reason::Unknown, |request| {
            let (count, flags) = (request.num_sge(), request.send_flags());
            let bytes = request.total_len();
            if flags & IBV_SEND_INLINE.0 != 0 && bytes > max_inline {
                Reason::Inline {
                    bytes,
                    max: max_inline,
                }
            } else {
                Reason::of_list(count, max_sge, errno, max_wr)
            }
        });
        PostError {
            verb: "ibv_post_send",
            posted,
            asked: requests.len(),
            errno,
            reason,
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_refused(
        &self,
        ret: i32,
        bad: *const ibv_recv_wr,
        requests: &[ReceiveWorkRequest<'_>],
    ) -> PostError {
        let posted = position(bad, requests);
        let errno = ret::post_errno(ret);
        let (max_wr, max_sge) = (self.cap.max_recv_wr, self.cap.max_recv_sge);
        let reason = requests.get(posted).map_or(Reason::Unknown, |request| {
            Reason::of_list(request.num_sge(), max_sge, errno, max_wr)
        });
        PostError {
            verb: "ibv_post_recv",
            posted,
            asked: requests.len(),
            errno,
            reason,
        }
    }
}

/// Where in the chain the request is that C calls bad: that many before it are the card's.
fn position<C, R>(bad: *const C, requests: &[R]) -> usize {
    const { assert!(size_of::<C>() == size_of::<R>()) };
    let found = requests
        .iter()
        .position(|request| ptr::from_ref(request).cast() == bad);
    found.unwrap_or(0)
}

/// A post that was refused, from one of its requests on.
///
/// The requests before that one are the card's: see [`posted`](Self::posted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    verb: &'static str,
    posted: usize,
    asked: usize,
    errno: Option<i32>,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Full { max: u32 },
    Inline { bytes: u64, max: u64 },
    Elements { count: u64, max: u32 },
    Unknown,
}

impl Reason {
    fn of_list(count: u64, max_sge: u32, errno: Option<i32>, max_wr: u32) -> Self {
        if count > max_sge.into() {
            Self::Elements {
                count,
                max: max_sge,
            }
        } else if errno == Some(libc::ENOMEM) {
            Self::Full { max: max_wr }
        } else {
            Self::Unknown
        }
    }
}

impl PostError {
    /// How many of the requests, from the first on, the card owns. Their completions will come.
    #[must_use]
    #[doc(alias = "bad_wr")]
    pub const fn posted(&self) -> usize {
        self.posted
    }

    /// Whether the queue was full: poll completions, and post again what is left.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.reason, Reason::Full { .. })
    }

    /// The driver's errno, if it gave one.
    #[must_use]
    pub const fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The kind of trouble this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.reason {
            Reason::Full { .. } => ErrorKind::OutOfMemory,
            Reason::Inline { .. } | Reason::Elements { .. } => ErrorKind::InvalidInput,
            Reason::Unknown => self.errno.map_or(ErrorKind::Other, |errno| {
                error::kind_of(&ret::io_error(errno))
            }),
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            posted,
            asked,
            ..
        } = self;
        let refused = posted + 1;
        write!(f, "{verb} refused request {refused} of {asked}: ")?;
        match self.reason {
            Reason::Full { max } => {
                write!(
                    f,
                    "the queue is full ({max} requests): poll completions first"
                )
            }
            Reason::Inline { bytes, max } => {
                write!(
                    f,
                    "{bytes} bytes inline exceed this queue pair's max_inline_data {max}"
                )
            }
            Reason::Elements { count, max } => {
                write!(
                    f,
                    "{count} elements exceed this queue pair's {max} per request"
                )
            }
            Reason::Unknown => write!(f, "{}", ret::io_error(self.errno.unwrap_or(0))),
        }
    }
}

impl std::error::Error for PostError {}
