//! Agreeing over a stream on a connection by `rdma_cm`, as devices of iWARP need it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use verbs_core::device::TransportType;
use verbs_core::rdmacm::PrivateData;

use super::cm::{hello, private_data};
use super::error::ExchangeError;
use super::frame::{ADDRESS, PROPOSED};
use super::side::Side;

/// A side's message about itself, from which both decide who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Proposal {
    side: Side,
    nonce: u64,
}

/// How two sides connect by `rdma_cm`, after they have agreed on that over a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meeting {
    /// Whether this side listens, and the peer connects to it.
    pub listens: bool,
    /// Where the peer listens; `None` before it has sent that, and if this side listens.
    pub listener: Option<SocketAddr>,
    /// At most [`MAX_PRIVATE_DATA`](super::MAX_PRIVATE_DATA) bytes: do not trust what the peer sent.
    pub private_data: Vec<u8>,
    /// The nonces that the request and the answer carry.
    request: u64,
    answer: u64,
}

impl Meeting {
    /// Those of two sides that need no stream to agree: the first connects, and the other listens.
    pub(crate) fn pair() -> [Self; 2] {
        let (request, answer) = (
            verbs_core::__private::random(),
            verbs_core::__private::random(),
        );
        [false, true].map(|listens| Self {
            listens,
            listener: None,
            private_data: Vec::new(),
            request,
            answer,
        })
    }

    /// The private data of the request of `rdma_cm`.
    ///
    /// # Errors
    ///
    /// None: the data are short.
    pub fn request(&self) -> Result<Vec<u8>, ExchangeError> {
        hello(&self.request.to_be_bytes())
    }

    /// The private data of the answer.
    ///
    /// # Errors
    ///
    /// None: the data are short.
    pub fn answer(&self) -> Result<Vec<u8>, ExchangeError> {
        hello(&self.answer.to_be_bytes())
    }

    /// Whether a request with these data is that of the peer at the end of the stream.
    #[must_use]
    pub fn is_request(&self, come: &PrivateData) -> bool {
        private_data(come).is_ok_and(|nonce| nonce == self.request.to_be_bytes())
    }

    /// The same for an answer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Stranger`].
    pub fn check_answer(&self, come: &PrivateData) -> Result<(), ExchangeError> {
        let is_ours = private_data(come).is_ok_and(|nonce| nonce == self.answer.to_be_bytes());
        is_ours.then_some(()).ok_or(ExchangeError::Stranger)
    }
}

impl Proposal {
    pub(super) fn new(side: Side) -> Self {
        let nonce = verbs_core::__private::random();
        Self { side, nonce }
    }

    pub(super) fn to_bytes(self) -> [u8; PROPOSED] {
        let mut bytes = [0; PROPOSED];
        let (side, nonce) = bytes.split_at_mut(1);
        side.fill(match self.side {
            Side::Connects => 0,
            Side::Either => 1,
            Side::Accepts => 2,
        });
        nonce.copy_from_slice(&self.nonce.to_be_bytes());
        bytes
    }

    fn from_bytes([side, nonce @ ..]: [u8; PROPOSED]) -> Option<Self> {
        let side = match side {
            0 => Side::Connects,
            1 => Side::Either,
            2 => Side::Accepts,
            _ => return None,
        };
        let nonce = u64::from_be_bytes(nonce);
        Some(Self { side, nonce })
    }

    fn meet(self, theirs: Self, private_data: &[u8]) -> Result<Meeting, ExchangeError> {
        if self.nonce == theirs.nonce {
            return Err(ExchangeError::Proposal("the same nonce as this side"));
        }
        if (self.side, theirs.side) == (Side::Accepts, Side::Accepts) {
            let what = "a proposal to accept by rdma_cm, and this side accepts, too";
            return Err(ExchangeError::Proposal(what));
        }
        let (low, high) = (self.min(theirs), self.max(theirs));
        Ok(Meeting {
            listens: high == self,
            listener: None,
            private_data: private_data.to_vec(),
            request: high.nonce,
            answer: low.nonce,
        })
    }
}

