//! Opcodes of the base transport header: transport, kind of packet, place in its message (9.2).

use super::{Aeth, AtomicEth, Reth};

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

    /// The transport and kind of an opcode, with headers of zeros; nothing for one that no transport of
    /// this card has.
    pub(super) const fn from_opcode(opcode: u8) -> Option<(Transport, Self)> {
        const AETH: Aeth = Aeth {
            syndrome: super::Syndrome::ACK,
            msn: 0,
        };
        const RETH: Reth = Reth {
            address: 0,
            rkey: 0,
            length: 0,
        };
        const ATOMIC: AtomicEth = AtomicEth {
            address: 0,
            rkey: 0,
            swap_or_add: 0,
            compare: 0,
        };
        let body = match opcode & 0x1f {
            0x00 => Self::Send(Place::First, Extra::None),
            0x01 => Self::Send(Place::Middle, Extra::None),
            0x02 => Self::Send(Place::Last, Extra::None),
            0x03 => Self::Send(Place::Last, Extra::Immediate([0; 4])),
            0x04 => Self::Send(Place::Only, Extra::None),
            0x05 => Self::Send(Place::Only, Extra::Immediate([0; 4])),
            0x06 => Self::Write(Place::First, Some(RETH), None),
            0x07 => Self::Write(Place::Middle, None, None),
            0x08 => Self::Write(Place::Last, None, None),
            0x09 => Self::Write(Place::Last, None, Some([0; 4])),
            0x0a => Self::Write(Place::Only, Some(RETH), None),
            0x0b => Self::Write(Place::Only, Some(RETH), Some([0; 4])),
            0x0c => Self::ReadRequest(RETH),
            0x0d => Self::ReadResponse(Place::First, Some(AETH)),
            0x0e => Self::ReadResponse(Place::Middle, None),
            0x0f => Self::ReadResponse(Place::Last, Some(AETH)),
            0x10 => Self::ReadResponse(Place::Only, Some(AETH)),
            0x11 => Self::Acknowledge(AETH),
            0x12 => Self::AtomicAcknowledge(AETH, 0),
            0x13 => Self::CompareSwap(ATOMIC),
            0x14 => Self::FetchAdd(ATOMIC),
            0x16 => Self::Send(Place::Last, Extra::Invalidate(0)),
            0x17 => Self::Send(Place::Only, Extra::Invalidate(0)),
            _ => return None,
        };
        match opcode & 0xe0 {
            0x00 => Some((Transport::Rc, body)),
            0x20 if opcode & 0x1f <= 0x0b => Some((Transport::Uc, body)),
            0x60 if opcode & 0x1f == 0x04 || opcode & 0x1f == 0x05 => Some((Transport::Ud, body)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Body, Transport};

    #[test]
    fn opcodes_are_those_of_the_specification() {
        let known: Vec<u8> = (0..=255)
            .filter(|code| Body::from_opcode(*code).is_some())
            .collect();
        let rc = (0x00..=0x14).chain(0x16..=0x17);
        let expected: Vec<u8> = rc.chain(0x20..=0x2b).chain(0x64..=0x65).collect();
        assert_eq!(known, expected);
        for code in known {
            let (transport, body) = Body::from_opcode(code).unwrap();
            assert_eq!(body.opcode(transport), code);
        }
        assert_eq!(Body::from_opcode(0x64).unwrap().0, Transport::Ud);
    }
}
