//! Requests and replies, and their encoding.

use std::fmt;

use serde::{Deserialize, Serialize};
use verbs_channel::verbs_core::RemoteMemoryRegion;

use crate::{Failure, Hello};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 128;
/// The length of what precedes key and value in a request.
pub const HEADER: usize = 8;
/// The length of what precedes the contents of a reply.
const REPLY_HEADER: usize = 4;

fn hello() -> Hello {
    Hello::new("kv_store", 1)
}

/// The server's private data: where the values are. A client sends a hello only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    hello: Hello,
    values: Option<Values>,
}

/// The server's values: slots of one length, one after the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the version in the hello determines what there is"
)]
pub struct Values {
    /// Their memory.
    pub region: RemoteMemoryRegion,
    /// The greatest length of a value, in bytes.
    pub max_value: u32,
}

impl Welcome {
    /// Encodes a hello, and where the values are.
    ///
    /// # Errors
    ///
    /// It cannot be written as JSON.
    pub fn encode(values: Option<Values>) -> Result<Vec<u8>, Failure> {
        let hello = hello();
        Ok(serde_json::to_vec(&Self { hello, values })?)
    }

    /// Parses the peer's private data.
    ///
    /// # Errors
    ///
    /// The peer is not `kv_store`, or is another version of it.
    pub fn decode(bytes: &[u8]) -> Result<Option<Values>, Failure> {
        match serde_json::from_slice(bytes) {
            Ok(Self {
                hello: theirs,
                values,
            }) if theirs == hello() => Ok(values),
            Ok(_) => Err(Failure::new(
                "the peer is another program than this kv_store",
            )),
            Err(_) => Err(Failure::new("the peer is no kv_store")),
        }
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the version in the hello determines what there is"
)]
pub enum Request<'a> {
    /// Store a value.
    Put {
        /// Under this key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Requests where the value is; the client reads it itself.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Removes a value.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Requests the keys, in order.
    List {
        /// The keys after this one.
        after: &'a [u8],
    },
    /// The client leaves.
    Bye,
}

/// The error of an invalid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad(&'static str);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl<'a> Request<'a> {
    const fn parts(&self) -> (u8, &'a [u8], &'a [u8]) {
        match *self {
            Self::Put { key, value } => (1, key, value),
            Self::Get { key } => (2, key, &[]),
            Self::Delete { key } => (3, key, &[]),
            Self::List { after } => (4, after, &[]),
            Self::Bye => (5, &[], &[]),
        }
    }

    /// Encodes it to the start of `into`, and returns its length.
    ///
    /// # Errors
    ///
    /// Its key or its value is too long.
    pub fn encode(&self, into: &mut [u8]) -> Result<usize, Failure> {
        let (op, key, value) = self.parts();
        let key_len = u8::try_from(key.len())
            .ok()
            .filter(|len| usize::from(*len) <= MAX_KEY);
        let key_len = key_len.ok_or_else(|| {
            Failure::new(format!(
                "a key of {} bytes; at most {MAX_KEY} are possible",
                key.len()
            ))
        })?;
        let len = HEADER + key.len() + value.len();
        let room = into.len().saturating_sub(HEADER + MAX_KEY);
        let Some(into) = into.get_mut(..len).filter(|_| value.len() <= room) else {
            return Err(Failure::new(format!(
                "a value of {} bytes; this server takes at most {room}",
                value.len()
            )));
        };
        let value_len = u32::try_from(value.len())?.to_be_bytes();
        let bytes = [&[op, key_len, 0, 0], &value_len[..], key, value].concat();
        into.copy_from_slice(&bytes);
        Ok(len)
    }

    /// Decodes a request; any bytes are allowed.
    ///
    /// # Errors
    ///
    /// The request is invalid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Bad> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(Bad("it is too short"))?;
        let [op, key_len, _, _, value_len @ ..] = *header;
        let key_len = usize::from(key_len);
        if key_len > MAX_KEY {
            return Err(Bad("its key is too long"));
        }
        let (key, value) = rest
            .split_at_checked(key_len)
            .ok_or(Bad("it ends in its key"))?;
        if u32::try_from(value.len()) != Ok(u32::from_be_bytes(value_len)) {
            return Err(Bad("its length field is wrong"));
        }
        let request = match op {
            1 => Self::Put { key, value },
            2 => Self::Get { key },
            3 => Self::Delete { key },
            4 => Self::List { after: key },
            5 => Self::Bye,
            _ => return Err(Bad("it asks for nothing that is known")),
        };
        match request {
            Self::Put { .. } | Self::Get { .. } | Self::Delete { .. } if key.is_empty() => {
                Err(Bad("it has no key"))
            }
            Self::Put { .. } => Ok(request),
            _ if !value.is_empty() => Err(Bad("it has a value where none is due")),
            _ => Ok(request),
        }
    }
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the version in the hello determines what there is"
)]
pub enum Reply {
    /// It is done.
    Done,
    /// The value is in this slot.
    At(u32),
    /// There is no such key.
    NotFound,
    /// Keys, in order.
    Keys {
        /// The keys that fit.
        keys: Vec<Vec<u8>>,
        /// Whether there are more keys after them.
        more: bool,
    },
    /// It is not done, for this reason.
    Refused(String),
}

