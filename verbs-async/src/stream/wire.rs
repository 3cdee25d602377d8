//! What is said: the immediate that each message has, and the hello.

use super::error::StreamError;

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;

/// Bytes in a hello.
pub(super) const HELLO_LEN: usize = 20;

const MAGIC: [u8; 8] = *b"VRBSTRM\n";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first one: the sender's settings.
    Hello = 1,
    /// Bytes of the stream.
    Data = 2,
    /// Credits, when there are no bytes to carry them.
    Credit = 3,
    /// There are no more bytes.
    Fin = 4,
    /// The stream was dropped.
    Reset = 5,
}

/// What the immediate of a message says: kind, 4 bits; 11 bits of 0; whether a hello or credits have
/// been heard, 1 bit; credits, 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The last hello or credit message of the other side has been heard.
    pub(super) heard: bool,
    /// So many receives have been posted again.
    pub(super) credits: u16,
}

/// What one side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The longest message that it can receive.
    pub(super) block_len: u32,
    /// How many messages with data it can receive before it has given credit for more.
    pub(super) depth: u16,
}

const HEARD: u32 = 1 << 16;

impl Header {
    pub(super) fn encode(self) -> u32 {
        let kind = match self.kind {
            Kind::Hello => 1_u32,
            Kind::Data => 2,
            Kind::Credit => 3,
            Kind::Fin => 4,
            Kind::Reset => 5,
        };
        let heard = if self.heard { HEARD } else { 0 };
        kind << 28 | heard | u32::from(self.credits)
    }

    pub(super) fn decode(imm_data: u32) -> Option<Self> {
        let [_, _, high, low] = imm_data.to_be_bytes();
        let kind = match imm_data >> 28 {
            1 => Kind::Hello,
            2 => Kind::Data,
            3 => Kind::Credit,
            4 => Kind::Fin,
            5 => Kind::Reset,
            _ => return None,
        };
        let header = Self {
            kind,
            heard: imm_data & HEARD != 0,
            credits: u16::from_be_bytes([high, low]),
        };
        // The rest is 0.
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

    /// Reads a hello. One of a later version may be longer.
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
        let nonsense = StreamError::Settings { block_len, depth };
        match u16::try_from(depth) {
            Ok(depth) if hello.len() == HELLO_LEN && block_len > 0 && depth > 0 => {
                Ok(Self { block_len, depth })
            }
            _ => Err(nonsense),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for kind in [
            Kind::Hello,
            Kind::Data,
            Kind::Credit,
            Kind::Fin,
            Kind::Reset,
        ] {
            for heard in [false, true] {
                for credits in [0, 1, 0x1234, u16::MAX] {
                    let header = Header {
                        kind,
                        heard,
                        credits,
                    };
                    assert_eq!(Header::decode(header.encode()), Some(header));
                }
            }
        }
    }

    #[test]
    fn unknown_kinds_and_bits_are_refused() {
        for bits in [0, 0x6000_0000, 0xf000_0000, 0x2002_0000, 0x2800_0000] {
            assert_eq!(Header::decode(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn settings_come_back() {
        let (block_len, depth) = (0x0102_0304, 0x0506);
        let settings = Settings { block_len, depth };
        let hello = settings.encode();
        assert_eq!(&hello[8..], [0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 5, 6]);
        assert_eq!(Settings::decode(&hello), Ok(settings));
    }

    #[test]
    fn other_hellos_are_refused_and_say_why() {
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
            &[&good[..], &[0; 4]].concat(),
        ] {
            let error = Settings::decode(nonsense).unwrap_err();
            assert!(matches!(error, StreamError::Settings { .. }), "{error}");
        }
    }
}
