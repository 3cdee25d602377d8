//! What the channels of a group are called.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a channel of a [`ChannelGroup`](crate::ChannelGroup), and never another.
///
/// The id of a channel that was removed is good for its results, as long as some are left, and names
/// nothing after that. The id of another group's channel names nothing either.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId {
    index: u32,
    generation: u32,
}

impl ChannelId {
    /// Names no channel.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        generation: 0,
    };

    /// The id of a new channel at this place of its group's table.
    ///
    /// Generations are counted for all groups of the process, so the id of one group is never that of
    /// another. They come again after 2^32 channels.
    pub(crate) fn new(index: u32) -> Self {
        static GENERATIONS: AtomicU32 = AtomicU32::new(1);
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        Self { index, generation }
    }

    /// Its place in its group's table: for a table of the caller's own, beside the group's.
    ///
    /// It is below the number of channels that the group has had at once, counting those that were
    /// removed and whose results were not taken yet. Another channel gets it after that.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    #[inline]
    pub(crate) const fn at(self) -> u32 {
        self.index
    }
}

impl fmt::Debug for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChannelId({}.{})", self.index, self.generation)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}
