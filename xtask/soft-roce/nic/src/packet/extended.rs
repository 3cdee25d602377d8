//! The extended transport headers: RETH, AETH, `AtomicETH` and DETH (9.3).

use std::time::Duration;

use crate::request::RemoteAddress;

/// The RDMA extended transport header (RETH): the memory that a write or read is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reth {
    /// The place in the responder's memory.
    pub remote: RemoteAddress,
    /// Bytes of the whole message.
    pub length: u32,
}

/// The atomic extended transport header (`AtomicETH`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AtomicEth {
    /// The place of the eight bytes.
    pub remote: RemoteAddress,
    /// Value to store, or to add.
    pub swap_or_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// The datagram extended transport header (DETH).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deth {
    /// `Q_Key` that the receiver has to have.
    pub qkey: u32,
    /// Queue pair that sent the datagram.
    pub source_queue_pair: u32,
}

/// The acknowledge extended transport header (AETH).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aeth {
    /// The answer.
    pub syndrome: Syndrome,
    /// Message sequence number (MSN): messages that the responder has completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    pub(crate) const fn new(syndrome: Syndrome, msn: u32) -> Self {
        Self { syndrome, msn }
    }
}

/// The syndrome of an AETH (9.7.5): an acknowledgement or the reason for none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Syndrome {
    /// Acknowledged; with the code of the end-to-end credits, 31 for no limit.
    Ack(u8),
    /// No receive was posted (RNR NAK): repeat after the time of this code.
    ReceiverNotReady(u8),
    /// Refused.
    Nak(NakCode),
}

/// Why a request was refused (9.7.5).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NakCode {
    /// A packet is missing before the one that arrived.
    SequenceError,
    /// The request is not one that the responder may be asked.
    InvalidRequest,
    /// The key does not allow the access.
    RemoteAccessError,
    /// The responder could not carry out a valid request.
    RemoteOperationalError,
}

impl Syndrome {
    /// An acknowledgement without a limit of credits.
    pub const ACK: Self = Self::Ack(31);

    pub(super) const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 31,
            Self::ReceiverNotReady(timer) => 0x20 | timer & 31,
            Self::Nak(code) => 0x60 | code as u8,
        }
    }

    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match (byte >> 5, byte & 31) {
            (0, credits) => Some(Self::Ack(credits)),
            (1, timer) => Some(Self::ReceiverNotReady(timer)),
            (3, 0) => Some(Self::Nak(NakCode::SequenceError)),
            (3, 1) => Some(Self::Nak(NakCode::InvalidRequest)),
            (3, 2) => Some(Self::Nak(NakCode::RemoteAccessError)),
            (3, 3) => Some(Self::Nak(NakCode::RemoteOperationalError)),
            _ => None,
        }
    }
}

/// Microseconds of each code of an RNR NAK's timer (table 45).
const RNR_TIMERS: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

/// The time that a code of an RNR NAK stands for: 0.01 ms for 1, 655.36 ms for 0.
#[must_use]
pub fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMERS[usize::from(code & 31)])
}

#[cfg(test)]
mod tests {
    use super::{NakCode, RNR_TIMERS, Syndrome, rnr_timer};

    #[test]
    fn syndromes_are_those_of_the_specification() {
        assert_eq!(Syndrome::ACK.to_byte(), 0x1f);
        assert_eq!(Syndrome::ReceiverNotReady(12).to_byte(), 0x2c);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccessError).to_byte(), 0x62);
        for byte in 0..=255 {
            if let Some(syndrome) = Syndrome::from_byte(byte) {
                assert_eq!(syndrome.to_byte(), byte);
            }
        }
        assert_eq!(Syndrome::from_byte(0x45), None, "reserved");
        assert_eq!(
            Syndrome::from_byte(0x65),
            None,
            "a NAK code that does not exist"
        );
    }

    #[test]
    fn the_timers_of_receivers_that_are_not_ready_grow_from_1_to_31_and_0_is_the_longest() {
        assert!(RNR_TIMERS[1..].windows(2).all(|pair| pair[0] < pair[1]));
        assert!(RNR_TIMERS[31] < RNR_TIMERS[0]);
        assert_eq!(rnr_timer(1).as_micros(), 10);
        assert_eq!(rnr_timer(0).as_micros(), 655_360);
    }
}
