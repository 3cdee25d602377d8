//! The errors of channels: why operations fail, and why requests are rejected.

use std::fmt;
use std::io;

use verbs_core::{EventType, PollError, PostError, Rejected, WorkError};

use crate::channel_id::ChannelId;
use crate::exchange::{ExchangeError, ExchangeFailure};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation that was posted did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The device reports that the operation failed.
    #[error("{}", failed(*queue))]
    Work {
        /// The queue that the request was posted to.
        queue: Queue,
        /// How the operation failed.
        #[source]
        error: WorkError,
    },
    /// The channel went down before the operation completed, for this reason. The device does not
    /// access the buffers any more.
    #[error("the operation was aborted")]
    Aborted(#[source] DownReason),
    /// The driver refused to destroy the queue pair: **the device may still access the buffers**
    /// until the process ends. Owned buffers have been leaked.
    #[error(
        "the driver refused to destroy the queue pair: the device may still access the buffers"
    )]
    Stuck,
    /// The result was taken before.
    #[error("the result was taken before")]
    Taken,
}

verbs_core::error_debug!(TransportError { Work, Aborted(reason), Stuck, Taken });

impl TransportError {
    /// Why the channel went down, if that aborted the operation: see [`Error::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<&DownReason> {
        match self {
            Self::Aborted(reason) => Some(reason),
            _ => None,
        }
    }

    /// For an operation whose outcome is unknown: the channel is gone.
    pub(crate) const CLOSED: Self = Self::Aborted(DownReason::Closed);
}

/// The failed operation, as precisely as its queue determines it.
const fn failed(queue: Queue) -> &'static str {
    match queue {
        Queue::Send => "a send, write, read or atomic failed",
        Queue::Receive => "a receive failed",
    }
}

