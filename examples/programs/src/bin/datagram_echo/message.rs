//! The contents of a datagram: the number of the client, that of the datagram, and a pattern.

use programs::{Context as _, Failure, Pattern};

/// Bytes before the pattern.
const HEADER: usize = 12;

/// The shortest datagram.
pub(crate) const MIN: i64 = 12;

/// One client's datagram of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) client: u64,
    pub(crate) index: u32,
}

impl Message {
    /// The datagram, of `len` bytes.
    pub(crate) fn bytes(self, len: usize) -> Vec<u8> {
        let (client, index) = (self.client.to_be_bytes(), self.index.to_be_bytes());
        let pattern = self.pattern().bytes(0, len.saturating_sub(HEADER));
        [&client[..], &index, &pattern].concat()
    }

    /// Parses a datagram, and checks every byte of it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let header = bytes.split_first_chunk().and_then(|(client, rest)| {
            let (index, pattern) = rest.split_first_chunk()?;
            let (client, index) = (u64::from_be_bytes(*client), u32::from_be_bytes(*index));
            Some((Self { client, index }, pattern))
        });
        let (message, pattern) = header.ok_or_else(|| {
            let len = bytes.len();
            Failure::new(format!("a datagram of {len} bytes is of another program"))
        })?;
        let checked = message.pattern().check(0, pattern);
        checked.context(|| format!("datagram {} is damaged", message.index))?;
        Ok(message)
    }

    const fn pattern(self) -> Pattern {
        Pattern::new(self.client ^ (self.index as u64) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_checked() {
        let message = Message {
            client: 7,
            index: 9,
        };
        for len in [12, 13, 100] {
            let mut bytes = message.bytes(len);
            assert_eq!(bytes.len(), len);
            assert_eq!(Message::parse(&bytes).unwrap(), message);
            for at in HEADER..len {
                bytes[at] ^= 1;
                assert!(Message::parse(&bytes).is_err());
                bytes[at] ^= 1;
            }
        }
        assert!(Message::parse(&[0; 11]).is_err());
    }
}
