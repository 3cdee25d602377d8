//! The wire format: the immediate of each message, and the HELLO.

use super::error::{StreamError, VERSION};

/// Bytes in a HELLO.
pub(super) const HELLO_LEN: usize = 20;

const MAGIC: [u8; 8] = *b"VRBSTRM\n";

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first one: the sender's settings.
    Hello = 1,
    /// Bytes of the stream.
    Data,
    /// Credits, when there are no bytes to carry them.
    Credit,
    /// The end of the data.
    Fin,
    /// The answer to a FIN: the reader has read, or can read, all bytes before it.
    FinSeen,
    /// The answer to a FIN: the reader was dropped and has not read all bytes.
    FinLost,
    /// The stream was dropped after everything that had arrived was read. The last message.
    Close,
    /// The stream was dropped before everything was read, or aborted. The last message.
    Reset,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Hello,
        Self::Data,
        Self::Credit,
        Self::Fin,
        Self::FinSeen,
        Self::FinLost,
        Self::Close,
        Self::Reset,
    ];
}

/// The immediate of a message: kind, 4 bits; 11 zero bits; whether a HELLO or CREDIT is confirmed,
/// 1 bit; credits, 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The last HELLO or CREDIT of the other side was received.
    pub(super) confirms: bool,
    /// How many receives have been posted again.
    pub(super) credits: u16,
}

/// The settings of a side, as in its HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// The longest message that it can receive.
    pub(super) block_len: u32,
    /// How many DATA messages it can receive before it returns credits.
    pub(super) depth: u16,
}

const CONFIRMS: u32 = 1 << 16;

impl Header {
    pub(super) fn encode(self) -> u32 {
        let kind = self.kind as u32;
        let confirms = if self.confirms { CONFIRMS } else { 0 };
        kind << 28 | confirms | u32::from(self.credits)
    }

    pub(super) fn decode(imm_data: u32) -> Option<Self> {
        let [_, _, high, low] = imm_data.to_be_bytes();
        let number = imm_data >> 28;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == number);
        let header = Self {
            kind: kind?,
            confirms: imm_data & CONFIRMS != 0,
            credits: u16::from_be_bytes([high, low]),
        };
        // The other bits must be 0.
        (header.encode() == imm_data).then_some(header)
    }
}

impl Settings {
    pub(super) fn encode(self) -> [u8; HELLO_LEN] {
        let mut hello = [0; HELLO_LEN];
        let fields = [VERSION, self.block_len, u32::from(self.depth)];
        let fields = fields.into_iter().flat_map(u32::to_be_bytes);
        for (to, from) in hello.iter_mut().zip(MAGIC.into_iter().chain(fields)) {
            *to = from;
        }
        hello
    }

    /// Parses a HELLO. One of a later version may be longer.
    pub(super) fn decode(hello: &[u8]) -> Result<Self, StreamError> {
        let fields = hello.strip_prefix(&MAGIC).ok_or(StreamError::NotAStream)?;
        let mut fields = fields.chunks_exact(4).map(|field| match *field {
            [a, b, c, d] => u32::from_be_bytes([a, b, c, d]),
            _ => 0,
        });
        let mut field = || fields.next().ok_or(StreamError::NotAStream);
        let version = field()?;
        if version != VERSION {
            return Err(StreamError::Version(version));
        }
        let (block_len, depth) = (field()?, field()?);
        if hello.len() != HELLO_LEN {
            return Err(StreamError::Protocol("a HELLO of another length"));
        }
        let nonsense = StreamError::Settings { block_len, depth };
        match u16::try_from(depth) {
            Ok(depth) if block_len > 0 && depth > 0 => Ok(Self { block_len, depth }),
            _ => Err(nonsense),
        }
    }
}

/// Receives in addition to those for DATA: for HELLO or CREDIT, FIN, its answer, and CLOSE or
/// RESET.
pub(super) const SPARE: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_a_round_trip() {
        for kind in Kind::ALL {
            for confirms in [false, true] {
                for credits in [0, 1, 0x1234, u16::MAX] {
                    let header = Header {
                        kind,
                        confirms,
                        credits,
                    };
                    assert_eq!(Header::decode(header.encode()), Some(header));
                }
            }
        }
    }

    #[test]
    fn unknown_kinds_and_bits_are_rejected() {
        for bits in [0, 0x9000_0000, 0xf000_0000, 0x2002_0000, 0x2800_0000] {
            assert_eq!(Header::decode(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn settings_survive_a_round_trip() {
        let (block_len, depth) = (0x0102_0304, 0x0506);
        let settings = Settings { block_len, depth };
        let hello = settings.encode();
        assert_eq!(&hello[8..], [0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 5, 6]);
        assert_eq!(Settings::decode(&hello), Ok(settings));
    }

    #[test]
    fn other_hellos_are_rejected_with_the_reason() {
        let (block_len, depth) = (64, 1);
        let good = Settings { block_len, depth }.encode();
        for other in [&b""[..], b"GET / HTTP/1.1\r\n", &good[..19], &good[..8]] {
            assert_eq!(Settings::decode(other), Err(StreamError::NotAStream));
        }
        let mut newer = good;
        newer[11] = 2;
        assert_eq!(Settings::decode(&newer), Err(StreamError::Version(2)));
        let mut deep = good;
        deep[16] = 1;
        for nonsense in [
            &deep[..],
            &Settings {
                block_len: 0,
                depth,
            }
            .encode(),
            &Settings {
                block_len,
                depth: 0,
            }
            .encode(),
        ] {
            let error = Settings::decode(nonsense).unwrap_err();
            assert!(matches!(error, StreamError::Settings { .. }), "{error}");
        }
        // Its settings are valid.
        for len in [HELLO_LEN + 1, HELLO_LEN + 4, 64] {
            let mut long = good.to_vec();
            long.resize(len, 0);
            let error = Settings::decode(&long).unwrap_err();
            assert_eq!(error, StreamError::Protocol("a HELLO of another length"));
        }
    }
}
