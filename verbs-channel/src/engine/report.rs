//! The counters of an engine, and the lines for an operator.

use std::fmt;
use std::sync::Arc;

use super::{Counters, Engine};
use crate::channel_id::ChannelId;
use crate::duration::Readable;
use crate::error::Queue;

/// Counters.
impl Engine {
    /// The counters of a channel, from when it joined on; those of none, if it is gone.
    #[doc(hidden)]
    #[must_use]
    pub fn channel_counters(&self, channel: ChannelId) -> Counters {
        self.counters_at(self.place_or_none(channel))
    }

    /// The counters of all channels together, those included that were removed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            places: Arc::clone(&self.counters),
            channel: None,
        }
    }

    /// The counters of the channel at this place; of none if it is gone.
    pub(crate) fn counters_at(&self, at: u32) -> Counters {
        let counted = self.member(at).map(|member| {
            let cells = Arc::clone(&member.credits.cells);
            (
                cells,
                member
                    .counted_before
                    .as_deref()
                    .copied()
                    .unwrap_or_default(),
            )
        });
        Counters {
            places: Arc::clone(&self.counters),
            channel: Some(counted.unwrap_or_default()),
        }
    }
}

/// All channels, a line each, for an operator.
impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, open) = (self.pd.context().device().name(), self.len());
        let all = self.counters().read();
        write!(f, "{device}: {open} open channels: {all}")?;
        let asleep = Readable(all.asleep);
        write!(f, ", asleep for {asleep}")?;
        if let Some(failure) = self.group_failure() {
            write!(f, ", failed: {failure}")?;
        }
        for id in self.channels() {
            let counts = self.channel_counters(id).read();
            let credits = self
                .member(self.place_or_none(id))
                .map(|member| &member.credits);
            let of = |queue| credits.map_or(0, |credits| credits.in_flight(queue));
            let in_flight = of(Queue::Send) + of(Queue::Receive);
            write!(f, "\n{id}: ")?;
            match self.down_reason(id) {
                Some(reason) => write!(f, "down, {reason}: ")?,
                None => write!(f, "up: ")?,
            }
            write!(f, "{in_flight} in flight, {counts}")?;
        }
        Ok(())
    }
}