/// Parses the payload of a proposal, for a side that has sent its own.
pub(super) fn proposed(ours: Option<Proposal>, payload: &[u8]) -> Result<Meeting, ExchangeError> {
    // Such a frame is due for a side that has a proposal.
    let ours = ours.ok_or(ExchangeError::OtherTransport {
        peer: TransportType::IWARP,
        ours: TransportType::IB,
    })?;
    let split = payload.split_first_chunk();
    let theirs = split.and_then(|(bytes, data)| Some((Proposal::from_bytes(*bytes)?, data)));
    let unusable = ExchangeError::Proposal("a proposal for rdma_cm that cannot be used");
    let (theirs, private_data) = theirs.ok_or(unusable)?;
    ours.meet(theirs, private_data)
}

/// Parses the payload of a listener's frame: an address if this side does not listen, otherwise nothing.
pub(super) fn listens(meeting: Option<&mut Meeting>, payload: &[u8]) -> Result<(), ExchangeError> {
    let unusable = ExchangeError::Proposal("an address for rdma_cm that cannot be used");
    let Some(meeting) = meeting else {
        return Err(unusable);
    };
    meeting.listener = match (meeting.listens, payload.try_into()) {
        (true, _) if payload.is_empty() => None,
        (false, Ok(bytes)) => Some(address(bytes).ok_or(unusable)?),
        _ => return Err(unusable),
    };
    Ok(())
}

pub(super) fn address_bytes(address: SocketAddr) -> [u8; ADDRESS] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    let (to, port) = bytes.split_at_mut(16);
    to.copy_from_slice(&ip.octets());
    port.copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// An address that one can connect to.
