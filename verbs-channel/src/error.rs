//! How operations end, and why they are refused.

use std::fmt;
use std::io;

use verbs_core::{EventType, PollError, PostError, Rejected, WorkError};

use crate::channel_id::ChannelId;
use crate::exchange::{ExchangeError, ExchangeFailure};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation that was posted did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The device reports that it failed.
    #[error("{}", failed(*queue))]
    Work {
        /// The queue that it was posted to.
        queue: Queue,
        /// How it failed.
        #[source]
        error: WorkError,
    },
    /// It ended with its channel, for this reason. The device does not touch its buffers any more.
    #[error("the operation was aborted")]
    Aborted(#[source] DownReason),
    /// The driver refused even to destroy the queue pair: **the device may still touch the
    /// buffers**, for as long as the process lives. Owned buffers have been leaked.
    #[error("the driver refused to destroy the queue pair: the device may still touch the buffers")]
    Stuck,
    /// Its result has been taken before.
    #[error("the result has been taken before")]
    Taken,
}

impl TransportError {
    /// For an operation whose outcome is unknown: the channel is gone.
    pub(crate) const CLOSED: Self = Self::Aborted(DownReason::Closed);
}

/// What has failed, as far as its queue tells.
const fn failed(queue: Queue) -> &'static str {
    match queue {
        Queue::Send => "a send, write, read or atomic failed",
        Queue::Receive => "a receive failed",
    }
}

/// Why a channel is down: it takes no more work until it is
/// [`reset`](crate::Channel::reset).
///
/// It is the first reason there was: what failed after that is a consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownReason {
    /// A work request failed, and took the queue pair to ERROR.
    #[error("{}", failed(*queue))]
    Work {
        /// The queue that it was posted to.
        queue: Queue,
        /// How it failed.
        #[source]
        error: WorkError,
    },
    /// The completion queue cannot be polled.
    #[error("the completion queue cannot be polled")]
    Poll(#[source] PollError),
    /// A post failed half-way: the driver had taken some of its requests.
    #[error("the driver took a part of a post and refused the rest")]
    Post(#[source] PostError),
    /// An operation on borrowed buffers was not done by its deadline.
    #[error("an operation was not done by its deadline")]
    TimedOut,
    /// A scope ended in an error or a panic with work left.
    #[error("a scope ended in an error or a panic with work left")]
    Abandoned,
    /// The device does not answer (its errno).
    #[error("the device does not answer (errno {0})")]
    Device(i32),
    /// The queue pair is in ERROR, and what was posted on it was not flushed within the channel's
    /// drain timeout: the device or the completion queue has failed.
    #[error("the queue pair is in IBV_QPS_ERR, and its requests were not flushed in time")]
    Unflushed,
    /// The device reports a fatal event.
    #[error("the device reports {0:?}")]
    Event(EventType),
    /// The peer has closed the connection, or its process has ended. Everything that it had sent by
    /// then has been delivered.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer's host does not answer any more: it died, or the network between is down.
    #[error("the peer's host does not answer any more")]
    PeerLost,
    /// Nothing announces its completions any more.
    #[error("nothing announces its completions any more")]
    Unannounced,
    /// The caller closed it.
    #[error("it was closed")]
    Closed,
}

/// Why an operation was not even posted. What was given comes back, in [`Rejected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue is full of work that is not done: wait for some of it, and try again.
    #[error("the {0} queue is full: wait for some of its operations first")]
    Backpressure(Queue),
    /// There is room in the queue, but none for one more result: too many operations have completed
    /// whose results were not taken. Take some of them; to wait for completions does not help.
    #[error("too many results were not taken: take some of them first")]
    Untaken,
    /// There is more in one batch than the queue can ever hold.
    #[error("{asked} work requests in one batch exceed the channel's {max}")]
    BatchTooLong {
        /// Work requests in the batch.
        asked: u32,
        /// The send queue's capacity.
        max: u32,
    },
    /// There is nothing in a batch, so nothing would complete.
    #[error("an empty batch")]
    EmptyBatch,
    /// There is a receive in a batch: it has a completion of its own.
    #[error("a receive in a batch: start it on its own")]
    ReceiveInBatch,
    /// The channel is down.
    #[error("the channel is down")]
    Down(#[source] DownReason),
    /// The message is longer than the port can send.
    #[error("a message of {len} bytes exceeds the port's max_msg_sz {max}: send it in parts")]
    MessageTooLong {
        /// Its length in bytes.
        len: u64,
        /// The longest message that the port can send, in bytes.
        max: u32,
    },
    /// The elements of a receive hold more bytes than a message can have.
    #[error("{len} bytes in one receive; at most {max} are possible", max = u32::MAX)]
    ReceiveTooLong {
        /// Bytes in the elements.
        len: u64,
    },
    /// There is more to send inline than the queue pair was made for.
    #[error("{len} bytes inline exceed the channel's max_inline_data {max}")]
    InlineTooLong {
        /// Bytes in the elements.
        len: u64,
        /// What the driver granted, in bytes.
        max: u32,
    },
    /// Memory that a peer may reach, or that other threads write to, is not sent inline: the
    /// processor would copy it while it changes.
    #[error("an element of a shared region cannot be sent inline")]
    SharedInline,
    /// There are more elements than the queue pair was made for.
    #[error("{count} elements in one request exceed the channel's {max}")]
    TooManyElements {
        /// Elements that are not empty.
        count: usize,
        /// What the driver granted.
        max: u32,
    },
    /// The peer serves no reads and no atomics, or this side was made to ask for none: one that is
    /// posted would never complete.
    #[error("the peers agreed on max_rd_atomic 0: no read and no atomic can be begun")]
    NoReads,
    /// The local elements hold more bytes than the remote region.
    #[error("{local} local bytes do not fit the remote region's {remote} bytes")]
    RemoteTooShort {
        /// Bytes in the list.
        local: u64,
        /// Bytes in the remote region.
        remote: u64,
    },
    /// A buffer's range is longer than one element can be.
    #[error("{len} bytes in one element; at most {max} are possible: set a shorter range", max = u32::MAX)]
    ElementTooLong {
        /// The range's length in bytes.
        len: u64,
    },
    /// An atomic needs exactly 8 bytes, at a remote address divisible by 8.
    #[error(
        "an atomic works on 8 bytes at an address divisible by 8, not on {len} bytes at {addr:#x}"
    )]
    Misaligned {
        /// The remote address.
        addr: u64,
        /// The local length in bytes.
        len: u64,
    },
    /// The driver refused.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// One of a channel's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queue {
    /// Of sends, writes, reads and atomics.
    Send,
    /// Of receives.
    Receive,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}

