//! Why channels are down.

use std::time::Duration;

use verbs_core::WorkError;
use verbs_core::codes::WcStatus;
use verbs_core::device::EventType;
use verbs_core::error::{PollError, PostError};

use super::queue::Queue;
use crate::duration::Readable;

/// The failed operation, as precisely as its queue and its status determine it. Its causes are in the text of
/// [`WorkError`].
pub(super) const fn failed(queue: Queue, status: WcStatus) -> &'static str {
    match (queue, status) {
        (Queue::Receive, _) => "a receive failed",
        // Only these need a receive of the peer's, and only those access memory by its key.
        (Queue::Send, WcStatus::RNR_RETRY_EXC_ERR) => "a send or write with immediate data failed",
        (Queue::Send, WcStatus::REM_ACCESS_ERR) => "a write, read or atomic failed",
        (Queue::Send, _) => "a send, write, read or atomic failed",
    }
}

/// An operation of this queue: a post is not kept by its opcode.
pub(super) const fn operation(queue: Queue) -> &'static str {
    match queue {
        Queue::Receive => "a receive",
        Queue::Send => "a send, write, read or atomic",
    }
}

/// Why a channel is down.
///
/// A channel that is down rejects all requests. [`reset`](crate::Channel::reset) prepares a new
/// one. In a group, [remove](crate::ChannelGroup::remove) the channel and
/// [prepare](crate::ChannelGroup::prepare) another. The reason is the first failure of the channel:
/// later failures are consequences.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownReason {
    /// An operation failed, which moved the queue pair to `ERR`.
    #[error("{}", failed(*queue, error.status))]
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
    /// The driver failed within a post, of which the device may have had some requests. Or it rejected a receive
    /// that was posted for the channel: a [prepared](crate::PreparedChannel::start_receive) or a
    /// [shared](crate::ChannelConfig::shared_receives) one, or one for [datagrams](crate::Datagrams).
    #[error("a post failed")]
    Post(#[source] PostError),
    /// An operation on borrowed buffers or of a [`Transfer`](crate::Transfer), or one for which
    /// [`Channel::close`](crate::Channel::close) waited, did not complete within its timeout.
    #[error(
        "{} did not complete within {}, after which a new channel has to be prepared",
        operation(*queue), Readable(*after)
    )]
    TimedOut {
        /// The queue that its request was posted to.
        queue: Queue,
        /// The timeout.
        after: Duration,
    },
    /// A scope ended in an error or a panic while operations were in flight, or a
    /// [manual scope](crate::Channel::manual_scope) left some in flight; or a set of awaited operations
    /// was dropped while some were in flight (`AsyncTransfer` of `verbs-async`).
    #[error("a scope failed, or operations were left in flight")]
    Abandoned,
    /// The device does not answer: the errno of the query.
    #[error("the device does not answer (errno {0})")]
    Device(i32),
    /// The queue pair is in `ERR`, and its requests were not flushed within the channel's drain
    /// timeout: the device or the completion queue has failed.
    #[error("the queue pair is in IBV_QPS_ERR, and its requests were not flushed in time")]
    Unflushed,
    /// The device reports a fatal event.
    #[error("the device reports {0:?}")]
    Event(EventType),
    /// Before the channel joined, its peer sent more messages than channels that have not joined can have of the
    /// [shared receives](crate::ChannelConfig::shared_receives). They were dropped.
    #[error(
        "before the channel joined, the messages of its peer took too many of the shared receives"
    )]
    TooManyEarly,
    /// Queue pairs were destroyed with more of the [shared receives](crate::ChannelConfig::shared_receives) than the
    /// group can replace: the driver did not complete them.
    #[error(
        "too many shared receives were lost with queue pairs that were destroyed, so a new group has to be created"
    )]
    ReceivesLost,
    /// The peer closed the connection, or its process ended. Everything that it had sent was delivered
    /// first.
    ///
    /// On iWARP this is every end of the connection that this side did not cause, also if the peer rejected a
    /// request, such as a write without access, which succeeds here.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer's host does not answer any more: it died, or the network to it is down.
    #[error("the peer's host does not answer any more")]
    PeerLost,
    /// The notifier that waits for completions has failed, or the runtime has ended in which it was made
    /// (`verbs-async`).
    #[error("the notifier that waits for completions has failed, or its runtime has ended")]
    NotifierFailed,
    /// The caller closed the channel.
    #[error("this side closed the channel")]
    Closed,
}

impl DownReason {
    /// Whether the peer closed the connection, or its process ended: this is how a server's clients
    /// leave.
    #[must_use]
    pub const fn is_peer_closed(self) -> bool {
        matches!(self, Self::PeerClosed)
    }

    /// Whether what all channels of a group share has failed, so that no channel can work any more.
    pub(crate) const fn is_of_group(self) -> bool {
        match self {
            Self::ReceivesLost => true,
            Self::Event(event) => matches!(
                event,
                EventType::CQ_ERR | EventType::SRQ_ERR | EventType::DEVICE_FATAL
            ),
            _ => false,
        }
    }

    /// Whether an operation did not complete within its timeout, and was aborted with the channel.
    #[must_use]
    pub const fn is_timed_out(self) -> bool {
        matches!(self, Self::TimedOut { .. })
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
    TooManyEarly,
    ReceivesLost,
    PeerClosed,
    PeerLost,
    NotifierFailed,
    Closed,
});