impl Reply {
    /// How many bytes a list of keys takes up to the end of this one, beside the header.
    #[must_use]
    pub const fn room_for(key: &[u8]) -> usize {
        key.len() + 1
    }

    /// The bytes of a reply that are not its header, at most, in a message of this length.
    #[must_use]
    pub const fn room_in(message: usize) -> usize {
        message.saturating_sub(REPLY_HEADER)
    }

    /// Writes it to the beginning of `into`, cut to what fits; its length.
    pub fn encode(&self, into: &mut [u8]) -> usize {
        let (status, contents) = match self {
            Self::Done => (0, Vec::new()),
            Self::At(slot) => (1, slot.to_be_bytes().to_vec()),
            Self::NotFound => (2, Vec::new()),
            Self::Keys { keys, more } => {
                let key = |key: &Vec<u8>| {
                    let len = u8::try_from(key.len()).unwrap_or(u8::MAX);
                    [&[len], &key[..]].concat()
                };
                (3 + u8::from(*more), keys.iter().flat_map(key).collect())
            }
            Self::Refused(why) => (5, why.clone().into_bytes()),
        };
        let bytes = [&[status, 0, 0, 0], &contents[..]].concat();
        let len = bytes.len().min(into.len());
        for (to, from) in into.iter_mut().zip(bytes) {
            *to = from;
        }
        len
    }

