//! What can go wrong.

use std::io;

use verbs_channel::verbs_core::{self, PollError};
use verbs_channel::{DownReason, Refusal, Rejected, TransportError};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whatever can go wrong with async channels and queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation was not posted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An operation was posted and did not succeed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The completion queue was made without a completion channel, so nothing announces its
    /// completions. Make the group with
    /// [`PollStrategy::Notify`](verbs_channel::PollStrategy::Notify), the queue with
    /// [`channel`](verbs_channel::verbs_core::CompletionQueue::channel).
    #[error("the completion queue has no completion channel: nothing announces its completions")]
    Unannounced,
    /// The completion queue was made with another completion channel than the one that is watched.
    #[error("the completion queue announces its completions on another completion channel")]
    ForeignChannel,
    /// Somebody awaits the completion queue already. Clones of an [`AsyncCq`](crate::AsyncCq) share
    /// it.
    #[error("the completion queue is awaited already")]
    AlreadyAwaited,
    /// Somebody watches the completion channel, or the device's events, already, and would miss what
    /// another takes. Clones of [`CqEvents`](crate::CqEvents) share it.
    #[error("the completion channel, or the device's events, are watched already")]
    AlreadyWatched,
    /// The channel is down.
    #[error("the channel is down")]
    Down(#[source] DownReason),
    /// The completion queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The notifier, or a stream it was to connect over, failed.
    #[error("cannot wait for the device")]
    Io(#[from] io::Error),
    /// No thread can be started for a call that blocks, such as a handshake, and none runs.
    #[error("cannot start a thread for a call that blocks")]
    Thread(#[source] io::Error),
    /// The layer below was not set up.
    #[error(transparent)]
    Channel(verbs_channel::Error),
}

impl Error {
    /// Whether the operation was rejected since too many wait for a place in its queue, and the same
    /// will work once there is [room](crate::AsyncChannel::ready).
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_backpressure())
    }
}

impl From<verbs_channel::Error> for Error {
    fn from(error: verbs_channel::Error) -> Self {
        match error {
            verbs_channel::Error::Refused(refusal) => Self::Refused(refusal),
            verbs_channel::Error::Transport(error) => Self::Transport(error),
            error => Self::Channel(error),
        }
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
            Error::Refused(refusal) => return verbs_channel::Error::Refused(refusal).into(),
            Error::Transport(error) => return verbs_channel::Error::Transport(error).into(),
            Error::Channel(error) => return error.into(),
            Error::Thread(ref source) => source.kind(),
            Error::Down(_) | Error::Poll(_) => io::ErrorKind::ConnectionAborted,
            Error::Unannounced
            | Error::ForeignChannel
            | Error::AlreadyAwaited
            | Error::AlreadyWatched => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
