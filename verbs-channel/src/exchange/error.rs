//! Why two peers could not agree, and what one tells the other of it.

use std::io;

use verbs_core::EndpointError;

use super::MAX_PRIVATE_DATA;
use super::frame::VERSION;

/// Why two peers could not agree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// TCP failed.
    #[error("cannot {what} the peer")]
    Tcp {
        /// What was tried.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The address stands for no host.
    #[error("the peer's address stands for no host")]
    NoAddress,
    /// The deadline passed.
    #[error("the peer did not {what} in time")]
    TimedOut {
        /// What it did not do.
        what: &'static str,
    },
    /// The peer closed the connection.
    #[error("the peer hung up after {got} of {expected} bytes of a frame: it failed, or went away")]
    HungUp {
        /// Bytes that came.
        got: usize,
        /// Bytes that were to come.
        expected: usize,
    },
    /// The peer refuses this side, and said why before it hung up.
    // As `Debug` writes it, so that nothing of a peer's reaches a terminal as it came.
    #[error("the peer refuses: {words:?}")]
    Refused {
        /// What kind of reason it has.
        code: RefusalCode,
        /// Its words, at most 254 bytes of them, as they came: trust nothing in them.
        words: String,
    },
    /// What the peer sent is no frame of this protocol.
    #[error("the peer speaks another protocol (it began with {0:02x?})")]
    NotOurs([u8; 4]),
    /// The peer speaks another version of this protocol.
    #[error("the peer speaks version {0} of this protocol, this side {VERSION}")]
    Version(u16),
    /// A frame came that has no business here.
    #[error("the peer sent a frame of kind {got} where {expected} was due")]
    Kind {
        /// What came.
        got: u16,
        /// What was due.
        expected: u16,
    },
    /// A frame is longer than any of its kind can be.
    #[error("the peer sent a frame of {len} bytes; at most {max} are possible")]
    TooLong {
        /// Its length without the header.
        len: usize,
        /// The longest that its kind can have.
        max: usize,
    },
    /// This side's private data is too long.
    #[error("{0} bytes of private data; at most {MAX_PRIVATE_DATA} are possible")]
    PrivateData(usize),
    /// The peer's endpoint is impossible.
    #[error("the peer's endpoint is not usable")]
    Endpoint(#[from] EndpointError),
    /// The exchange has ended before: in an error, or because this side refused the peer.
    #[error("the exchange is over")]
    Over,
}

impl ExchangeError {
    pub(crate) fn not_watched(source: io::Error) -> Self {
        let what = "watch the connection to";
        Self::Tcp { what, source }
    }

    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Tcp { source, .. } => source.kind(),
            Self::NoAddress | Self::PrivateData(_) => io::ErrorKind::InvalidInput,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::HungUp { .. } => io::ErrorKind::UnexpectedEof,
            Self::Refused { .. } => io::ErrorKind::ConnectionRefused,
            Self::NotOurs(_)
            | Self::Version(_)
            | Self::Kind { .. }
            | Self::TooLong { .. }
            | Self::Endpoint(_) => io::ErrorKind::InvalidData,
            Self::Over => io::ErrorKind::NotConnected,
        }
    }

    /// What a peer that caused this is told. One that speaks another protocol, or is gone, is told
    /// nothing.
    pub(super) const fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::Version(_) => Some(RefusalCode::VERSION),
            Self::Kind { .. } | Self::TooLong { .. } => Some(RefusalCode::FRAME),
            Self::Endpoint(_) => Some(RefusalCode::ENDPOINT),
            _ => None,
        }
    }
}

/// The kind of reason for which a side refuses its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub(super) u16);

impl RefusalCode {
    /// The peer speaks another version of the protocol: build both sides with the same.
    pub const VERSION: Self = Self(1);
    /// The peer sent a frame that has no business here, or is too long.
    pub const FRAME: Self = Self(2);
    /// The peer's endpoint is impossible.
    pub const ENDPOINT: Self = Self(3);
    /// The queue pair could not be connected to the peer's endpoint, or the application refused
    /// the peer: the words say which.
    pub const HANDSHAKE: Self = Self(4);

    /// The number on the wire; newer peers may have others.
    #[must_use]
    pub const fn as_raw(self) -> u16 {
        self.0
    }
}
