//! The error type of this crate.

use std::io;
use std::net::SocketAddr;

use verbs_channel::error::{CloseError, Rejected};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::error::PollError;
use verbs_channel::{DownReason, RejectReason, TransportError, verbs_core};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an async channel, group or queue.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation did not succeed, or was rejected.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The completion queue was created without a completion channel, so no event announces its
    /// completions. Create a group with
    /// [`PollStrategy::Notify`](verbs_channel::PollStrategy::Notify), and a queue with
    /// [`channel`](verbs_channel::verbs_core::CompletionQueue::channel).
    #[error(
        "the completion queue was created without a completion channel, so nothing announces its completions"
    )]
    NoCompletionChannel,
    /// The completion queue was created with a completion channel other than that of the
    /// [`CqEvents`](crate::CqEvents).
    #[error(
        "the completion queue belongs to another completion channel: create it with the channel of these CqEvents"
    )]
    ForeignChannel,
    /// The completion queue is already awaited. To share it, clone its [`AsyncCq`](crate::AsyncCq).
    #[error("the completion queue is awaited already: clone its AsyncCq")]
    AlreadyAwaited,
    /// The completion channel or the device already has a watcher. Two watchers would take events
    /// from each other. To share a completion channel, clone its [`CqEvents`](crate::CqEvents).
    #[error(
        "the completion channel or the device is watched already: share its CqEvents or DeviceEvents"
    )]
    AlreadyWatched,
    /// The completion queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The notifier failed, or the stream for the exchange failed.
    #[error("cannot wait for the device")]
    Io(#[from] io::Error),
    /// No helper thread could be started for a call that blocks, such as a handshake, and none is
    /// running.
    #[error("cannot start a helper thread for a call that blocks")]
    Thread(#[source] io::Error),
    /// The channel has too few receives for a stream of this depth.
    #[error(
        "a stream of {depth} blocks needs {needed} receives, and the channel's max_recv_wr is \
         {max_recv_wr}: give the channel more, or the stream fewer blocks"
    )]
    StreamReceives {
        /// The blocks of the stream in each direction.
        depth: u16,
        /// The receives that they need.
        needed: u32,
        /// The receives that the channel can have posted.
        max_recv_wr: u32,
    },
    /// An error of the layer below, for example when a group is created or a channel is connected.
    #[error(transparent)]
    Channel(verbs_channel::Error),
}

verbs_core::error_debug!(Error {
    Transport(error), NoCompletionChannel, ForeignChannel, AlreadyAwaited,
    AlreadyWatched, Poll, Io, Thread, StreamReceives, Channel(error),
});

impl Error {
    /// Adds the peer's address to an error of connecting, unless it has one.
    pub(crate) fn with_peer(self, peer: Option<SocketAddr>) -> Self {
        match self {
            Self::Channel(error) => error.with_peer(peer).into(),
            error => error,
        }
    }

    /// Whether the operation was rejected because the backlog of its queue is full. The same
    /// operation can succeed once there is [room](crate::AsyncChannel::ready).
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Transport(error) if error.is_backpressure())
    }

    /// Why the channel is down, if the operation was aborted or rejected because of that. `None` for
    /// the failure that took the channel down.
    ///
    /// If the reason [`is_peer_closed`](DownReason::is_peer_closed), the peer, such as a server's client,
    /// has left: it closed its channel, or its process ended. See
    /// [`IncomingMessages`](crate::IncomingMessages).
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Transport(error) => error.down_reason(),
            Self::Channel(error) => error.down_reason(),
            _ => None,
        }
    }
}

impl From<verbs_channel::Error> for Error {
    fn from(error: verbs_channel::Error) -> Self {
        match error {
            verbs_channel::Error::Transport(error) => Self::Transport(error),
            error => Self::Channel(error),
        }
    }
}

impl From<RejectReason> for Error {
    fn from(reason: RejectReason) -> Self {
        Self::Transport(reason.into())
    }
}

impl From<ExchangeError> for Error {
    fn from(error: ExchangeError) -> Self {
        verbs_channel::Error::from(error).into()
    }
}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Self {
        verbs_channel::Error::from(error).into()
    }
}

impl<T, E: Into<Self>> From<Rejected<T, E>> for Error {
    fn from(rejected: Rejected<T, E>) -> Self {
        rejected.into_error().into()
    }
}

impl From<verbs_core::Error> for Error {
    fn from(error: verbs_core::Error) -> Self {
        Self::Channel(error.into())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => return error,
            Error::Transport(error) => return error.into(),
            Error::Channel(error) => return error.into(),
            Error::Thread(ref source) => source.kind(),
            Error::Poll(_) => io::ErrorKind::ConnectionAborted,
            Error::NoCompletionChannel
            | Error::ForeignChannel
            | Error::AlreadyAwaited
            | Error::AlreadyWatched
            | Error::StreamReceives { .. } => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
