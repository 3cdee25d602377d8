//! Identifiers of the channels of a group.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Identifies a channel of a [`ChannelGroup`](crate::ChannelGroup).
///
/// An id is not used again until 2³² other channels have been created. The id of a removed channel is valid until
/// all outcomes of the channel have been taken and another channel has its place in the group. In another
/// group the id is unknown.
// One word, with the place in the lower half and the generation in the upper: compared in one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(u64);

/// The place in the ids of rails, and in that of no channel.
const RAILS: u32 = u32::MAX;

impl ChannelId {
    /// The id of no channel.
    pub(crate) const NONE: Self = Self(RAILS as u64);

    /// The id of new rails.
    pub(crate) fn of_rails() -> Self {
        Self::new(RAILS)
    }

    /// The id of a new channel at this place of its group's table.
    ///
    /// Generations are counted for all groups of the process, so no two groups have the same id. They
    /// repeat after 2^32 channels.
    pub(crate) fn new(place: u32) -> Self {
        static GENERATIONS: AtomicU32 = AtomicU32::new(1);
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        Self(u64::from(generation) << 32 | u64::from(place))
    }

    /// The channel's index in its group: for tables of your own with an entry for each channel.
    ///
    /// Indices are small: each is less than the most channels that the group has had at once. A
    /// removed channel counts until its outcomes have been taken; then another channel gets its index.
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
        match self.at() {
            RAILS => write!(f, "ChannelId({self})"),
            at => write!(f, "ChannelId({at}.{})", self.generation()),
        }
    }
}

/// `channel 3.7`: its [index](ChannelId::index), and the generation, which is different for each channel
/// of the process; `rails 8` for the id of [rails](crate::Rails::id).
impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at() {
            RAILS => write!(f, "rails {}", self.generation()),
            at => write!(f, "channel {at}.{}", self.generation()),
        }
    }
}
