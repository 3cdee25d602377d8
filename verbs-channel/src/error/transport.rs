//! Why operations do not succeed, and why channels are down.

use verbs_core::{EventType, PollError, PostError, WorkError};

use super::queue::Queue;

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