fn address([ip @ .., p0, p1]: [u8; ADDRESS]) -> Option<SocketAddr> {
    let ip = Ipv6Addr::from(ip).to_canonical();
    let port = u16::from_be_bytes([p0, p1]);
    let is_of_many = match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    let is_one = !ip.is_unspecified() && !is_of_many && port != 0;
    is_one.then(|| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use verbs_core::{PacketSequenceNumber, QueuePairEndpoint};

    use super::super::frame::{self, HEADER};
    use super::super::{Exchange, Io, RefusalCode};
    use super::*;

    fn begin(side: Side, private_data: &[u8]) -> Exchange {
        Exchange::by_manager(private_data, side).unwrap()
    }

    /// Runs an exchange against a peer that sends these bytes, and closes the connection. Returns what this
    /// side sent.
    fn run(exchange: &mut Exchange, theirs: &mut &[u8]) -> (Result<(), ExchangeError>, Vec<u8>) {
        let mut sent = Vec::new();
        loop {
            let moved = match exchange.io() {
                Ok(Some(Io::Write(bytes))) => {
                    sent.extend(bytes);
                    Ok(bytes.len())
                }
                Ok(Some(Io::Read(buffer))) => {
                    let most = 7.min(buffer.len());
                    std::io::Read::read(theirs, &mut buffer[..most])
                }
                Ok(None) => return (Ok(()), sent),
                Err(error) => return (Err(error), sent),
            };
            exchange.moved(moved);
        }
    }

    /// Both sides' first frames reach the other.
    fn proposed_to(one: &mut Exchange, other: &mut Exchange) -> [Result<(), ExchangeError>; 2] {
        let (from_one, from_other) = (one.out.clone(), other.out.clone());
        [
            run(one, &mut &from_other[..]).0,
            run(other, &mut &from_one[..]).0,
        ]
    }

    #[test]
    fn the_side_that_accepts_listens_and_of_two_equal_ones_one() {
        use Side::{Accepts, Connects, Either};
        for (one, other, listens) in [
            (Accepts, Connects, Some(true)),
            (Accepts, Either, Some(true)),
            (Either, Connects, Some(true)),
            (Either, Accepts, Some(false)),
            (Either, Either, None),
            // Something between them has accepted both.
            (Connects, Connects, None),
        ] {
            let (mut one, mut other) = (begin(one, b"one"), begin(other, b"other"));
            for met in proposed_to(&mut one, &mut other) {
                met.unwrap();
            }
            let [one, other] = [one, other].map(|exchange| exchange.meeting.unwrap());
            assert_eq!(one.private_data, b"other");
            assert_eq!(other.private_data, b"one");
            assert_ne!(one.listens, other.listens);
            assert!(listens.is_none_or(|listens| one.listens == listens));
            assert_eq!(
                (one.request, one.answer),
                (other.request, other.answer),
                "the nonces are those of both"
            );
            assert_ne!(one.request, one.answer);
        }
        for met in proposed_to(&mut begin(Accepts, b""), &mut begin(Accepts, b"")) {
            let error = met.unwrap_err().to_string();
            assert!(error.contains("this side accepts, too"), "{error}");
        }
    }

    /// The address that the listening side sends after its proposal.
    fn listener(address: Option<&str>) -> Result<Option<SocketAddr>, ExchangeError> {
        let (mut one, mut other) = (begin(Side::Accepts, b""), begin(Side::Connects, b""));
        drop(proposed_to(&mut one, &mut other));
        one.listens_at(address.map(|text| text.parse().unwrap()));
        other.listens_at(None);
        let (_, sent) = run(&mut one, &mut &b""[..]);
        run(&mut other, &mut &sent[..]).0?;
        Ok(other.meeting.unwrap().listener)
    }

    #[test]
    fn addresses_of_listeners_arrive() {
        for text in ["192.0.2.7:80", "[2001:db8::1]:7471", "127.0.0.1:1"] {
            let arrived = listener(Some(text)).unwrap();
            assert_eq!(arrived, Some(text.parse().unwrap()));
        }
        // The link is that of the other side.
        let arrived = listener(Some("[fe80::1%3]:5")).unwrap();
        assert_eq!(arrived, Some("[fe80::1]:5".parse().unwrap()));
    }

    #[test]
    fn address_that_cannot_be_connected_to_is_refused() {
        for text in [
            None,
            Some("192.0.2.7:0"),
            Some("0.0.0.0:80"),
            Some("[::]:80"),
            Some("224.0.0.1:80"),
            Some("255.255.255.255:80"),
            Some("[ff02::1]:80"),
        ] {
            let error = listener(text).unwrap_err();
            let expected = "the peer sent an address for rdma_cm that cannot be used";
            assert_eq!(error.to_string(), expected, "{text:?}");
        }
        // One that this side has no use for, as it listens.
        let (mut one, mut other) = (begin(Side::Accepts, b""), begin(Side::Connects, b""));
        drop(proposed_to(&mut one, &mut other));
        one.listens_at(Some("192.0.2.7:80".parse().unwrap()));
        let bytes = frame::listener(&address_bytes("192.0.2.7:81".parse().unwrap()));
        let (met, sent) = run(&mut one, &mut &bytes[..]);
        assert!(matches!(met, Err(ExchangeError::Proposal(_))), "{met:?}");
        let refusal = String::from_utf8_lossy(&sent).into_owned();
        assert!(refusal.contains("an address for rdma_cm"), "{refusal}");
    }

    /// As for endpoints: a lie in what the peer may choose is accepted, any other is an error that names what
    /// it sent.
    #[test]
    fn each_byte_of_a_proposal_and_of_an_address_may_lie() {
        let mut other = begin(Side::Accepts, b"");
        let first = other.out.clone();
        other.listens_at(Some("192.0.2.7:80".parse().unwrap()));
        other.out.extend(frame::ready());
        let truth = other.out.clone();
        let mut accepted = BTreeSet::new();
        for at in 0..truth.len() {
            for lie in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut bytes = truth.clone();
                bytes[at] ^= lie;
                let mut theirs = &bytes[..];
                let mut ours = begin(Side::Connects, b"");
                let mut ended = run(&mut ours, &mut theirs).0;
                if ended.is_ok() {
                    let listens = ours.meeting.as_ref().unwrap().listens;
                    ours.listens_at(listens.then(|| "192.0.2.8:80".parse().unwrap()));
                    ended = run(&mut ours, &mut theirs).0;
                }
                if ended.is_ok() {
                    ours.ready();
                    ended = run(&mut ours, &mut theirs).0;
                }
                let Err(error) = ended else {
                    if lie != 0 {
                        accepted.insert(at);
                    }
                    continue;
                };
                assert_ne!(lie, 0, "{at}: {error}");
                assert!(matches!(ours.io(), Err(ExchangeError::Over)));
                let text = error.to_string();
                assert!(
                    text.contains("the peer") && text.len() < 200,
                    "{at}: {text}"
                );
            }
        }
        // The side and the nonce; the address and its port.
        let nonce = first.len() - 8..first.len();
        let address = first.len() + HEADER;
        let may = |at: usize| {
            (HEADER..first.len()).contains(&at) || (address..address + ADDRESS).contains(&at)
        };
        assert!(accepted.iter().all(|at| may(*at)), "{accepted:?}");
        assert!(nonce.into_iter().all(|at| accepted.contains(&at)));
    }

    #[test]
    fn truncated_and_mirrored_proposals_are_refused() {
        let refuses = |bytes: &[u8], text: &str| {
            let mut ours = begin(Side::Either, b"");
            let bytes = match bytes {
                [] => ours.out.clone(),
                bytes => bytes.to_vec(),
            };
            let (met, sent) = run(&mut ours, &mut &bytes[..]);
            let error = met.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            let refusal = String::from_utf8_lossy(&sent).into_owned();
            assert!(refusal.contains(text), "{refusal}");
        };
        refuses(&[], "the same nonce");
        for len in 0..PROPOSED {
            let mut cut = begin(Side::Either, b"").out;
            cut.truncate(HEADER + len);
            let payload = u32::try_from(cut.len() - HEADER).unwrap();
            cut[8..HEADER].copy_from_slice(&payload.to_be_bytes());
            refuses(&cut, "a proposal for rdma_cm that cannot be used");
        }
    }

    #[test]
    fn sides_of_different_networks_are_errors_that_name_both() {
        let mut iwarp = begin(Side::Connects, b"");
        let psn = PacketSequenceNumber::new(7).unwrap();
        let endpoint = QueuePairEndpoint::builder(3, psn).lid(1).build().unwrap();
        let mut roce = Exchange::new(&endpoint, b"").unwrap();
        let [at_iwarp, at_roce] = proposed_to(&mut iwarp, &mut roce).map(Result::unwrap_err);
        assert_eq!(
            at_iwarp.to_string(),
            "the device of the peer is of InfiniBand or RoCE, and this side's of iWARP: \
             they cannot be connected"
        );
        assert_eq!(
            at_roce.to_string(),
            "the device of the peer is of iWARP, and this side's of InfiniBand or RoCE: \
             they cannot be connected"
        );
        // A peer that is older than the frames of iWARP gets a frame that it knows.
        let refusal = frame::refused(RefusalCode::FRAME, &at_roce);
        let mut iwarp = begin(Side::Connects, b"");
        let refused = run(&mut iwarp, &mut &refusal[..]).0.unwrap_err();
        assert!(matches!(refused, ExchangeError::Refused { .. }));
    }

    #[test]
    fn side_that_reads_ahead_gets_a_refusal_before_it_has_sent_ready() {
        for refuses in [true, false] {
            let (mut one, mut other) = (begin(Side::Accepts, b""), begin(Side::Connects, b""));
            drop(proposed_to(&mut one, &mut other));
            other.listens_at(None);
            let (_, mut sent) = run(&mut other, &mut &b""[..]);
            match refuses {
                true => sent.extend(frame::refused(
                    RefusalCode::HANDSHAKE,
                    &std::io::Error::other("no route"),
                )),
                false => sent.extend(frame::ready()),
            }
            let mut theirs = &sent[..];
            one.listens_at(Some("192.0.2.7:80".parse().unwrap()));
            run(&mut one, &mut theirs).0.unwrap();
            one.read_ahead();
            let (read, written) = run(&mut one, &mut theirs);
            assert!(written.is_empty(), "READY comes later");
            if refuses {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("no route"), "{error}");
                continue;
            }
            read.unwrap();
            one.ready();
            let (read, written) = run(&mut one, &mut theirs);
            read.unwrap();
            assert_eq!(written, frame::ready());
        }
    }
}
