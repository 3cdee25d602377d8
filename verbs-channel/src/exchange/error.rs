//! The errors of exchanges, and their codes on the wire.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use verbs_core::__private::ErrorDebug;
use verbs_core::device::TransportType;
use verbs_core::error::EndpointError;

use super::limits::{MAX_PRIVATE_DATA, VERSION};
use crate::duration::Readable;

/// Why two peers could not connect.
///
/// The text is about "the peer"; that of an [`ExchangeFailure`] has the peer's address instead.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// TCP failed.
    Tcp {
        /// The action that failed, to be followed by the peer: "connect to", for example.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The peer's name could not be resolved, or is not written as `HOST:PORT`.
    Lookup {
        /// The address as it was passed, as `Debug` formats it.
        address: String,
        /// Why it has no addresses.
        source: io::Error,
    },
    /// The connection was refused: no process listens at the peer's address and port.
    NotListening {
        /// How long it was tried; `None` if it was tried once.
        after: Option<Duration>,
        /// The error of the last attempt.
        source: io::Error,
    },
    /// The peer's name has no address.
    NoAddress,
    /// The deadline passed.
    TimedOut {
        /// The step that the peer did not take: `connect` or `answer`, or, once TCP was connected,
        /// `write` or `read`, or `confirm` over datagrams.
        what: &'static str,
        /// The timeout, if it is known.
        after: Option<Duration>,
    },
    /// The peer closed the connection.
    HungUp {
        /// How many bytes of the frame arrived.
        got: usize,
        /// How many bytes the frame has.
        expected: usize,
    },
    /// The peer refused the connection, and sent the reason.
    Refused {
        /// The kind of the reason.
        code: RefusalCode,
        /// The text of the reason, up to 254 bytes: do not trust what the peer sent.
        words: String,
    },
    /// The peer uses another protocol. These are its first bytes.
    NotOurs([u8; 4]),
    /// The peer uses another version of this protocol.
    Version(u16),
    /// The peer sent a frame of the wrong kind.
    Kind {
        /// The kind that arrived.
        got: u16,
        /// The kind that was due.
        expected: u16,
    },
    /// The peer sent a frame that is too long for its kind.
    TooLong {
        /// The length of the payload.
        len: usize,
        /// The longest payload of this kind.
        max: usize,
    },
    /// The private data of this side is too long: its length in bytes.
    PrivateData(usize),
    /// The private data of this side does not fit into a datagram: over datagrams, each side sends
    /// it in one.
    PrivateDataBeyondMtu {
        /// Its length in bytes.
        len: usize,
        /// The most bytes that fit a datagram of both sides' ports.
        max: usize,
    },
    /// The private data of this side does not fit into a message of `rdma_cm`.
    PrivateDataBeyondManager {
        /// Its length in bytes.
        len: usize,
        /// The most bytes that fit this message.
        max: usize,
    },
    /// A step of `rdma_cm` failed.
    Manager(#[source] verbs_core::Error),
    /// Over `rdma_cm`, the address decides which device a channel needs, and this channel is of another.
    OtherDevice {
        /// The name of the device that reaches the peer; empty if none does.
        needed: String,
        /// The name of the device of the channel.
        ours: String,
    },
    /// Over `rdma_cm`, datagrams carry the key [`QKey::RDMA_UDP`](verbs_core::path::QKey::RDMA_UDP), and this
    /// endpoint has another.
    OtherKey,
    /// The peer's endpoint is invalid.
    Endpoint(#[from] EndpointError),
    /// One side's device is of iWARP, and the other's is not: no connection leads from one to the other.
    OtherTransport {
        /// Transport of the peer's device: [`IB`](TransportType::IB) is also that of RoCE.
        peer: TransportType,
        /// Transport of the local device.
        ours: TransportType,
    },
    /// On iWARP, the peer sent bytes for the connection by `rdma_cm` that cannot be used: these.
    Proposal(&'static str),
    /// The peer that `rdma_cm` reached at the address sent over the stream is another program.
    Stranger,
    /// The exchange had ended before: in an error, or because this side refused the peer.
    Over,
}

verbs_core::error_debug!(ExchangeError {
    Tcp, Lookup, NotListening, NoAddress, TimedOut, HungUp, Refused, NotOurs, Version, Kind, TooLong, PrivateData,
    PrivateDataBeyondMtu, PrivateDataBeyondManager, Manager(error), OtherDevice, OtherKey, Endpoint(error),
    OtherTransport, Proposal, Stranger, Over,
});

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &"the peer")
    }
}

/// Why no channel was connected, with the peer's address.
#[non_exhaustive]
pub struct ExchangeFailure {
    /// The peer's address, if it is known.
    pub peer: Option<SocketAddr>,
    /// Why the channel was not connected.
    pub error: ExchangeError,
}

