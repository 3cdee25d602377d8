//! The bytes that a connection manager carries while it connects.

use crate::codes::private_data::PrivateData;
use crate::error::{Error, Result};

/// A message that is sent with a request, an answer or a rejection.
///
/// On InfiniBand and RoCE private data arrives padded with zeros, so its length is not the length that
/// was sent. A slice becomes a message with its length in a byte before it, which
/// [`PrivateData::message`] returns at a peer that uses this crate. [`raw`](Self::raw) bytes have no
/// such byte, for a peer that is another program.
///
/// | at most | InfiniBand, RoCE: message | raw | iWARP: message | raw |
/// |---|---|---|---|---|
/// | request | 55 bytes | 56 | 250 | 251 |
/// | answer | 195 | 196 | 250 | 251 |
/// | rejection | 147 | 148 | 250 | 251 |
/// | of datagrams: request | 179 | 180 | | |
/// | of datagrams: answer, rejection | 135 | 136 | | |
///
/// ```no_run
/// use verbs_core::PreparedQueuePair;
/// use verbs_core::rdmacm::{Connected, Message, Pending, RouteResolved};
///
/// fn nvme(route: RouteResolved, qp: PreparedQueuePair) -> verbs_core::Result<Pending<Connected>> {
///     let (mut request, queue_size) = ([0_u8; 32], 128_u16);
///     request[4..6].copy_from_slice(&queue_size.to_le_bytes());
///     route.connect(qp, Message::raw(&request))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "private_data")]
// tidy: allow(unique): its users name it with its module, `rdmacm`
pub struct Message<'m> {
    bytes: &'m [u8],
    is_framed: bool,
}

impl<'m> Message<'m> {
    /// These bytes alone, as the protocol of another program has them.
    #[must_use]
    pub const fn raw(bytes: &'m [u8]) -> Self {
        Self {
            bytes,
            is_framed: false,
        }
    }

    /// Its bytes, without the length.
    #[must_use]
    pub const fn as_bytes(&self) -> &'m [u8] {
        self.bytes
    }

    /// Whether it is sent without its length.
    #[must_use]
    pub const fn is_raw(&self) -> bool {
        !self.is_framed
    }

    /// The bytes that are sent: at most `max`, with the length if it has one.
    pub(super) fn encode(self, max: u8) -> Result<PrivateData> {
        let Self { bytes, is_framed } = self;
        let room = max.saturating_sub(is_framed.into());
        let Some(len) = u8::try_from(bytes.len()).ok().filter(|len| *len <= room) else {
            return Err(Error::Limit {
                what: "private_data",
                asked: bytes.len() as u64,
                max: Some(room.into()),
            });
        };
        let mut this = PrivateData::EMPTY;
        this.bytes[0] = len;
        let to = this.bytes.get_mut(is_framed.into()..).unwrap_or_default();
        if let Some(to) = to.get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        this.len = len.saturating_add(is_framed.into());
        Ok(this)
    }
}

impl<'m> From<&'m [u8]> for Message<'m> {
    fn from(bytes: &'m [u8]) -> Self {
        Self {
            bytes,
            is_framed: true,
        }
    }
}

impl<'m, const N: usize> From<&'m [u8; N]> for Message<'m> {
    fn from(bytes: &'m [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

/// How many bytes of private data InfiniBand and RoCE have room for.
pub(super) const MAX_REQUEST: u8 = 56;
pub(super) const MAX_ANSWER: u8 = 196;
pub(super) const MAX_REJECTION: u8 = 148;
pub(super) const MAX_DATAGRAM_REQUEST: u8 = 180;
pub(super) const MAX_DATAGRAM_ANSWER: u8 = 136;

/// How many bytes iWARP carries. siw adds four of its own to their number, in one byte: with more it
/// wraps around, and the request gets lost without an error.
pub(super) const MAX_IWARP: u8 = 251;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_survives_the_zeros_behind_it() {
        for message in [&b""[..], b"x", &[7; 55]] {
            let mut sent = Message::from(message).encode(56).unwrap();
            assert_eq!(sent.message(), Some(message));
            assert_eq!(sent.as_bytes().len(), message.len() + 1);
            sent.len = 56;
            assert_eq!(sent.message(), Some(message));
        }
    }

    #[test]
    fn longer_message_than_fits_is_an_error_with_the_limit() {
        let sent = |len, max| Message::from(&[0; 300][..len]).encode(max);
        let error = sent(56, 56).unwrap_err();
        assert_eq!(
            error.to_string(),
            "private_data 56 exceeds this device's 55"
        );
        assert!(sent(254, 255).is_ok());
        assert!(sent(300, 255).is_err());
    }

    #[test]
    fn raw_bytes_are_sent_as_they_are() {
        for bytes in [&[][..], &[0], &[9; 56]] {
            let sent = Message::raw(bytes).encode(56).unwrap();
            assert_eq!(sent.as_bytes(), bytes);
        }
        let error = Message::raw(&[9; 57]).encode(56).unwrap_err();
        assert_eq!(
            error.to_string(),
            "private_data 57 exceeds this device's 56"
        );
        assert!(Message::raw(&[9; 255]).encode(255).is_ok());
        assert!(Message::raw(&[9; 256]).encode(255).is_err());
    }

    #[test]
    fn bytes_of_another_program_are_no_message() {
        let mut other = PrivateData::EMPTY;
        assert_eq!(other.message(), None);
        (other.len, other.bytes[0]) = (3, 9);
        assert_eq!((other.message(), other.as_bytes()), (None, &[9, 0, 0][..]));
    }
}
