//! The errors of streams.

use std::io;

use verbs_channel::TransportError;
use verbs_channel::verbs_core;

use crate::Error;

/// How a peer ended a [`ByteStream`](super::ByteStream).
///
/// It is inside the [`io::Error`] that reads and writes return. If the transport fails, an
/// [`Error`] is inside instead.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer aborted its stream, or dropped it without reading everything that was sent to it;
    /// or this side writes after the peer has dropped its stream. The kind of the [`io::Error`]
    /// is [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    #[error("the peer has dropped its stream")]
    Reset,
    /// The peer's first message is not one of this protocol: it uses the channel for something
    /// else. The kind of the [`io::Error`], also for the variants below, is
    /// [`InvalidData`](io::ErrorKind::InvalidData).
    #[error("the peer does not use the channel as a byte stream: turn both sides into streams")]
    NotAStream,
    /// The peer uses another version of the protocol.
    #[error("the peer uses version {0} of the stream protocol, this side version {VERSION}")]
    Version(u32),
    /// The peer's settings are invalid.
    #[error("the peer announces invalid settings: {depth} blocks of {block_len} bytes")]
    Settings {
        /// The length of its blocks in bytes.
        block_len: u32,
        /// The number of its blocks.
        depth: u32,
    },
    /// The peer violated the protocol.
    #[error("the peer violated the stream protocol: {0}")]
    Protocol(&'static str),
}

verbs_core::error_debug!(StreamError {
    Reset,
    NotAStream,
    Version,
    Settings,
    Protocol
});

/// Why one direction of a stream has failed. It is returned by each later call, too.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Peer(StreamError),
    Transport(TransportError),
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        let kind = match error {
            StreamError::Reset => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Peer(error) => error.into(),
            Failure::Transport(error) => Error::Transport(error).into(),
        }
    }
}

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;