/// Why a channel is down.
///
/// A channel that is down rejects all requests; [`reset`](crate::Channel::reset) prepares a new one.
/// This is its first failure: later failures are consequences.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownReason {
    /// An operation failed, which moved the queue pair to ERROR.
    #[error("{}", failed(*queue))]
    Work {
        /// The queue that the request was posted to.
        queue: Queue,
        /// How the operation failed.
        #[source]
        error: WorkError,
    },
    /// The completion queue cannot be polled.
    #[error("the completion queue cannot be polled")]
    Poll(#[source] PollError),
    /// The driver failed within a post, after it had taken some of its requests.
    #[error("the driver took only a part of a post")]
    Post(#[source] PostError),
    /// An operation on borrowed buffers did not complete before its deadline.
    #[error("an operation did not complete before its deadline")]
    TimedOut,
    /// A scope ended in an error or a panic while operations were in flight, or a
    /// [manual scope](crate::Channel::manual_scope) left some in flight.
    #[error("a scope failed or left operations in flight")]
    Abandoned,
    /// The device does not answer: the errno of the query.
    #[error("the device does not answer (errno {0})")]
    Device(i32),
    /// The queue pair is in ERROR, and its requests were not flushed within the channel's drain
    /// timeout: the device or the completion queue has failed.
    #[error("the queue pair is in IBV_QPS_ERR, and its requests were not flushed in time")]
    Unflushed,
    /// The device reports a fatal event.
    #[error("the device reports {0:?}")]
    Event(EventType),
    /// The peer closed the connection, or its process ended. Everything that it had sent was delivered
    /// first.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer's host does not answer any more: it died, or the network to it is down.
    #[error("the peer's host does not answer any more")]
    PeerLost,
    /// The notifier that waits for completions has failed.
    #[error("the notifier that waits for completions has failed")]
    NotifierFailed,
    /// The caller closed the channel.
    #[error("it was closed")]
    Closed,
}

impl DownReason {
    /// Whether the peer closed the connection in order, or its process ended: a server's clients
    /// leave like this.
    #[must_use]
    pub const fn is_peer_closed(&self) -> bool {
        matches!(self, Self::PeerClosed)
    }
}

verbs_core::error_debug!(DownReason {
    Work,
    Poll,
    Post,
    TimedOut,
    Abandoned,
    Device,
    Unflushed,
    Event,
    PeerClosed,
    PeerLost,
    NotifierFailed,
    Closed,
});

/// Why a request was rejected: it was not posted. [`Rejected`] hands it back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The queue is full: wait for one of its operations, and try again.
    #[error("the {0} queue is full: wait for some of its operations first")]
    Backpressure(Queue),
    /// There is room in the queue, but no slot: too many operations have completed whose results
    /// were not taken. Take some of them; waiting for completions does not help.
    #[error("too many results were not taken: take some of them first")]
    Untaken,
    /// The batch has more requests than the queue can hold.
    #[error("{asked} requests in one batch exceed the {max} that the send queue can hold")]
    BatchTooLong {
        /// Requests in the batch.
        asked: u32,
        /// The send queue's capacity.
        max: u32,
    },
    /// The batch is empty, so nothing would complete.
    #[error("the batch is empty")]
    EmptyBatch,
    /// The batch contains a receive, which has a completion of its own.
    #[error("the batch contains a receive: start it on its own")]
    ReceiveInBatch,
    /// The channel is down.
    #[error("the channel is down")]
    Down(#[source] DownReason),
    /// The message is longer than the port can send.
    #[error("a message of {len} bytes exceeds the port's max_msg_sz {max}: send it in parts")]
    MessageTooLong {
        /// The length of the message in bytes.
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
    /// The elements hold more bytes than the queue pair can send inline.
    #[error("{len} bytes inline exceed the channel's max_inline_data {max}")]
    InlineTooLong {
        /// Bytes in the elements.
        len: u64,
        /// The most bytes that the driver granted.
        max: u32,
    },
    /// An element of a shared region cannot be sent inline: a peer or another thread may write to it
    /// while the processor copies it.
    #[error("an element of a shared region cannot be sent inline")]
    SharedInline,
    /// The request has more elements than the queue pair was created for.
    #[error("{count} elements in one request exceed the channel's {max}")]
    TooManyElements {
        /// Elements that are not empty.
        count: usize,
        /// The most elements that the driver granted.
        max: u32,
    },
    /// The peer serves no reads and no atomics, or this side is set to begin none. Such a request
    /// would never complete.
    #[error("the peers agreed on max_rd_atomic 0: no read and no atomic can be begun")]
    NoReads,
    /// The local elements hold more bytes than the remote region.
    #[error("{local} local bytes do not fit the remote region's {remote} bytes")]
    RemoteTooShort {
        /// Bytes in the local elements.
        local: u64,
        /// Bytes in the remote region.
        remote: u64,
    },
    /// The buffer's range is longer than one element can be.
    #[error("{len} bytes in one element; at most {max} are possible: set a shorter range", max = u32::MAX)]
    ElementTooLong {
        /// The length of the range in bytes.
        len: u64,
    },
    /// An atomic needs exactly 8 bytes, at a remote address that is divisible by 8.
    #[error(
        "an atomic works on 8 bytes at an address divisible by 8, not on {len} bytes at {addr:#x}"
    )]
    Misaligned {
        /// The remote address.
        addr: u64,
        /// The local length in bytes.
        len: u64,
    },
    /// The driver rejected the post.
    #[error(transparent)]
    Post(#[from] PostError),
}

verbs_core::error_debug!(RejectReason {
    Backpressure, Untaken, BatchTooLong, EmptyBatch, ReceiveInBatch, Down(reason), MessageTooLong,
    ReceiveTooLong, InlineTooLong, SharedInline, TooManyElements, NoReads, RemoteTooShort,
    ElementTooLong, Misaligned, Post,
});

/// One of a channel's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queue {
    /// The queue of sends, writes, reads and atomics.
    Send,
    /// The queue of receives.
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

impl RejectReason {
    /// For a channel that does not exist any more.
    pub(crate) const GONE: Self = Self::Down(DownReason::Closed);

    /// Whether the same request can be posted once some operations in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Backpressure(_))
    }

    /// Why the channel is down, if the request was rejected because of that: see
    /// [`Error::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<&DownReason> {
        match self {
            Self::Down(reason) => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn from_core(error: &verbs_core::Error) -> Self {
        match *error {
            verbs_core::Error::RemoteTooShort { local, remote } => {
                Self::RemoteTooShort { local, remote }
            }
            verbs_core::Error::Misaligned { addr, len } => Self::Misaligned { addr, len },
            // The constructors of work requests have no other errors.
            _ => Self::Misaligned { addr: 0, len: 0 },
        }
    }
}

/// An error of a channel or a group.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request was rejected: it was not posted.
    #[error(transparent)]
    Rejected(#[from] RejectReason),
    /// An operation was posted and did not succeed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The ticket belongs to another channel, or its result was taken before.
    #[error("the ticket belongs to another channel, or its result was taken before")]
    StaleTicket,
    /// The channel was prepared by another group.
    #[error("the channel was prepared by another group")]
    ForeignMember,
    /// The channel was removed, or belongs to another group.
    #[error("there is no channel {0} in this group")]
    UnknownChannel(ChannelId),
    /// The group has as many channels as it was created for. Channels whose queue pair the driver
    /// refused to destroy count, too.
    #[error("the group is full: its max_channels is {0}")]
    GroupFull(u32),
    /// The peers could not connect.
    #[error(transparent)]
    // In a box: results of operations are copied, and few of them are this error.
    Exchange(Box<ExchangeFailure>),
    /// An object could not be created or configured.
    #[error(transparent)]
    Core(#[from] verbs_core::Error),
}

verbs_core::error_debug!(Error {
    Rejected(reason), Transport(error), StaleTicket, ForeignMember, UnknownChannel, GroupFull,
    Exchange(failure), Core(error),
});

impl Error {
    /// Whether the same request can be posted once some operations in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Rejected(reason) if reason.is_backpressure())
    }

    /// Why the channel is down, if that is what this error is about: the operation was aborted by it,
    /// or the request was rejected because of it. `None` for the failure that took the channel down.
    ///
    /// A server tells with it a client that left from one that failed:
    ///
    /// ```no_run
    /// use verbs_channel::verbs_core::MemoryRegion;
    /// use verbs_channel::{Channel, DownReason, Error};
    ///
    /// fn serve(channel: &mut Channel, inbox: &mut MemoryRegion<Vec<u8>>) -> Result<(), Error> {
    ///     loop {
    ///         match channel.receive(inbox.scatter_element(..)?) {
    ///             Ok(received) => println!("{} bytes", received.byte_len()),
    ///             Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => {
    ///                 return Ok(());
    ///             }
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub const fn down_reason(&self) -> Option<&DownReason> {
        match self {
            Self::Rejected(reason) => reason.down_reason(),
            Self::Transport(error) => error.down_reason(),
            _ => None,
        }
    }
}

impl From<ExchangeFailure> for Error {
    fn from(failure: ExchangeFailure) -> Self {
        Self::Exchange(Box::new(failure))
    }
}

impl<T> From<Rejected<T, RejectReason>> for Error {
    fn from(rejected: Rejected<T, RejectReason>) -> Self {
        Self::Rejected(rejected.into_error())
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
            Error::Rejected(reason) if reason.is_backpressure() => io::ErrorKind::WouldBlock,
            // The same kinds as with TCP.
            Error::Rejected(RejectReason::Down(DownReason::PeerClosed))
            | Error::Transport(TransportError::Aborted(DownReason::PeerClosed)) => {
                io::ErrorKind::ConnectionReset
            }
            Error::Rejected(RejectReason::Down(DownReason::PeerLost))
            | Error::Transport(TransportError::Aborted(DownReason::PeerLost)) => {
                io::ErrorKind::TimedOut
            }
            Error::Rejected(RejectReason::Down(_))
            | Error::Transport(TransportError::Work { .. }) => io::ErrorKind::ConnectionAborted,
            Error::Transport(TransportError::Taken) => io::ErrorKind::InvalidInput,
            Error::Transport(TransportError::Aborted(DownReason::TimedOut)) => {
                io::ErrorKind::TimedOut
            }
            Error::Transport(_) => io::ErrorKind::ConnectionAborted,
            Error::Rejected(_)
            | Error::StaleTicket
            | Error::UnknownChannel(_)
            | Error::ForeignMember => io::ErrorKind::InvalidInput,
            Error::GroupFull(_) => io::ErrorKind::QuotaExceeded,
            Error::Exchange(ref failure) => failure.error.kind(),
        };
        Self::new(kind, error)
    }
}

