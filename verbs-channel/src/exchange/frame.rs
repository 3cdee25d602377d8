//! The wire format of the exchange.

use std::error::Error;

use verbs_core::QueuePairEndpoint;
use verbs_core::device::TransportType;

use super::error::{ExchangeError, RefusalCode};
use super::limits::{MAX_PRIVATE_DATA, VERSION};

/// Bytes of the header, before the payload.
pub(super) const HEADER: usize = 12;

/// The kinds of frames, in the order in which they are due.
pub(super) const ENDPOINT: u16 = 1;
pub(super) const READY: u16 = 2;
/// Sent in place of any. Its format is the same in every version.
pub(super) const REFUSED: u16 = 3;
/// Those of devices of iWARP, before `READY`.
pub(super) const PROPOSAL: u16 = 4;
pub(super) const LISTENER: u16 = 5;

/// Bytes of a proposal before the private data, and of a listener's address.
pub(super) const PROPOSED: usize = 9;
pub(super) const ADDRESS: usize = 18;

pub(super) const MAGIC: [u8; 4] = *b"VRBC";

/// The longest payload of a refusal, its code included.
const MAX_REFUSAL: usize = 256;

/// The payload of an endpoint's frame.
pub(super) fn endpoint(endpoint: &QueuePairEndpoint, private_data: &[u8]) -> Vec<u8> {
    frame(ENDPOINT, &[&endpoint.to_bytes(), private_data])
}

#[cfg(feature = "rdmacm")]
pub(super) fn proposal(proposed: [u8; PROPOSED], private_data: &[u8]) -> Vec<u8> {
    frame(PROPOSAL, &[&proposed, private_data])
}

#[cfg(feature = "rdmacm")]
pub(super) fn listener(address: &[u8]) -> Vec<u8> {
    frame(LISTENER, &[address])
}

pub(super) fn ready() -> Vec<u8> {
    frame(READY, &[])
}

pub(super) fn refused(code: RefusalCode, why: &dyn Error) -> Vec<u8> {
    frame(REFUSED, &[&reason(code, why, MAX_REFUSAL)])
}

/// The payload of a refusal, at most `max` bytes: the code, and the texts of an error and of its causes,
/// as far as they fit. A cause that an error's text already contains is not repeated.
pub(crate) fn reason(code: RefusalCode, why: &dyn Error, max: usize) -> Vec<u8> {
    let code = code.as_raw().to_be_bytes();
    let mut words = why.to_string();
    let mut cause = why.source();
    while let Some(error) = cause
        && words.len() < MAX_REFUSAL
    {
        let clause = error.to_string();
        if !words.contains(&clause) {
            words = format!("{words}: {clause}");
        }
        cause = error.source();
    }
    let room = max.min(MAX_REFUSAL).saturating_sub(code.len());
    let end = (0..=room.min(words.len())).rfind(|at| words.is_char_boundary(*at));
    words.truncate(end.unwrap_or(0));
    [&code, words.as_bytes()].concat()
}

fn frame(kind: u16, payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let (version, kind, len) = (VERSION.to_be_bytes(), kind.to_be_bytes(), len.to_be_bytes());
    [&MAGIC[..], &version, &kind, &len, &payload].concat()
}

/// Checks the first bytes of a frame, as far as they have arrived.
pub(super) fn begins(bytes: &[u8]) -> Result<(), ExchangeError> {
    match bytes.first_chunk() {
        Some(magic) if *magic != MAGIC => Err(ExchangeError::NotOurs(*magic)),
        _ => Ok(()),
    }
}

/// Parses a header: the kind, which is the one that is due or a refusal, and the payload's length.
pub(super) fn header(bytes: &[u8; HEADER], due: u16) -> Result<(u16, usize), ExchangeError> {
    let [_, _, _, _, v0, v1, k0, k1, l0, l1, l2, l3] = *bytes;
    let version = u16::from_be_bytes([v0, v1]);
    let kind = u16::from_be_bytes([k0, k1]);
    if version != VERSION && kind != REFUSED {
        return Err(ExchangeError::Version(version));
    }
    let max = match kind {
        REFUSED => MAX_REFUSAL,
        _ if kind != due => return Err(unexpected(kind, due)),
        ENDPOINT => QueuePairEndpoint::BYTES + MAX_PRIVATE_DATA,
        PROPOSAL => PROPOSED + MAX_PRIVATE_DATA,
        LISTENER => ADDRESS,
        _ => 0,
    };
    let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if len > max {
        return Err(ExchangeError::TooLong { len, max });
    }
    Ok((kind, len))
}

/// The error of a frame of this kind where another is due.
const fn unexpected(got: u16, expected: u16) -> ExchangeError {
    let (peer, ours) = match (got, expected) {
        (PROPOSAL, ENDPOINT) => (TransportType::IWARP, TransportType::IB),
        (ENDPOINT, PROPOSAL) => (TransportType::IB, TransportType::IWARP),
        _ => return ExchangeError::Kind { got, expected },
    };
    ExchangeError::OtherTransport { peer, ours }
}

