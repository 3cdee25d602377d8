//! Packets of RoCE v2, from the base transport header to the invariant CRC (volume 1, chapter 9; annex A17).

mod extended;
mod icrc;
mod opcode;
mod psn;
mod route;

pub use extended::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome, rnr_timer};
pub use icrc::icrc;
pub(crate) use icrc::is_intact;
pub use opcode::{Body, Extra, Place, Transport};
pub use psn::Psn;
pub use route::{ROCE_PORT, Route};

use crate::request::RemoteAddress;

/// Bytes of the largest payload.
pub(crate) const MAX_PAYLOAD: usize = 4096;

/// The queue pair number of multicast datagrams.
pub(crate) const MULTICAST_QUEUE_PAIR: u32 = 0xff_ffff;

/// The headers of a packet from the base transport header (BTH) on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Transport service, from the opcode.
    pub transport: Transport,
    /// Kind of packet, from the opcode, and the headers that it has.
    pub body: Body,
    /// The datagram's header, of UD only.
    pub deth: Option<Deth>,
    /// Whether the receiver asked for events of such packets only (SE).
    pub is_solicited: bool,
    /// The migration state (`MigReq`), which `ConnectX` cards set and soft-RoCE does not.
    pub is_migrated: bool,
    /// Partition (`P_Key`).
    pub partition: u16,
    /// Queue pair that the packet is for, 24 bits.
    pub queue_pair: u32,
    /// Whether the responder shall acknowledge (`AckReq`).
    pub wants_ack: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Header {
    /// A header with usual values for all that is not named.
    #[must_use]
    pub const fn new(transport: Transport, body: Body, queue_pair: u32, psn: Psn) -> Self {
        Self {
            transport,
            body,
            deth: None,
            is_solicited: false,
            is_migrated: false,
            partition: 0xffff,
            queue_pair,
            wants_ack: false,
            psn,
        }
    }

    /// Takes a packet apart, `packet` being all that UDP carries. Returns the header and the payload without
    /// its padding, or nothing if this is no packet of RoCE v2 that the card knows.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (rest, _crc) = packet.split_last_chunk::<{ icrc::SIZE }>()?;
        let (bth, mut rest) = rest.split_first_chunk::<12>()?;
        let transport = Body::transport(bth[0])?;
        if bth[1] & 0x0f != 0 {
            // Another version of the header.
            return None;
        }
        let deth = match transport {
            Transport::Ud => Some(Deth {
                qkey: u32(&mut rest)?,
                source_queue_pair: u32(&mut rest)? & 0xff_ffff,
            }),
            Transport::Rc | Transport::Uc => None,
        };
        let body = Body::parse(bth[0], &mut rest)?;
        let padding = usize::from(bth[1] >> 4 & 3);
        let payload = rest.split_at_checked(rest.len().checked_sub(padding)?)?.0;
        let fits = match body.has_payload() {
            true => payload.len() <= MAX_PAYLOAD && (payload.len() + padding).is_multiple_of(4),
            false => rest.is_empty(),
        };
        let header = Self {
            transport,
            body,
            deth,
            is_solicited: bth[1] & 0x80 != 0,
            is_migrated: bth[1] & 0x40 != 0,
            partition: u16::from_be_bytes([bth[2], bth[3]]),
            queue_pair: u32::from_be_bytes([0, bth[5], bth[6], bth[7]]),
            wants_ack: bth[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
        };
        fits.then_some((header, payload))
    }

    /// Appends the header of a packet whose payload has `payload` bytes.
    pub(crate) fn write(&self, payload: usize, packet: &mut Vec<u8>) {
        let flags = u8::from(self.is_solicited) << 7 | u8::from(self.is_migrated) << 6;
        packet.extend([
            self.body.opcode(self.transport),
            flags | padding(payload) << 4,
        ]);
        packet.extend(self.partition.to_be_bytes());
        packet.extend((self.queue_pair & 0xff_ffff).to_be_bytes());
        packet.extend((u32::from(self.wants_ack) << 31 | self.psn.get()).to_be_bytes());
        if let Some(deth) = self.deth {
            packet.extend(deth.qkey.to_be_bytes());
            packet.extend(deth.source_queue_pair.to_be_bytes());
        }
        self.body.write(packet);
    }

    /// A whole packet: header, payload, padding, invariant CRC.
    ///
    /// The card writes its packets by itself; this is for tests and tools.
    #[must_use]
    pub fn packet(&self, route: &Route, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(64 + payload.len());
        self.write(payload.len(), &mut packet);
        packet.extend_from_slice(payload);
        pad(payload.len(), &mut packet);
        packet.extend(icrc(route, &packet).to_le_bytes());
        packet
    }
}

/// Appends the padding of a payload.
pub(crate) fn pad(payload: usize, packet: &mut Vec<u8>) {
    packet.extend_from_slice(&[0; 3][..usize::from(padding(payload))]);
}

/// Bytes from the end of a payload to a multiple of four.
const fn padding(payload: usize) -> u8 {
    [0, 3, 2, 1][payload % 4]
}

impl Body {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Send(_, Extra::None) => {}
            Self::Send(_, Extra::Immediate(immediate)) => to.extend(immediate),
            Self::Send(_, Extra::Invalidate(key)) => to.extend(key.to_be_bytes()),
            Self::Write(_, reth, immediate) => {
                reth.iter().for_each(|reth| reth.write(to));
                to.extend(immediate.iter().flatten());
            }
            Self::ReadRequest(reth) => reth.write(to),
            Self::ReadResponse(_, aeth) => aeth.iter().for_each(|aeth| aeth.write(to)),
            Self::Acknowledge(aeth) => aeth.write(to),
            Self::AtomicAcknowledge(aeth, original) => {
                aeth.write(to);
                to.extend(original.to_be_bytes());
            }
            Self::CompareSwap(atomic) | Self::FetchAdd(atomic) => atomic.write(to),
        }
    }
}

impl RemoteAddress {
    fn parse(from: &mut &[u8]) -> Option<Self> {
        Some(Self::new(u64(from)?, u32(from)?))
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.address.to_be_bytes());
        to.extend(self.rkey.to_be_bytes());
    }
}

impl Reth {
    fn parse(from: &mut &[u8]) -> Option<Self> {
        Some(Self {
            remote: RemoteAddress::parse(from)?,
            length: u32(from)?,
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.remote.write(to);
        to.extend(self.length.to_be_bytes());
    }
}

impl AtomicEth {
    fn parse(from: &mut &[u8]) -> Option<Self> {
        Some(Self {
            remote: RemoteAddress::parse(from)?,
            swap_or_add: u64(from)?,
            compare: u64(from)?,
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.remote.write(to);
        to.extend(self.swap_or_add.to_be_bytes());
        to.extend(self.compare.to_be_bytes());
    }
}

impl Aeth {
    fn parse(from: &mut &[u8]) -> Option<Self> {
        let [syndrome, msn @ ..] = take::<4>(from)?;
        Some(Self {
            syndrome: Syndrome::from_byte(syndrome)?,
            msn: u32::from_be_bytes([0, msn[0], msn[1], msn[2]]),
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let [_, msn @ ..] = self.msn.to_be_bytes();
        to.push(self.syndrome.to_byte());
        to.extend(msn);
    }
}

/// Takes bytes off the front.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*taken)
}

fn u32(from: &mut &[u8]) -> Option<u32> {
    take(from).map(u32::from_be_bytes)
}

fn u64(from: &mut &[u8]) -> Option<u64> {
    take(from).map(u64::from_be_bytes)
}
