//! The protocol of the two ends: requests, answers and their contents.
//!
//! ```text
//! 0         8         12        16
//! │ seed    │ index   │ kind    │ bytes of a pattern that seed, index and direction determine …
//! ```

use programs::{Context as _, Failure, Hello, Pattern};
use serde::{Deserialize, Serialize};

/// The length of a message without its pattern.
pub(crate) const HEADER: u32 = 16;
/// The longest message.
pub(crate) const MAX_LEN: u32 = 256;
/// The most requests of a connection without an answer. The server removes a client that sends more.
pub(crate) const WINDOW: u32 = 4;

/// How long a device waits for an acknowledgement, as C's code: 1.07 s, before each of seven retries.
///
/// Soft-RoCE counts timeouts while requests are sent again because the shared queue of the server is empty,
/// and acknowledges late while the processes of a thousand clients have the processors.
pub(crate) const ACK_TIMEOUT: u8 = 18;

/// The private data of each side.
#[derive(Debug, Serialize, Deserialize)]
struct Welcome {
    hello: Hello,
}

pub(crate) fn welcome() -> Result<Vec<u8>, Failure> {
    let hello = Hello::new("many_clients", 1);
    Ok(serde_json::to_vec(&Welcome { hello })?)
}

/// Checks the peer's private data.
pub(crate) fn meet(bytes: &[u8]) -> Result<(), Failure> {
    let theirs: Welcome =
        serde_json::from_slice(bytes).context(|| "the peer is no many_clients")?;
    Hello::new("many_clients", 1).meet(&theirs.hello)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request = 1,
    Answer = 2,
    /// The client leaves.
    Bye = 3,
}

/// A message: which it is determines all of its bytes but its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The connection, by a number that no other one has.
    pub(crate) seed: u64,
    pub(crate) index: u32,
    pub(crate) kind: Kind,
}

impl Message {
    /// Fills `bytes`, of at least [`HEADER`] bytes.
    pub(crate) fn write(self, bytes: &mut [u8]) -> Result<(), Failure> {
        let Some((header, body)) = bytes.split_first_chunk_mut::<{ HEADER as usize }>() else {
            return Err(Failure::new("the message is shorter than its header"));
        };
        *header = self.header();
        body.copy_from_slice(&self.pattern().bytes(0, body.len()));
        Ok(())
    }

    /// Reads a message, and checks every byte of it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Failure> {
        let Some((header, body)) = bytes.split_first_chunk::<{ HEADER as usize }>() else {
            let len = bytes.len();
            return Err(Failure::new(format!(
                "a message of {len} bytes is too short"
            )));
        };
        let [
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            i0,
            i1,
            i2,
            i3,
            k0,
            k1,
            k2,
            k3,
        ] = *header;
        let kind = match u32::from_le_bytes([k0, k1, k2, k3]) {
            1 => Kind::Request,
            2 => Kind::Answer,
            3 => Kind::Bye,
            other => return Err(Failure::new(format!("there is no message of kind {other}"))),
        };
        let message = Self {
            seed: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            index: u32::from_le_bytes([i0, i1, i2, i3]),
            kind,
        };
        message.pattern().check(0, body).context(|| {
            format!(
                "in message {} of connection {:#x}",
                message.index, message.seed
            )
        })?;
        Ok(message)
    }

    /// The answer to a request.
    pub(crate) const fn answer(self) -> Self {
        let Self { seed, index, .. } = self;
        let kind = Kind::Answer;
        Self { seed, index, kind }
    }

    /// The length of a request and its answer, of at most `longest` bytes.
    pub(crate) fn len(self, longest: u32) -> u32 {
        let more = longest.saturating_sub(HEADER) + 1;
        HEADER + Pattern::new(self.seed).immediate(self.index) % more
    }

    fn header(self) -> [u8; HEADER as usize] {
        let mut header = [0; HEADER as usize];
        let parts = self
            .seed
            .to_le_bytes()
            .into_iter()
            .chain(self.index.to_le_bytes())
            .chain((self.kind as u32).to_le_bytes());
        for (byte, of) in header.iter_mut().zip(parts) {
            *byte = of;
        }
        header
    }

    const fn pattern(self) -> Pattern {
        Pattern::new(self.seed ^ ((self.index as u64) << 8) ^ ((self.kind as u64) << 62))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for (index, kind) in [(0, Kind::Request), (7, Kind::Answer), (u32::MAX, Kind::Bye)] {
            let message = Message {
                seed: 0x0123_4567_89ab_cdef,
                index,
                kind,
            };
            for len in [HEADER, HEADER + 1, MAX_LEN] {
                let mut bytes = vec![0; len as usize];
                message.write(&mut bytes).unwrap();
                assert_eq!(Message::read(&bytes).unwrap(), message);
            }
        }
    }

    #[test]
    fn a_wrong_byte_anywhere_is_found() {
        let message = Message {
            seed: 5,
            index: 3,
            kind: Kind::Request,
        };
        let mut bytes = vec![0; 64];
        message.write(&mut bytes).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 0x10;
            assert!(
                Message::read(&bytes).map_or(true, |read| read != message),
                "{at}"
            );
            bytes[at] ^= 0x10;
        }
        assert!(Message::read(&bytes[..15]).is_err());
        // The pattern of an answer is another one.
        let mut answer = vec![0; 64];
        message.answer().write(&mut answer).unwrap();
        assert_ne!(answer[16..], bytes[16..]);
    }

    #[test]
    fn lengths_are_within_their_limits() {
        for longest in [HEADER, HEADER + 1, MAX_LEN] {
            for index in 0..100 {
                let kind = Kind::Request;
                let message = Message {
                    seed: 9,
                    index,
                    kind,
                };
                assert!((HEADER..=longest).contains(&message.len(longest)));
                assert_eq!(message.len(longest), message.answer().len(longest));
            }
        }
    }

    #[test]
    fn other_programs_are_named() {
        meet(&welcome().unwrap()).unwrap();
        assert!(
            meet(b"{}")
                .unwrap_err()
                .to_string()
                .contains("no many_clients")
        );
    }
}