    /// Reads what the server sent.
    ///
    /// # Errors
    ///
    /// It is no reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let refuse = || Failure::new("the server's reply makes no sense");
        let (header, contents) = bytes
            .split_first_chunk::<REPLY_HEADER>()
            .ok_or_else(refuse)?;
        match (header[0], contents) {
            (0, []) => Ok(Self::Done),
            (1, &[a, b, c, d]) => Ok(Self::At(u32::from_be_bytes([a, b, c, d]))),
            (2, []) => Ok(Self::NotFound),
            (status @ (3 | 4), mut rest) => {
                let mut keys = Vec::new();
                while let Some((len, after)) = rest.split_first() {
                    let split = after.split_at_checked(usize::from(*len));
                    let (key, after) = split.ok_or_else(refuse)?;
                    keys.push(key.to_vec());
                    rest = after;
                }
                let more = status == 4;
                Ok(Self::Keys { keys, more })
            }
            (5, why) => Ok(Self::Refused(String::from_utf8_lossy(why).into_owned())),
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: [Request<'static>; 6] = [
        Request::Put {
            key: b"k",
            value: b"some value",
        },
        Request::Put {
            key: b"k",
            value: b"",
        },
        Request::Get { key: b"key" },
        Request::Delete { key: b"key" },
        Request::List { after: b"" },
        Request::Bye,
    ];

    #[test]
    fn requests_arrive() {
        for request in REQUESTS {
            let mut bytes = [0xee; 256];
            let len = request.encode(&mut bytes).unwrap();
            assert_eq!(Request::decode(&bytes[..len]), Ok(request));
        }
    }

    #[test]
    fn a_request_of_any_other_length_is_bad() {
        for request in REQUESTS {
            let mut bytes = [0xee; 256];
            let len = request.encode(&mut bytes).unwrap();
            for other in (0..len).chain([len + 1, 256]) {
                assert!(
                    Request::decode(&bytes[..other]).is_err(),
                    "{request:?} {other}"
                );
            }
        }
    }

    #[test]
    fn bad_request_is_answered_with_the_reason() {
        let bad = |bytes: &[u8]| Request::decode(bytes).unwrap_err().0;
        assert_eq!(bad(b""), "it is too short");
        assert_eq!(
            bad(&[9, 0, 0, 0, 0, 0, 0, 0]),
            "it asks for nothing that is known"
        );
        assert_eq!(bad(&[2, 0, 0, 0, 0, 0, 0, 0]), "it has no key");
        assert_eq!(bad(&[2, 255, 0, 0, 0, 0, 0, 0]), "its key is too long");
        assert_eq!(
            bad(&[1, 1, 0, 0, 255, 255, 255, 255, 1]),
            "its length field is wrong"
        );
        assert_eq!(
            bad(&[5, 0, 0, 0, 0, 0, 0, 1, 7]),
            "it has a value where none is due"
        );
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected() {
        let mut read = 0;
        for op in 0..=255 {
            for key_len in [0, 1, 2, 128, 129, 255] {
                for value_len in [0, 1, 255] {
                    for len in 0..20 {
                        let header = [op, key_len, 0, 0, 0, 0, 0, value_len];
                        let bytes = [&header[..], &[7; 20]].concat();
                        read += u32::from(Request::decode(&bytes[..len]).is_ok());
                    }
                }
            }
        }
        // Messages with lengths that agree: puts with and without a value, gets, deletes, lists, a
        // farewell.
        assert_eq!(read, 2 * 2 + 2 + 2 + 3 + 3);
    }

    #[test]
    fn request_that_is_too_long_is_not_sent() {
        let mut message = [0; HEADER + MAX_KEY + 10];
        let long = [1; MAX_KEY + 1];
        assert!(Request::Get { key: &long }.encode(&mut message).is_err());
        assert!(
            Request::Get { key: &long[1..] }
                .encode(&mut message)
                .is_ok()
        );
        let value = [0; 11];
        assert!(
            Request::Put {
                key: b"k",
                value: &value
            }
            .encode(&mut message)
            .is_err()
        );
        assert!(
            Request::Put {
                key: b"k",
                value: &value[1..]
            }
            .encode(&mut message)
            .is_ok()
        );
    }

    #[test]
    fn replies_are_decoded_and_other_messages_rejected() {
        let keys = vec![b"a".to_vec(), vec![7; MAX_KEY]];
        for reply in [
            Reply::Done,
            Reply::At(0x0102_0304),
            Reply::NotFound,
            Reply::Keys {
                keys: Vec::new(),
                more: false,
            },
            Reply::Keys { keys, more: true },
            Reply::Refused("full".to_owned()),
        ] {
            let mut bytes = [0; 300];
            let len = reply.encode(&mut bytes);
            assert_eq!(Reply::decode(&bytes[..len]).unwrap(), reply);
        }
        for bad in [
            &[][..],
            &[0, 0, 0],
            &[0, 0, 0, 0, 1],
            &[1, 0, 0, 0, 1],
            &[6, 0, 0, 0],
            &[3, 0, 0, 0, 5, 1],
        ] {
            assert!(Reply::decode(bad).is_err(), "{bad:?}");
        }
        let mut short = [0; 6];
        assert_eq!(Reply::Refused("long".to_owned()).encode(&mut short), 6);
    }

    #[test]
    fn invalid_welcome_is_rejected() {
        assert!(
            Welcome::decode(&Welcome::encode(None).unwrap())
                .unwrap()
                .is_none()
        );
        for bad in [
            &b""[..],
            b"{}",
            b"\xff",
            b"{\"hello\":{\"program\":\"x\",\"version\":1}}",
        ] {
            assert!(Welcome::decode(bad).is_err());
        }
    }
}