impl ExchangeFailure {
    /// An error of an exchange with this peer.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(peer: Option<SocketAddr>, error: ExchangeError) -> Self {
        Self { peer, error }
    }

    /// Sets the peer's address, unless there is one already.
    #[doc(hidden)]
    #[must_use]
    pub fn with_peer(self, peer: Option<SocketAddr>) -> Self {
        let peer = self.peer.or(peer);
        Self { peer, ..self }
    }
}

impl From<ExchangeError> for ExchangeFailure {
    fn from(error: ExchangeError) -> Self {
        Self::new(None, error)
    }
}

impl fmt::Display for ExchangeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            Some(peer) => self.error.write(f, peer),
            None => fmt::Display::fmt(&self.error, f),
        }
    }
}

impl std::error::Error for ExchangeFailure {
    // The text includes that of the error.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl ErrorDebug for ExchangeFailure {
    fn write_variant(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.write_variant(f)
    }
}

impl fmt::Debug for ExchangeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_debug(f)
    }
}

impl ExchangeError {
    /// That the connection to the peer cannot be watched.
    #[doc(hidden)]
    #[must_use]
    pub const fn not_watched(source: io::Error) -> Self {
        let what = "watch the connection to";
        Self::Tcp { what, source }
    }

    /// Whether the peer may know why a step of `rdma_cm` has failed: not if this side has failed by itself, or
    /// has waited for as long as it wanted to. Needs the feature `rdmacm`.
    #[doc(hidden)]
    #[cfg(feature = "rdmacm")]
    #[must_use]
    pub const fn may_be_of_peer(&self) -> bool {
        matches!(
            self,
            Self::NotListening { .. } | Self::Manager(verbs_core::Error::ConnectionManager { .. })
        )
    }

    /// Writes the text, with this name of the peer.
    fn write(&self, f: &mut fmt::Formatter<'_>, peer: &dyn fmt::Display) -> fmt::Result {
        match self {
            Self::Tcp { what, .. } => write!(f, "cannot {what} {peer}"),
            // The source tells what is wrong with a name.
            Self::Lookup { address, source } => match source.kind() {
                io::ErrorKind::InvalidInput => {
                    write!(f, "the peer's address {address} is not HOST:PORT")
                }
                _ => write!(f, "cannot look up the peer's address {address}"),
            },
            Self::NotListening { after, .. } => {
                match after {
                    Some(after) => write!(f, "nothing listened at {peer} for {}", Readable(*after)),
                    None => write!(f, "nothing listens at {peer}"),
                }?;
                f.write_str(": is the server started?")
            }
            Self::NoAddress => write!(f, "the peer's name has no address"),
            Self::TimedOut { what, after } => {
                let is_silent = *what == "write";
                if is_silent {
                    write!(f, "{peer} is connected over TCP but sent no answer ")?;
                } else {
                    write!(f, "{peer} did not {what} ")?;
                }
                match after {
                    Some(after) => write!(f, "within {}", Readable(*after))?,
                    None => f.write_str("in time")?,
                }
                if is_silent {
                    f.write_str(": does it connect or accept a channel?")?;
                }
                Ok(())
            }
            Self::HungUp { got, expected } => write!(
                f,
                "{peer} closed the connection after {got} of {expected} bytes of a frame: look at its error, or it is another kind of server"
            ),
            // As `Debug` formats it, so that no control character of the peer reaches a terminal.
            Self::Refused { words, .. } => write!(f, "{peer} refused the connection: {words:?}"),
            Self::NotOurs(magic) => write!(
                f,
                "{peer} uses another protocol: its first bytes are \"{}\"",
                magic.escape_ascii()
            ),
            Self::Version(version) => write!(
                f,
                "{peer} uses version {version} of this protocol, this side version {VERSION}"
            ),
            Self::Kind { got, expected } => write!(
                f,
                "{peer} sent a frame of kind {got} where {expected} was due"
            ),
            Self::TooLong { len, max } => write!(
                f,
                "{peer} sent a frame of {len} bytes; at most {max} are possible"
            ),
            Self::PrivateData(len) => write!(
                f,
                "{len} bytes of private data; at most {MAX_PRIVATE_DATA} are possible"
            ),
            Self::PrivateDataBeyondMtu { len, max } => write!(
                f,
                "{len} bytes of private data; at most {max} fit into a datagram to {peer}"
            ),
            Self::PrivateDataBeyondManager { len, max } => write!(
                f,
                "{len} bytes of private data; at most {max} fit into a message of rdma_cm to {peer}"
            ),
            Self::Manager(_) => write!(f, "cannot connect to {peer} by rdma_cm"),
            Self::OtherKey => f.write_str(
                "this endpoint's key is not that of rdma_cm: build it with `.qkey(QKey::RDMA_UDP)`",
            ),
            Self::OtherDevice { needed, ours } if needed.is_empty() => write!(
                f,
                "no RDMA device leads to {peer}, and this channel is of {ours}: use an address of the network that \
                 {ours} is on"
            ),
            Self::OtherDevice { needed, ours } => write!(
                f,
                "{peer} is connected to by {needed}, and this channel is of {ours}: open {needed}"
            ),
            Self::Endpoint(_) => write!(f, "{peer} sent an endpoint that is not usable"),
            Self::OtherTransport { peer: theirs, ours } => write!(
                f,
                "the device of {peer} is of {}, and this side's of {}: they cannot be connected",
                network(*theirs),
                network(*ours)
            ),
            Self::Proposal(what) => write!(f, "{peer} sent {what}"),
            Self::Stranger => write!(
                f,
                "{peer} is the address that the peer sent for rdma_cm, and another program is there"
            ),
            Self::Over => f.write_str("the exchange is over"),
        }
    }

    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Tcp { source, .. }
            | Self::Lookup { source, .. }
            | Self::NotListening { source, .. } => source.kind(),
            Self::NoAddress
            | Self::PrivateData(_)
            | Self::PrivateDataBeyondMtu { .. }
            | Self::PrivateDataBeyondManager { .. }
            | Self::OtherDevice { .. }
            | Self::OtherTransport { .. }
            | Self::OtherKey => io::ErrorKind::InvalidInput,
            Self::Manager(_) => io::ErrorKind::ConnectionAborted,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::HungUp { .. } => io::ErrorKind::UnexpectedEof,
            Self::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Self::NotOurs(_)
            | Self::Version(_)
            | Self::Kind { .. }
            | Self::TooLong { .. }
            | Self::Proposal(_)
            | Self::Stranger
            | Self::Endpoint(_) => io::ErrorKind::InvalidData,
            Self::Over => io::ErrorKind::NotConnected,
        }
    }

    /// The code that is sent to a peer that caused this. `None` if the peer uses another protocol, has
    /// closed the connection, or did not cause the error.
    pub(crate) const fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::Version(_) => Some(RefusalCode::VERSION),
            Self::Kind { .. } | Self::TooLong { .. } => Some(RefusalCode::FRAME),
            Self::Endpoint(_) | Self::Proposal(_) => Some(RefusalCode::ENDPOINT),
            Self::OtherTransport { .. } => Some(RefusalCode::HANDSHAKE),
            _ => None,
        }
    }
}

