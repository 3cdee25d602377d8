//! Opcodes of the base transport header: transport, kind of packet, place in its message (9.2).

use super::{Aeth, AtomicEth, Reth, take, u32, u64};

/// A transport service: reliable connected, unreliable connected, unreliable datagram.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// Reliable connection (RC).
    Rc,
    /// Unreliable connection (UC).
    Uc,
    /// Unreliable datagram (UD).
    Ud,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Place {
    /// The place of a packet, of a message that starts or ends with it, or neither.
    #[must_use]
    pub const fn of(starts: bool, ends: bool) -> Self {
        match (starts, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Whether the message starts with this packet.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends with this packet.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A header that the last packet of a send may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Extra {
    /// Nothing.
    None,
    /// Immediate data (`ImmDt`), in the order of the network.
    Immediate([u8; 4]),
    /// A key to be invalidated (IETH).
    Invalidate(u32),
}

/// A kind of packet, with the headers that it has after the BTH and the DETH.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body {
    /// Part of a send; only the last packet has an extra.
    Send(Place, Extra),
    /// Part of a write: the first packet has a RETH, the last may have immediate data.
    Write(Place, Option<Reth>, Option<[u8; 4]>),
    /// A request to read.
    ReadRequest(Reth),
    /// Part of the answer to a read: all but packets in the middle have an AETH.
    ReadResponse(Place, Option<Aeth>),
    /// An acknowledgement or refusal.
    Acknowledge(Aeth),
    /// The answer to an atomic operation, with the value from before.
    AtomicAcknowledge(Aeth, u64),
    /// A compare-and-swap.
    CompareSwap(AtomicEth),
    /// A fetch-and-add.
    FetchAdd(AtomicEth),
}

impl Transport {
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
        }
    }
}

impl Body {
    /// Whether a responder answers this packet, or else a requester takes it.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::ReadResponse(..) | Self::Acknowledge(_) | Self::AtomicAcknowledge(..)
        )
    }

    /// Whether the packet may have a payload.
    #[must_use]
    pub const fn has_payload(&self) -> bool {
        matches!(
            self,
            Self::Send(..) | Self::Write(..) | Self::ReadResponse(..)
        )
    }

    /// The opcode of this kind of packet.
    #[must_use]
    pub const fn opcode(&self, transport: Transport) -> u8 {
        let code = match self {
            Self::Send(Place::First, _) => 0x00,
            Self::Send(Place::Middle, _) => 0x01,
            Self::Send(Place::Last, Extra::None) => 0x02,
            Self::Send(Place::Last, Extra::Immediate(_)) => 0x03,
            Self::Send(Place::Only, Extra::None) => 0x04,
            Self::Send(Place::Only, Extra::Immediate(_)) => 0x05,
            Self::Write(Place::First, ..) => 0x06,
            Self::Write(Place::Middle, ..) => 0x07,
            Self::Write(Place::Last, _, None) => 0x08,
            Self::Write(Place::Last, _, Some(_)) => 0x09,
            Self::Write(Place::Only, _, None) => 0x0a,
            Self::Write(Place::Only, _, Some(_)) => 0x0b,
            Self::ReadRequest(_) => 0x0c,
            Self::ReadResponse(Place::First, _) => 0x0d,
            Self::ReadResponse(Place::Middle, _) => 0x0e,
            Self::ReadResponse(Place::Last, _) => 0x0f,
            Self::ReadResponse(Place::Only, _) => 0x10,
            Self::Acknowledge(_) => 0x11,
            Self::AtomicAcknowledge(..) => 0x12,
            Self::CompareSwap(_) => 0x13,
            Self::FetchAdd(_) => 0x14,
            Self::Send(Place::Last, Extra::Invalidate(_)) => 0x16,
            Self::Send(Place::Only, Extra::Invalidate(_)) => 0x17,
        };
        transport.bits() | code
    }

    /// The transport of an opcode; nothing for one that this card does not have.
    pub(super) const fn transport(opcode: u8) -> Option<Transport> {
        match (opcode & 0xe0, opcode & 0x1f) {
            (0x00, _) => Some(Transport::Rc),
            (0x20, 0..=0x0b) => Some(Transport::Uc),
            (0x60, 0x04 | 0x05) => Some(Transport::Ud),
            _ => None,
        }
    }

    /// The kind of an opcode, with the headers that it has at the front of `from`.
    pub(super) fn parse(opcode: u8, from: &mut &[u8]) -> Option<Self> {
        Some(match opcode & 0x1f {
            0x00 => Self::Send(Place::First, Extra::None),
            0x01 => Self::Send(Place::Middle, Extra::None),
            0x02 => Self::Send(Place::Last, Extra::None),
            0x03 => Self::Send(Place::Last, Extra::Immediate(take(from)?)),
            0x04 => Self::Send(Place::Only, Extra::None),
            0x05 => Self::Send(Place::Only, Extra::Immediate(take(from)?)),
            0x06 => Self::Write(Place::First, Some(Reth::parse(from)?), None),
            0x07 => Self::Write(Place::Middle, None, None),
            0x08 => Self::Write(Place::Last, None, None),
            0x09 => Self::Write(Place::Last, None, Some(take(from)?)),
            0x0a => Self::Write(Place::Only, Some(Reth::parse(from)?), None),
            0x0b => Self::Write(Place::Only, Some(Reth::parse(from)?), Some(take(from)?)),
            0x0c => Self::ReadRequest(Reth::parse(from)?),
            0x0d => Self::ReadResponse(Place::First, Some(Aeth::parse(from)?)),
            0x0e => Self::ReadResponse(Place::Middle, None),
            0x0f => Self::ReadResponse(Place::Last, Some(Aeth::parse(from)?)),
            0x10 => Self::ReadResponse(Place::Only, Some(Aeth::parse(from)?)),
            0x11 => Self::Acknowledge(Aeth::parse(from)?),
            0x12 => Self::AtomicAcknowledge(Aeth::parse(from)?, u64(from)?),
            0x13 => Self::CompareSwap(AtomicEth::parse(from)?),
            0x14 => Self::FetchAdd(AtomicEth::parse(from)?),
            0x16 => Self::Send(Place::Last, Extra::Invalidate(u32(from)?)),
            0x17 => Self::Send(Place::Only, Extra::Invalidate(u32(from)?)),
            _ => return None,
        })
    }
}
