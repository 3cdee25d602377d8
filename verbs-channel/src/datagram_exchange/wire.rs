//! The wire format of the exchange over datagrams.

use std::error::Error;

use verbs_core::QueuePairEndpoint;

use crate::exchange::{
    ExchangeError, ExchangeError::PrivateDataBeyondMtu, MAX_PRIVATE_DATA, PeerEndpoint, RefusalCode,
};
use crate::exchange::{check_private_data, peer, reason, refusal};

const MAGIC: [u8; 4] = *b"VRBD";
const VERSION: u16 = 1;

/// Bytes of the header, before the payload. It is the same in every version.
const HEADER: usize = 24;

const REQUEST: u16 = 1;
const COOKIE: u16 = 2;
const ACCEPT: u16 = 3;
const READY: u16 = 4;
const CONFIRM: u16 = 5;
const DONE: u16 = 6;
/// Its format is the same in every version.
const REFUSED: u16 = 7;

/// Bytes of a REQUEST before the endpoint: the cookie, and the longest datagram of the client's port.
const BEFORE_ENDPOINT: usize = 8 + 2;

/// Identifies an exchange: a number of the client's, and one of the server's, which is 0 before the
/// server has chosen one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) client: u64,
    pub(super) server: u64,
}

/// A message that was received.
#[derive(Debug)]
pub(super) enum Message<'a> {
    Request {
        cookie: u64,
        /// The longest datagram of the client's port.
        max_payload: u16,
        /// Parsed by [`peer_in`], once the cookie is known to be good.
        peer: &'a [u8],
    },
    Cookie(u64),
    Accept(&'a [u8]),
    Ready,
    Confirm,
    Done,
    Refused(ExchangeError),
    /// This version or this kind is not known, or the length is wrong.
    Unusable(ExchangeError),
}

/// Parses a datagram. `None` if it is of another protocol.
pub(super) fn parse(bytes: &[u8]) -> Option<(Session, Message<'_>)> {
    let mut rest = bytes;
    if take(&mut rest)? != MAGIC {
        return None;
    }
    let version = u16::from_be_bytes(take(&mut rest)?);
    let kind = u16::from_be_bytes(take(&mut rest)?);
    let session = Session {
        client: u64::from_be_bytes(take(&mut rest)?),
        server: u64::from_be_bytes(take(&mut rest)?),
    };
    let message = if kind == REFUSED {
        Message::Refused(refused_by(rest))
    } else if version == VERSION {
        payload(kind, rest).unwrap_or_else(|| {
            let (got, expected) = (kind, REFUSED);
            Message::Unusable(ExchangeError::Kind { got, expected })
        })
    } else {
        Message::Unusable(ExchangeError::Version(version))
    };
    Some((session, message))
}

/// Parses what follows the header. Later versions of this protocol may make a message longer: bytes that
/// are not known are ignored.
fn payload(kind: u16, mut rest: &[u8]) -> Option<Message<'_>> {
    Some(match kind {
        REQUEST => Message::Request {
            cookie: u64::from_be_bytes(take(&mut rest)?),
            max_payload: u16::from_be_bytes(take(&mut rest)?),
            peer: rest,
        },
        COOKIE => Message::Cookie(u64::from_be_bytes(take(&mut rest)?)),
        ACCEPT => Message::Accept(rest),
        READY => Message::Ready,
        CONFIRM => Message::Confirm,
        DONE => Message::Done,
        _ => return None,
    })
}

/// The endpoint and the private data of a REQUEST or an ACCEPT.
pub(super) fn peer_in(payload: &[u8]) -> Result<PeerEndpoint, ExchangeError> {
    let max = QueuePairEndpoint::BYTES + MAX_PRIVATE_DATA;
    if payload.len() > max {
        let len = payload.len();
        return Err(ExchangeError::TooLong { len, max });
    }
    peer(payload)
}

/// The error for a peer's refusal. That an exchange is unknown has no text on the wire: a datagram with a
/// forged source must not cause a longer one to be sent there.
fn refused_by(payload: &[u8]) -> ExchangeError {
    match refusal(payload) {
        ExchangeError::Refused { code, .. } if code == RefusalCode::UNKNOWN => {
            let words = "it has restarted, or has ended this exchange".to_owned();
            ExchangeError::Refused { code, words }
        }
        error => error,
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

/// A message to the server.
pub(super) fn request(
    session: Session,
    cookie: u64,
    max_payload: u16,
    endpoint_and_data: &[u8],
) -> Vec<u8> {
    let (cookie, max_payload) = (cookie.to_be_bytes(), max_payload.to_be_bytes());
    message(
        REQUEST,
        session,
        &[&cookie, &max_payload, endpoint_and_data],
    )
}

pub(super) fn ready(session: Session) -> Vec<u8> {
    message(READY, session, &[])
}

pub(super) fn done(session: Session) -> Vec<u8> {
    message(DONE, session, &[])
}

pub(super) fn cookie(session: Session, cookie: u64) -> Vec<u8> {
    message(COOKIE, session, &[&cookie.to_be_bytes()])
}

pub(super) fn accept(session: Session, endpoint: &QueuePairEndpoint, data: &[u8]) -> Vec<u8> {
    message(ACCEPT, session, &[&endpoint.to_bytes(), data])
}

pub(super) fn confirm(session: Session) -> Vec<u8> {
    message(CONFIRM, session, &[])
}

/// Refuses, in at most `max_payload` bytes.
pub(super) fn refused(
    session: Session,
    code: RefusalCode,
    why: &dyn Error,
    max_payload: u32,
) -> Vec<u8> {
    let max = (max_payload as usize).saturating_sub(HEADER);
    message(REFUSED, session, &[&reason(code, why, max)])
}

pub(super) fn unknown(session: Session) -> Vec<u8> {
    let code = RefusalCode::UNKNOWN.as_raw();
    message(REFUSED, session, &[&code.to_be_bytes()])
}

fn message(kind: u16, session: Session, payload: &[&[u8]]) -> Vec<u8> {
    let mut message =
        Vec::with_capacity(HEADER + payload.iter().map(|part| part.len()).sum::<usize>());
    message.extend(MAGIC);
    message.extend(VERSION.to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend(session.client.to_be_bytes());
    message.extend(session.server.to_be_bytes());
    message.extend(payload.iter().copied().flatten());
    message
}

/// The most bytes of private data that a client can send, with datagrams of this length.
pub(super) const fn max_of_request(max_payload: u32) -> usize {
    room(max_payload, HEADER + BEFORE_ENDPOINT)
}

/// The most bytes of private data that a server can send.
pub(super) const fn max_of_accept(max_payload: u32) -> usize {
    room(max_payload, HEADER)
}

const fn room(max_payload: u32, before: usize) -> usize {
    let room = (max_payload as usize).saturating_sub(before + QueuePairEndpoint::BYTES);
    if room < MAX_PRIVATE_DATA {
        room
    } else {
        MAX_PRIVATE_DATA
    }
}

/// Checks the length of private data.
pub(super) fn check(private_data: &[u8], max: usize) -> Result<(), ExchangeError> {
    check_private_data(private_data)?;
    let len = private_data.len();
    if len > max {
        return Err(PrivateDataBeyondMtu { len, max });
    }
    Ok(())
}
