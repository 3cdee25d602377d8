//! Why a post was rejected, and how much of it.

use std::{fmt, mem, ptr};

use super::errno::{io_error, post_errno};
use super::{ErrorKind, kind_of};

/// A post that was rejected, at one of its requests.
///
/// The requests before that one are posted: see [`posted`](Self::posted). The others are not, and can be
/// posted again:
///
/// ```no_run
/// use verbs_core::{PollSlot, QueuePair, SendWorkRequest};
/// use verbs_core::error::PostError;
///
/// /// # Safety
/// ///
/// /// As for [`QueuePair::post_send`].
/// unsafe fn post_all(
///     qp: &QueuePair,
///     mut requests: &mut [SendWorkRequest<'_>],
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let mut slots = [const { PollSlot::new() }; 16];
///     // The caller's promise.
///     while let Err(error) = unsafe { qp.post_send(requests) } {
///         if !error.is_full() {
///             return Err(error.into());
///         }
///         requests = &mut requests[error.posted()..];
///         for completion in qp.send_cq().poll(&mut slots)? {
///             completion.result()?;
///         }
///     }
///     Ok(())
/// }
/// ```
// Two words: a result that comes back in registers costs the good path nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PostError {
    posted: u32,
    found: u32,
    max: u32,
    errno: u16,
    reason: Reason,
    queue: Queue,
}

const _: () = assert!(size_of::<Result<(), PostError>>() == 16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Full,
    Inline,
    Elements,
    TooLong,
    NoRequest,
    OtherDomain,
    Operation,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
    SharedReceive,
}

impl PostError {
    pub(crate) fn new(queue: Queue, posted: usize, ret: i32, reason: (u64, u32, Reason)) -> Self {
        let (found, max, reason) = reason;
        let errno = post_errno(ret).unwrap_or(0);
        Self {
            posted: u32::try_from(posted).unwrap_or(u32::MAX),
            found: u32::try_from(found).unwrap_or(u32::MAX),
            max,
            errno: u16::try_from(errno).unwrap_or(0),
            reason,
            queue,
        }
    }

    /// A datagram that no port sends.
    pub(crate) fn too_long(posted: usize, found: u64, max: u32) -> Self {
        Self::new(Queue::Send, posted, 0, (found, max, Reason::TooLong))
    }

    /// A request of memory that is registered in another protection domain. None was posted.
    #[cfg(debug_assertions)]
    #[cold]
    pub(crate) fn other_domain(queue: Queue, at: usize) -> Self {
        Self::new(queue, 0, 0, (at as u64 + 1, 0, Reason::OtherDomain))
    }

    /// How many requests, counted from the first, the device has or may have.
    ///
    /// They may complete, and they hold their memory until then.
    ///
    /// This is all of them if the driver did not name a rejected request (it left `bad_wr` null):
    /// soft-RoCE queues the requests first, and can fail after that.
    #[must_use]
    #[doc(alias = "bad_wr")]
    pub const fn posted(&self) -> usize {
        self.posted as usize
    }

    /// Whether the queue was full. If so, poll completions and post the remaining requests again.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.reason, Reason::Full)
    }

    /// The driver's errno, if it gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        (self.errno != 0).then(|| self.errno.into())
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.reason {
            Reason::Full => ErrorKind::OutOfMemory,
            Reason::Inline
            | Reason::Elements
            | Reason::TooLong
            | Reason::NoRequest
            | Reason::OtherDomain => ErrorKind::InvalidInput,
            Reason::Operation | Reason::Unknown => kind_of(&io_error(self.errno.into())),
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, max, .. } = self;
        let of = match self.queue {
            Queue::Send | Queue::Receive => "this queue pair",
            Queue::SharedReceive => "this shared receive queue",
        };
        let verb = match self.queue {
            Queue::Send => "ibv_post_send",
            Queue::Receive => "ibv_post_recv",
            Queue::SharedReceive => "ibv_post_srq_recv",
        };
        if self.reason == Reason::NoRequest {
            return write!(
                f,
                "a range up to request {found} was to be posted of a chain of {max}"
            );
        }
        if self.reason == Reason::OtherDomain {
            return write!(
                f,
                "the memory of request {found} is of another protection domain than {of}: register it in that domain; nothing was posted"
            );
        }
        let refused = u64::from(self.posted) + 1;
        write!(f, "{verb} rejected request {refused} of the chain: ")?;
        match self.reason {
            Reason::Full => {
                write!(
                    f,
                    "the queue is full ({max} requests): poll completions first"
                )
            }
            Reason::Inline => {
                write!(
                    f,
                    "{found} bytes inline exceed this queue pair's max_inline_data {max}"
                )
            }
            Reason::Elements => {
                write!(f, "{found} elements exceed {of}'s {max} per request")
            }
            Reason::TooLong => {
                write!(
                    f,
                    "{found} bytes exceed the {max} bytes of one packet, which is all that a datagram has"
                )
            }
            Reason::Operation => {
                write!(
                    f,
                    "{of} was not created for such requests: build it with their send_ops_flags"
                )
            }
            Reason::Unknown | Reason::NoRequest | Reason::OtherDomain => {
                write!(f, "{}", io_error(self.errno.into()))
            }
        }
    }
}

impl std::error::Error for PostError {}

crate::error_debug!(PostError);

/// Whether the whole chain was accepted. Some drivers return 0 and still refuse a request, so both
/// must be zero; one test for the two is cheaper than two.
#[inline]
pub(crate) fn accepted<C>(ret: i32, bad: *mut C) -> bool {
    ret.cast_unsigned() as usize | bad.addr() == 0
}

/// Index in the chain of C's bad request: the device owns the requests before it.
///
/// If a driver fails and names no request, it is unknown what it took. soft-RoCE fills its queue
/// first and rings the doorbell then: if that fails, all of them are in the queue. So this returns
/// all of them.
pub(crate) fn position<C, R>(bad: &mut *mut C, requests: &[R]) -> usize {
    const { assert!(size_of::<C>() == size_of::<R>()) };
    // Written to, so that the compiler passes it by reference: a post then loads it for its test
    // only, which is one instruction less.
    let bad = mem::replace(bad, ptr::null_mut());
    let found = requests
        .iter()
        .position(|request| ptr::eq(ptr::from_ref(request).cast(), bad));
    found.unwrap_or(requests.len())
}

/// The number found, the most that is allowed, and the limit it exceeds.
pub(crate) fn reason(ret: i32, count: u64, max_sge: u32, max_wr: u32) -> (u64, u32, Reason) {
    if count > max_sge.into() {
        (count, max_sge, Reason::Elements)
    } else if post_errno(ret) == Some(libc::ENOMEM) {
        (0, max_wr, Reason::Full)
    } else {
        (0, 0, Reason::Unknown)
    }
}
