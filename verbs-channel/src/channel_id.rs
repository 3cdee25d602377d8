//! What the channels of a group are called.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a channel of a [`ChannelGroup`](crate::ChannelGroup), and never another.
///
/// The id of a channel that was removed is good for its results, and names nothing once another
/// channel has its place. The id of another group's channel names nothing either.
// One word, a place and above it a generation: so two are compared in one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(u64);

impl ChannelId {
    /// Names no channel.
    pub(crate) const NONE: Self = Self(u32::MAX as u64);

    /// The id of a new channel at this place of its group's table.
    ///
    /// Generations are counted for all groups of the process, so the id of one group is never that of
    /// another. They come again after 2^32 channels.
    pub(crate) fn new(place: u32) -> Self {
        static GENERATIONS: AtomicU32 = AtomicU32::new(1);
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        Self(u64::from(generation) << 32 | u64::from(place))
    }

    /// Its place in its group's table: for a table of the caller's own, beside the group's.
    ///
    /// It is below the number of channels that the group has had at once, counting those that were
    /// removed and whose results were not taken yet. Another channel gets it after that.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> usize {
        self.at() as usize
    }

    #[inline]
    pub(crate) const fn at(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    const fn generation(self) -> u64 {
        self.0 >> 32
    }
}

impl fmt::Debug for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChannelId({self})")
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at(), self.generation())
    }
}