/// The networks of a device's transport, in a text.
const fn network(transport: TransportType) -> &'static str {
    match transport {
        TransportType::IWARP => "iWARP",
        _ => "InfiniBand or RoCE",
    }
}

/// The kind of reason for which a side refuses its peer. Newer peers may send other codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub(super) u16);

impl RefusalCode {
    /// The peer uses another version of the protocol: build both sides with the same version.
    pub const VERSION: Self = Self(1);
    /// The peer sent a frame of the wrong kind, or one that is too long.
    pub const FRAME: Self = Self(2);
    /// The peer's endpoint is invalid.
    pub const ENDPOINT: Self = Self(3);
    /// The queue pair could not be connected to the peer's endpoint, or the application refused the
    /// peer. The text has the reason.
    pub const HANDSHAKE: Self = Self(4);

    /// Over datagrams: the server has no handshake with these numbers. It has restarted, or the
    /// handshake has timed out.
    pub const UNKNOWN: Self = Self(5);

    /// The number on the wire.
    #[doc(hidden)]
    #[must_use]
    pub const fn as_raw(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(error: ExchangeError) -> ExchangeFailure {
        let peer = SocketAddr::from(([10, 0, 0, 1], 7471));
        ExchangeFailure::from(error).with_peer(Some(peer))
    }

    #[test]
    fn text_names_the_peer_and_the_timeout() {
        let what = "answer";
        for (after, text) in [
            (Some(1000), "10.0.0.1:7471 did not answer within 1 s"),
            (Some(1500), "10.0.0.1:7471 did not answer within 1.5 s"),
            (Some(20), "10.0.0.1:7471 did not answer within 20 ms"),
            (None, "10.0.0.1:7471 did not answer in time"),
        ] {
            let after = after.map(Duration::from_millis);
            let failure = failure(ExchangeError::TimedOut { what, after });
            assert_eq!(failure.to_string(), text);
        }
        let error = ExchangeError::Version(9);
        assert_eq!(
            error.to_string(),
            "the peer uses version 9 of this protocol, this side version 1"
        );
        assert_eq!(
            failure(error).to_string(),
            "10.0.0.1:7471 uses version 9 of this protocol, this side version 1"
        );
    }

    #[test]
    fn first_bytes_of_another_protocol_are_escaped() {
        let binary = ExchangeError::NotOurs([0, 0x1b, b'"', b'x']);
        assert!(binary.to_string().ends_with(r#""\x00\x1b\"x""#));
    }
}