/// A peer's endpoint and its private data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerEndpoint {
    /// The endpoint to connect the queue pair to.
    pub endpoint: QueuePairEndpoint,
    /// At most [`MAX_PRIVATE_DATA`] bytes: do not trust what the peer sent.
    pub private_data: Vec<u8>,
}

/// Private data that are too long for a frame are an error before there is one.
pub(crate) const fn check_private_data(private_data: &[u8]) -> Result<(), ExchangeError> {
    match private_data.len() {
        ..=MAX_PRIVATE_DATA => Ok(()),
        len => Err(ExchangeError::PrivateData(len)),
    }
}

/// Parses the payload of an endpoint's frame.
pub(crate) fn peer(payload: &[u8]) -> Result<PeerEndpoint, ExchangeError> {
    let split = QueuePairEndpoint::BYTES.min(payload.len());
    let (endpoint, private_data) = payload.split_at(split);
    Ok(PeerEndpoint {
        endpoint: QueuePairEndpoint::from_bytes(endpoint)?,
        private_data: private_data.to_vec(),
    })
}

/// Parses the payload of a refusal.
pub(crate) fn refusal(payload: &[u8]) -> ExchangeError {
    let (code, words) = payload.split_at(payload.len().min(2));
    let code = code.try_into().map_or(0, u16::from_be_bytes);
    ExchangeError::Refused {
        code: RefusalCode(code),
        words: String::from_utf8_lossy(words).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn words(why: &str) -> String {
        let frame = refused(RefusalCode::HANDSHAKE, &io::Error::other(why));
        assert!(frame.len() <= HEADER + MAX_REFUSAL);
        match refusal(&frame[HEADER..]) {
            ExchangeError::Refused { code, words } => {
                assert_eq!(code, RefusalCode::HANDSHAKE);
                words
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(words("no"), "no");
        assert_eq!(words(&"x".repeat(1000)), "x".repeat(254));
        assert_eq!(words(&"€".repeat(1000)), "€".repeat(84));
    }

    #[test]
    fn refusal_has_each_cause_once() {
        /// Its text includes its source, as that of many applications' errors does.
        #[derive(Debug, thiserror::Error)]
        #[error("no place: {0}")]
        struct Repeats(#[source] verbs_core::error::EndpointError);

        let shown = |why: &dyn Error| {
            let frame = refused(RefusalCode::HANDSHAKE, why);
            refusal(&frame[HEADER..]).to_string()
        };
        let cause = "this side's port is addressed by LID and the peer gave none";
        assert_eq!(
            shown(&Repeats(verbs_core::error::EndpointError::NoLid)),
            format!("the peer refused the connection: \"no place: {cause}\"")
        );
        let own = ExchangeError::Endpoint(verbs_core::error::EndpointError::NoLid);
        assert_eq!(
            shown(&own),
            format!(
                "the peer refused the connection: \"the peer sent an endpoint that is not usable: {cause}\""
            )
        );
    }

    #[test]
    fn refusal_has_the_causes() {
        let why = ExchangeError::Tcp {
            what: "write to",
            source: io::Error::other("the wire is cut"),
        };
        let frame = refused(RefusalCode::HANDSHAKE, &why);
        let shown = refusal(&frame[HEADER..]).to_string();
        assert_eq!(
            shown,
            "the peer refused the connection: \"cannot write to the peer: the wire is cut\""
        );
    }

    #[test]
    fn control_characters_of_a_peer_are_escaped() {
        let shown = refusal(b"\0\x04\x1b[2J\r\n\x9b\xff\xe2\x80\xae\x7f").to_string();
        assert!(
            shown.chars().all(|c| !c.is_control() && c != '\u{202e}'),
            "{shown}"
        );
    }

    #[test]
    fn refusal_of_any_length_is_parsed() {
        for len in (0..=MAX_REFUSAL).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let payload = vec![0xff; len];
            assert!(matches!(refusal(&payload), ExchangeError::Refused { .. }));
        }
    }

    #[test]
    fn payload_is_bounded_by_its_kind() {
        let good = |kind: u16, len: u32| {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&MAGIC);
            header[4..6].copy_from_slice(&VERSION.to_be_bytes());
            header[6..8].copy_from_slice(&kind.to_be_bytes());
            header[8..].copy_from_slice(&len.to_be_bytes());
            header
        };
        assert!(matches!(header(&good(1, 1061), ENDPOINT), Ok((1, 1061))));
        assert!(matches!(header(&good(2, 0), READY), Ok((2, 0))));
        assert!(matches!(header(&good(3, 256), READY), Ok((3, 256))));
        for (kind, due, max) in [
            (ENDPOINT, ENDPOINT, 1061),
            (READY, READY, 0),
            (REFUSED, READY, 256),
        ] {
            for len in [max + 1, u32::MAX] {
                let error = header(&good(kind, len), due);
                let Err(ExchangeError::TooLong { max: limit, .. }) = error else {
                    panic!("{error:?}");
                };
                assert_eq!(limit, max as usize);
            }
        }
    }
}
