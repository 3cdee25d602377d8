//! The errors of channels: why operations fail, and why requests are rejected.

mod down_reason;
mod queue;
mod reject_reason;
mod transport;

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

pub use verbs_core::error::{ErrorChain, Rejected};

use crate::channel_id::ChannelId;
use crate::duration::Readable;
use crate::exchange::{ExchangeError, ExchangeFailure};
pub use down_reason::DownReason;
use down_reason::operation;
pub use queue::Queue;
pub use reject_reason::RejectReason;
pub use transport::{CloseError, TransportError};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a channel or a group.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation did not succeed, or was rejected.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The ticket belongs to another channel, or its outcome was taken before.
    #[error("the ticket belongs to another channel, or its outcome was taken before")]
    StaleTicket,
    /// [`wait_success`](crate::Channel::wait_success) waited for the channel's timeout: **the
    /// operation continues**. It keeps its buffer. Wait for its ticket again.
    #[error(
        "{} is still in flight after {}: wait for its ticket again, or abort the channel",
        operation(*queue), Readable(*after)
    )]
    InFlight {
        /// The queue to which its request was posted.
        queue: Queue,
        /// The channel's timeout.
        after: Duration,
    },
    /// The channel was prepared by another group.
    #[error("the channel was prepared by another group: join it to that one")]
    ForeignMember,
    /// The channel was removed, or belongs to another group.
    #[error("there is no {0} in this group: it was removed, or belongs to another group")]
    UnknownChannel(ChannelId),
    /// The group is full, and its completion queue cannot grow, for this reason. Channels whose queue pair the driver
    /// failed to destroy count, too.
    #[error(
        "the group is full, and its completion queue cannot grow: remove a channel first, or create the group for more channels"
    )]
    GroupFull(#[source] verbs_core::Error),
    /// The group has failed in a part that all its channels share: no channel can join it.
    #[error("the group has failed, so no channel can join it: create a new one")]
    GroupFailed(#[source] DownReason),
    /// This many channels were dropped before they joined, and the group was not polled since. It keeps their numbers,
    /// and some of their queue pairs, until it is.
    #[error(
        "{0} channels were dropped before they joined the group, which was not polled since: poll it, then prepare others"
    )]
    Unpolled(usize),
    /// The completion queue would need more entries than the device has: one for each request that can
    /// be in flight, on all of these channels.
    #[error("{}", Entries {
        channels: *channels,
        each: [*max_send_wr, *max_recv_wr],
        shared_receives: *shared_receives,
        max_cqe: *max_cqe,
    })]
    Capacity {
        /// The channels that the group was to have room for; 1 for a channel that does not belong to a group.
        channels: u32,
        /// The capacity of each send queue.
        max_send_wr: u32,
        /// The capacity of each receive queue; 0 if the channels share their receives.
        max_recv_wr: u32,
        /// The receives that the channels share.
        shared_receives: u32,
        /// The most entries of a completion queue.
        max_cqe: u32,
    },
    /// The bytes are longer than a block of the pool.
    #[error(
        "{len} bytes do not fit into a block of {block_len}: send them in parts, or create a pool of longer blocks"
    )]
    BlockTooShort {
        /// The number of bytes.
        len: usize,
        /// The length of a block in bytes.
        block_len: usize,
    },
    /// A [`RegistrationCache`](crate::RegistrationCache) cannot register this many bytes within its bounds.
    ///
    /// It [is backpressure](Self::is_backpressure) if they fit into the bounds: then everything else that
    /// is registered is in use. Wait for operations that use the cache's memory, and try again.
    #[error("{}", Full { len: *len, max_bytes: *max_bytes, max_regions: *max_regions })]
    CacheFull {
        /// The number of bytes to register.
        len: usize,
        /// The most bytes that the cache registers.
        max_bytes: usize,
        /// The most regions that the cache registers.
        max_regions: usize,
    },
    /// A thread has been registering memory that a [`RegistrationCache`](crate::RegistrationCache) needs, or
    /// deregistering some, for the [`timeout`](crate::registration_cache::RegistrationCacheBuilder::timeout) of the cache. Try again
    /// later.
    #[error(
        "another thread has been registering or deregistering memory of the cache for {}, the cache's timeout", Readable(*after)
    )]
    CacheTimedOut {
        /// The cache's timeout.
        after: Duration,
    },
    /// A registration of a [`RegistrationCache`](crate::RegistrationCache), or the drop of a keepalive, needs memory
    /// of the cache for which it would have to wait: for itself, or for a thread that may wait for it.
    #[error(
        "a slice of cached memory, taken while this thread registers or frees some, would wait for a registration: take it before"
    )]
    CacheRecursion,
    /// The driver failed to deregister this many regions of a [`SharedMemory`](crate::SharedMemory), or all of them stay
    /// since an operation on it is stuck: **their devices may still access the memory** until the process ends, so it
    /// was leaked. The log has the reasons.
    #[error(
        "the driver failed to deregister {regions} regions, or an operation on them is stuck, and devices may access the memory until the process ends: it was leaked, the log has the reasons"
    )]
    NotDeregistered {
        /// How many regions.
        regions: usize,
    },
    /// The [`peer_timeout`](crate::ChannelConfig::peer_timeout) is shorter than 2 s: TCP's keepalive cannot
    /// notice so soon that the peer's host has died.
    #[error(
        "peer_timeout {} is too short, as TCP's keepalive counts in whole seconds: set at least 2 s, or None to watch no peer",
        Readable(*.0)
    )]
    PeerTimeout(Duration),
    /// The peers could not connect.
    #[error(transparent)]
    // In a box: results of operations are copied, and few of them are this error.
    Exchange(Box<ExchangeFailure>),
    /// An object could not be created or configured.
    #[error(transparent)]
    Core(#[from] verbs_core::Error),
}