impl Refusal {
    /// Of a channel that is not there.
    pub(crate) const GONE: Self = Self::Down(DownReason::Closed);

    /// Whether the same will work once operations that are in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Backpressure(_))
    }

    pub(crate) fn from_core(error: &verbs_core::Error) -> Self {
        match *error {
            verbs_core::Error::RemoteTooShort { local, remote } => {
                Self::RemoteTooShort { local, remote }
            }
            verbs_core::Error::Misaligned { addr, len } => Self::Misaligned { addr, len },
            // The constructors of work requests refuse for no other reason.
            _ => Self::Misaligned { addr: 0, len: 0 },
        }
    }
}

/// Whatever can go wrong with a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation was not posted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An operation was posted and did not succeed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A ticket whose result has been taken, or of another channel.
    #[error("the ticket is not of this channel, or its result has been taken")]
    StaleTicket,
    /// A member that was prepared by another group.
    #[error("the channel was prepared by another group")]
    ForeignMember,
    /// The id is of a channel that was removed, or of another group's.
    #[error("there is no channel {0} in this group")]
    UnknownChannel(ChannelId),
    /// The group has as many channels as it was made for, with those that the driver would not let go.
    #[error("the group is full: it was made for {0} channels")]
    GroupFull(u32),
    /// The peers could not agree.
    #[error(transparent)]
    // In a box: results of operations are copied, and most are no such error.
    Exchange(Box<ExchangeFailure>),
    /// Something was not set up.
    #[error(transparent)]
    Core(#[from] verbs_core::Error),
}

impl Error {
    /// Whether the same will work once some work is done.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_backpressure())
    }
}

impl From<ExchangeFailure> for Error {
    fn from(failure: ExchangeFailure) -> Self {
        Self::Exchange(Box::new(failure))
    }
}

