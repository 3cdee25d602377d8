//! The opcodes of the requests of an operation.

use verbs_core::codes::WcOpcode;

use crate::error::Queue;

/// Opcodes of the requests of an operation, a bit for each, for the text of a failure: a failed completion has no opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opcodes(u8);

impl Opcodes {
    /// Requests of the send queue whose opcodes are in their buffers.
    pub(crate) const IN_BUFFERS: Self = Self(0);
    pub(crate) const RECEIVE: Self = Self(1);

    /// The bit of a receive in flags, above those of C.
    pub(super) const ONE: u32 = 1 << 16;

    /// Both atomics have the same, since their failures have the same causes.
    #[inline(always)]
    pub(crate) const fn of(opcode: WcOpcode) -> Self {
        match opcode {
            WcOpcode::RECV => Self::RECEIVE,
            WcOpcode::FETCH_ADD => Self::of(WcOpcode::COMP_SWAP),
            opcode => Self(2 << opcode.as_raw()),
        }
    }

    #[inline(always)]
    pub(crate) const fn in_flags(self) -> u32 {
        self.0 as u32 * Self::ONE
    }

    #[inline(always)]
    pub(crate) const fn in_these(flags: u32) -> Self {
        let [opcodes, ..] = (flags / Self::ONE).to_le_bytes();
        Self(opcodes)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The queue of the requests.
    #[inline(always)]
    pub(crate) const fn queue(self) -> Queue {
        match self.0 & Self::RECEIVE.0 {
            0 => Queue::Send,
            _ => Queue::Receive,
        }
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The opcode of the requests, if all have the same.
    pub(crate) fn one(self) -> Option<WcOpcode> {
        match self {
            Self::RECEIVE => Some(WcOpcode::RECV),
            Self(bits) if bits.is_power_of_two() => {
                Some(WcOpcode::from_raw(bits.trailing_zeros() - 1))
            }
            Self(_) => None,
        }
    }
}
