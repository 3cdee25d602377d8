//! What requests require of a queue pair.

use super::list::List;

/// What one or more requests for the send queue require.
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
    pub(crate) is_inline: bool,
    /// A peer or another thread may write to the memory while it is sent.
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
        self.is_shared |= list.is_shared();
    }

    /// Adds a read or an atomic.
    #[inline(always)]
    pub(crate) fn add_incoming<L: List>(&mut self, list: &L) {
        self.add_outgoing(list, false);
        self.is_read = true;
    }
}