impl<T> From<Rejected<T, Refusal>> for Error {
    fn from(rejected: Rejected<T, Refusal>) -> Self {
        Self::Refused(rejected.into_error())
    }
}

impl<T> From<Rejected<T, Self>> for Error {
    fn from(rejected: Rejected<T, Self>) -> Self {
        rejected.into_error()
    }
}

impl From<ExchangeError> for Error {
    fn from(error: ExchangeError) -> Self {
        ExchangeFailure::from(error).into()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        Self::Core(rejected.into_error())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Core(core) => return core.into(),
            Error::Refused(refusal) if refusal.is_backpressure() => io::ErrorKind::WouldBlock,
            // As TCP has it.
            Error::Refused(Refusal::Down(DownReason::PeerClosed))
            | Error::Transport(TransportError::Aborted(DownReason::PeerClosed)) => {
                io::ErrorKind::ConnectionReset
            }
            Error::Refused(Refusal::Down(DownReason::PeerLost))
            | Error::Transport(TransportError::Aborted(DownReason::PeerLost)) => {
                io::ErrorKind::TimedOut
            }
            Error::Refused(Refusal::Down(_)) | Error::Transport(TransportError::Work { .. }) => {
                io::ErrorKind::ConnectionAborted
            }
            Error::Transport(TransportError::Taken) => io::ErrorKind::InvalidInput,
            Error::Transport(TransportError::Aborted(DownReason::TimedOut)) => {
                io::ErrorKind::TimedOut
            }
            Error::Transport(_) => io::ErrorKind::ConnectionAborted,
            Error::Refused(_)
            | Error::StaleTicket
            | Error::UnknownChannel(_)
            | Error::ForeignMember => io::ErrorKind::InvalidInput,
            Error::GroupFull(_) => io::ErrorKind::QuotaExceeded,
            Error::Exchange(ref failure) => failure.error.kind(),
        };
        Self::new(kind, error)
    }
}

/// How a scope failed.
#[derive(Debug, thiserror::Error)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a scope fails in its closure or after it"
)]
pub enum ScopeError<E> {
    /// The closure returned this error.
    #[error("the closure of a scope failed")]
    ClosureError(#[source] E),
    /// Work whose result the closure did not take has failed.
    #[error("an operation that was left to the scope did not succeed")]
    AutoPollError(#[source] TransportError),
}

impl<E: From<TransportError>> ScopeError<E> {
    /// Either failure, as the closure's kind of error: what a caller that tells no difference
    /// makes of a scope. See [`Channel::scope`](crate::Channel::scope) for an example.
    #[must_use]
    pub fn flatten(self) -> E {
        match self {
            Self::ClosureError(error) => error,
            Self::AutoPollError(error) => error.into(),
        }
    }
}

impl From<ScopeError<Self>> for Error {
    fn from(error: ScopeError<Self>) -> Self {
        error.flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: TransportError = TransportError::Aborted(DownReason::TimedOut);

    #[test]
    fn a_scope_that_failed_is_an_error_with_one_question_mark() {
        fn of<E, F: From<E>>(result: Result<(), E>) -> Result<(), F> {
            Ok(result?)
        }
        let ended: Result<(), Error> = of(Err(ScopeError::<Error>::AutoPollError(FAILED)));
        assert!(matches!(ended, Err(Error::Transport(FAILED))));
        let ended: Result<(), Error> = of(Err(ScopeError::ClosureError(Error::StaleTicket)));
        assert!(matches!(ended, Err(Error::StaleTicket)));
        let ended: Result<(), Box<dyn std::error::Error + Send + Sync>> =
            of(Err(ScopeError::<Error>::AutoPollError(FAILED)));
        assert!(ended.unwrap_err().is::<ScopeError<Error>>());
    }

    #[test]
    fn a_scope_of_boxed_errors_flattens_to_a_boxed_error() {
        type Boxed = Box<dyn std::error::Error + Send + Sync>;
        let failed: ScopeError<Boxed> = ScopeError::AutoPollError(FAILED);
        assert_eq!(
            *failed.flatten().downcast::<TransportError>().unwrap(),
            FAILED
        );
        let failed: ScopeError<Boxed> = ScopeError::ClosureError("no".into());
        assert_eq!(failed.flatten().to_string(), "no");
    }
}
