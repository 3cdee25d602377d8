//! The requirements of requests on a queue pair.

use verbs_core::WcOpcode;
use verbs_core::verbs_sys::IBV_SEND_INLINE;

use super::list::List;

/// Requirements of one or more requests for the send queue.
///
/// The numbers of several requests are combined by bitwise or, which is cheaper than the maximum and
/// never less. So if the combination passes the checks, each request does. If not, they are checked
/// one by one.
#[derive(Clone, Copy, Debug, Default)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Needs {
    /// The length of the message, in bytes.
    pub(crate) len: u64,
    /// Elements that are not empty.
    pub(crate) elements: usize,
    /// A peer or another thread may write to the memory while it is sent.
    pub(crate) is_shared: bool,
    // Not by its flag: the compiler knows of most requests whether they are.
    pub(crate) is_read: bool,
    /// Their flags, and their [opcodes](opcode_flag).
    pub(crate) flags: u32,
}

/// A flag for the opcode of a request: it is above those of C. Both atomics have the same, since their failures
/// have the same causes.
#[inline(always)]
pub(crate) const fn opcode_flag(opcode: WcOpcode) -> u32 {
    match opcode {
        WcOpcode::FETCH_ADD => opcode_flag(WcOpcode::COMP_SWAP),
        opcode => 1 << (16 + opcode.as_raw()),
    }
}

/// The opcode of requests with these flags, if all have the same.
pub(crate) fn opcode_in(flags: u32) -> Option<WcOpcode> {
    let opcodes = flags >> 16;
    let is_one = opcodes.is_power_of_two();
    is_one.then(|| WcOpcode::from_raw(opcodes.trailing_zeros()))
}

impl Needs {
    /// Adds a send or a write.
    #[inline(always)]
    pub(crate) fn add_outgoing<L: List>(&mut self, list: &L, flags: u32) {
        self.len |= list.total_len();
        self.elements |= list.count();
        self.flags |= flags;
        self.is_shared |= list.is_shared();
    }

    /// Adds a read or an atomic.
    #[inline(always)]
    pub(crate) fn add_incoming<L: List>(&mut self, list: &L, flags: u32) {
        self.add_outgoing(list, flags);
        self.is_read = true;
    }

    #[inline(always)]
    pub(crate) const fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE.0 != 0
    }
}