const AUTO_POLL: &str = "an operation that was left to the scope did not succeed";

/// Why a scope failed.
#[derive(thiserror::Error)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a scope fails in its closure or after it"
)]
pub enum ScopeError<E> {
    /// The closure returned this error.
    #[error(transparent)]
    ClosureError(E),
    /// An operation failed whose result the closure did not take.
    #[error("{AUTO_POLL}")]
    AutoPollError(#[source] TransportError),
}

/// As that of the closure's error; as that of all errors for an operation that failed.
impl<E: fmt::Debug> fmt::Debug for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosureError(error) => error.fmt(f),
            Self::AutoPollError(error) => write!(f, "{AUTO_POLL}: {error:?}"),
        }
    }
}

impl<E: From<TransportError>> ScopeError<E> {
    /// Either failure as the closure's error type, for callers that treat both alike. See
    /// [`Channel::scope`](crate::Channel::scope) for an example.
    #[must_use]
    pub fn flatten(self) -> E {
        match self {
            Self::ClosureError(error) => error,
            Self::AutoPollError(error) => error.into(),
        }
    }
}

impl ScopeError<Error> {
    /// Why the channel is down, if that is what this error is about: see [`Error::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<&DownReason> {
        match self {
            Self::ClosureError(error) => error.down_reason(),
            Self::AutoPollError(error) => error.down_reason(),
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
    fn scope_error_converts_with_one_question_mark() {
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
    fn scope_of_boxed_errors_flattens_to_a_boxed_error() {
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
