//! Why a stream ends that was not shut down.

use std::io;

use verbs_channel::Refusal;
use verbs_channel::TransportError;

use crate::Error;

/// What the peer of a [`ByteStream`](super::ByteStream) did that ends it: the inside of the
/// [`io::Error`] that reads and writes return.
///
/// That the transport failed is an [`Error`] in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It dropped its stream without reading all that was sent to it, or aborted it; or it has
    /// dropped its stream and something more is written. An [`io::ErrorKind::ConnectionReset`].
    #[error("the peer has dropped its stream")]
    Reset,
    /// Its first message is not one of this protocol: it uses the channel for something else. An
    /// [`io::ErrorKind::InvalidData`], as all that follow.
    #[error("the peer's end of the channel is not a byte stream")]
    NotAStream,
    /// It uses another version of the protocol.
    #[error("the peer uses version {0} of the stream's protocol, this side version {VERSION}")]
    Version(u32),
    /// Its settings are invalid.
    #[error("the peer announces {depth} blocks of {block_len} bytes")]
    Settings {
        /// Bytes in a block.
        block_len: u32,
        /// Blocks.
        depth: u32,
    },
    /// It broke the protocol.
    #[error("the peer broke the stream's protocol: {0}")]
    Protocol(&'static str),
}

/// Why one direction of a stream has failed: told again to whoever asks again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Peer(StreamError),
    Refused(Refusal),
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => Self::Refused(refusal),
            Error::Transport(error) => Self::Transport(error),
            // An operation ends in no other way.
            _ => Self::Refused(Refusal::Down(verbs_channel::DownReason::Closed)),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Peer(error) => error.into(),
            Failure::Refused(refusal) => Error::Refused(refusal).into(),
            Failure::Transport(error) => Error::Transport(error).into(),
        }
    }
}

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;