verbs_core::error_debug!(Error {
    Transport(error), StaleTicket, InFlight, ForeignMember, UnknownChannel, GroupFull(error),
    GroupFailed(reason), Unpolled, Capacity, BlockTooShort, CacheFull, CacheTimedOut, CacheRecursion, NotDeregistered, PeerTimeout, Exchange(failure), Core(error),
});

impl Error {
    /// Adds the peer's address to an error of an exchange, unless it has one.
    #[doc(hidden)]
    #[must_use]
    pub fn with_peer(self, peer: Option<SocketAddr>) -> Self {
        match self {
            Self::Exchange(failure) => failure.with_peer(peer).into(),
            error => error,
        }
    }

    /// Whether the same request can be posted once some operations in flight have completed.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Transport(error) => error.is_backpressure(),
            Self::CacheFull { len, max_bytes, .. } => *len <= *max_bytes,
            _ => false,
        }
    }

    /// Why the channel is down, if that is the reason: see [`TransportError::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        match self {
            Self::Transport(error) => error.down_reason(),
            Self::GroupFailed(reason) => Some(*reason),
            _ => None,
        }
    }
}

impl From<CloseError> for Error {
    fn from(error: CloseError) -> Self {
        match error {
            CloseError::Down(reason) => RejectReason::Down(reason).into(),
            CloseError::Stuck => Self::Transport(TransportError::Stuck),
            CloseError::OtherProcess => {
                let object = "channel";
                Self::Core(verbs_core::Error::OtherProcess { object })
            }
        }
    }
}

impl From<ExchangeFailure> for Error {
    fn from(failure: ExchangeFailure) -> Self {
        Self::Exchange(Box::new(failure))
    }
}

impl From<RejectReason> for Error {
    fn from(reason: RejectReason) -> Self {
        Self::Transport(reason.into())
    }
}

