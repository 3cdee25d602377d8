//! What requests need of a queue pair.

use super::list::List;

/// What requests for the send queue need, of one or more of them.
///
/// Of more than one, numbers are the bitwise or of theirs: no less than the greatest, and cheaper. So
/// requests that pass together pass; those that do not are to be checked one by one.
#[derive(Clone, Copy, Debug, Default)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Needs {
    /// The length of the message, in bytes.
    pub(crate) len: u64,
    /// Elements that are not empty.
    pub(crate) elements: usize,
    pub(crate) is_inline: bool,
    /// Others may write to the memory meanwhile.
    pub(crate) is_shared: bool,
    pub(crate) is_read: bool,
}

impl Needs {
    /// Adds a send or a write.
    #[inline(always)]
    pub(crate) fn add_outgoing<L: List>(&mut self, list: &L, is_inline: bool) {
        self.len |= list.total_len();
        self.elements |= list.count();
        self.is_inline |= is_inline;
        self.is_shared |= L::IS_SHARED;
    }

    /// Adds a read or an atomic.
    #[inline(always)]
    pub(crate) fn add_incoming<L: List>(&mut self, list: &L) {
        self.add_outgoing(list, false);
        self.is_read = true;
    }
}
