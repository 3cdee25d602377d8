//! Why a post was rejected, and how much of it.

use std::fmt;

use crate::errno::{io_error, post_errno};
use crate::error::{ErrorKind, kind_of};

/// A post that was rejected, from one of its requests on.
///
/// The requests before that one are posted: see [`posted`](Self::posted).
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
pub(super) enum Reason {
    Full,
    Inline,
    Elements,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
}

impl PostError {
    pub(super) fn new(queue: Queue, posted: usize, ret: i32, reason: (u64, u32, Reason)) -> Self {
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

    /// One of each reason, for the tests of this crate and of those above.
    #[doc(hidden)]
    #[must_use]
    pub fn examples() -> [Self; 4] {
        let of = |reason| Self::new(Queue::Send, 1, libc::EINVAL, (3, 2, reason));
        // Exhaustive: a reason that is new does not compile until it is listed here.
        match Reason::Full {
            Reason::Full | Reason::Inline | Reason::Elements | Reason::Unknown => {}
        }
        [
            Reason::Full,
            Reason::Inline,
            Reason::Elements,
            Reason::Unknown,
        ]
        .map(of)
    }

    /// How many of the requests, from the first on, the device has or may have. They may complete,
    /// and they hold their memory until then.
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

    /// The kind of trouble this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.reason {
            Reason::Full => ErrorKind::OutOfMemory,
            Reason::Inline | Reason::Elements => ErrorKind::InvalidInput,
            Reason::Unknown => kind_of(&io_error(self.errno.into())),
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, max, .. } = self;
        let verb = match self.queue {
            Queue::Send => "ibv_post_send",
            Queue::Receive => "ibv_post_recv",
        };
        let refused = u64::from(self.posted) + 1;
        write!(f, "{verb} refused request {refused} of the chain: ")?;
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
                write!(
                    f,
                    "{found} elements exceed this queue pair's {max} per request"
                )
            }
            Reason::Unknown => write!(f, "{}", io_error(self.errno.into())),
        }
    }
}

impl std::error::Error for PostError {}

crate::error_debug!(PostError);