impl<T> From<Rejected<T, RejectReason>> for Error {
    fn from(rejected: Rejected<T, RejectReason>) -> Self {
        Self::Transport(rejected.into())
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
        use TransportError::{Aborted, Rejected, Taken};
        let kind = match error {
            Error::Core(core) => return core.into(),
            Error::Transport(_) | Error::CacheFull { .. } if error.is_backpressure() => {
                io::ErrorKind::WouldBlock
            }
            Error::Transport(Rejected(RejectReason::Down(reason)) | Aborted(reason)) => {
                match reason {
                    // The same kinds as with TCP.
                    DownReason::PeerClosed => io::ErrorKind::ConnectionReset,
                    DownReason::PeerLost | DownReason::TimedOut { .. } => io::ErrorKind::TimedOut,
                    _ => io::ErrorKind::ConnectionAborted,
                }
            }
            Error::InFlight { .. }
            | Error::CacheTimedOut { .. }
            | Error::Transport(Rejected(RejectReason::TimedOut)) => io::ErrorKind::TimedOut,
            Error::Transport(Rejected(_) | Taken)
            | Error::StaleTicket
            | Error::UnknownChannel(_)
            | Error::ForeignMember
            | Error::Capacity { .. }
            | Error::BlockTooShort { .. }
            | Error::CacheFull { .. }
            | Error::PeerTimeout(_) => io::ErrorKind::InvalidInput,
            Error::Transport(_) | Error::GroupFailed(_) | Error::NotDeregistered { .. } => {
                io::ErrorKind::ConnectionAborted
            }
            Error::Unpolled(_) => io::ErrorKind::WouldBlock,
            Error::CacheRecursion => io::ErrorKind::Deadlock,
            Error::GroupFull(_) => io::ErrorKind::QuotaExceeded,
            Error::Exchange(ref failure) => failure.error.kind(),
        };
        Self::new(kind, error)
    }
}

/// The completion queue entries that channels need.
struct Entries {
    channels: u32,
    each: [u32; 2],
    shared_receives: u32,
    max_cqe: u32,
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channels,
            each: [send, recv],
            shared_receives,
            max_cqe,
        } = *self;
        let each = u128::from(send) + u128::from(recv);
        let all = u128::from(channels) * each + u128::from(shared_receives);
        match (channels, shared_receives) {
            (1, 0) => write!(f, "a channel of {send} + {recv} requests needs"),
            (_, 0) => write!(f, "{channels} channels of {send} + {recv} requests need"),
            _ => write!(
                f,
                "{channels} channels of {send} requests, and {shared_receives} shared receives, need"
            ),
        }?;
        write!(
            f,
            " {all} completion queue entries, but the device has {max_cqe}: lower max_send_wr"
        )?;
        f.write_str(match (channels, shared_receives) {
            (1, 0) => " or max_recv_wr",
            (_, 0) => " or max_recv_wr, or the number of channels",
            _ => ", or the number of channels or of shared receives",
        })
    }
}

/// The range that a cache of registrations has no room for.
struct Full {
    len: usize,
    max_bytes: usize,
    max_regions: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            len,
            max_bytes,
            max_regions,
        } = *self;
        if len > max_bytes {
            return write!(
                f,
                "{len} bytes exceed the cache's max_bytes {max_bytes}: use shorter slices, or a larger cache"
            );
        }
        write!(
            f,
            "the cache has no room to register {len} bytes: of its {max_bytes} bytes or {max_regions} regions \
             too many are in use, wait for operations that use them"
        )
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
    /// An operation failed, and the closure did not take its outcome.
    #[error("{AUTO_POLL}")]
    AutoPollError(#[source] TransportError),
}

/// Prints the `Debug` of the closure's error, or, for an operation that failed, the error and its
/// sources in one line.
impl<E: fmt::Debug> fmt::Debug for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosureError(error) => error.fmt(f),
            Self::AutoPollError(error) => write!(f, "{AUTO_POLL}: {error:?}"),
        }
    }
}

impl<E: From<TransportError>> ScopeError<E> {
    /// Converts either failure into the closure's error type, for callers that treat both alike.
    /// See [`Channel::scope`](crate::Channel::scope) for an example.
    #[must_use]
    pub fn flatten(self) -> E {
        match self {
            Self::ClosureError(error) => error,
            Self::AutoPollError(error) => error.into(),
        }
    }
}

impl ScopeError<Error> {
    /// Why the channel is down, if that caused this error: see [`Error::down_reason`].
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
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

    const FAILED: TransportError = TransportError::Aborted(DownReason::TimedOut {
        queue: Queue::Send,
        after: Duration::from_secs(1),
    });

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
