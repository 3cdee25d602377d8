//! The budget of a group: what can be in flight together on all of its channels.
//!
//! The completion queue has room for the budget, and not for every queue of every channel. Half of the
//! budget is divided: each queue of each channel has a share, of one place or more, that no other
//! channel can take. The rest is common: first come, first served.
//!
//! ```text
//! total ─┬─ shares of channel 0: [send, receive]    credits in its `Member`
//!        ├─ shares of channel 1: [send, receive]
//!        ├─ …                                       one for each channel that the group was created for
//!        └─ common                                  `Budget`
//! ```
//!
//! A request takes what is left of its queue's share, and the rest of the common room. So a queue pair
//! can have more in flight than its share, up to the depth of its queue. The places are taken before
//! the post and returned when the completion is polled: the queue holds no completion without a place,
//! so it cannot overrun. An operation whose outcome stays untaken has a slot, but no place.
//!
//! A channel beyond those that the group was created for brings the same shares: the queue grows by them.
//!
//! A queue pair that was destroyed may have left completions in the queue. Its common room is returned
//! when the queue has been found empty after that, and its shares go to the next channel then. A queue
//! pair that could not be destroyed may complete requests forever: it keeps its room.

/// The shares of each channel of a group, and what is common. Without a budget, the shares are the whole queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    // Share of each queue, unless the queue is shorter.
    each: u32,
    /// The depths of a channel's queues.
    depths: [u32; 2],
    /// The room that no share is part of.
    pub(crate) common: u32,
}

impl Shares {
    /// Divides the budget, if there is one, among the queues of this number of channels with these depths, unless all
    /// of them can be full at once.
    pub(crate) fn divide(in_flight: Option<u32>, channels: u32, depths: [u32; 2]) -> Self {
        let channels = u64::from(channels.max(1));
        let all = |each: u32| {
            let [send, recv] = depths.map(|depth| u64::from(depth.min(each)));
            channels.saturating_mul(send + recv)
        };
        let in_flight = in_flight.map_or(u64::MAX, |total| u64::from(total).max(all(1)));
        let (each, common) = if in_flight >= all(u32::MAX) {
            (u32::MAX, 0)
        } else {
            let each = u32::try_from(in_flight / (4 * channels)).unwrap_or(u32::MAX);
            (each.max(1), in_flight - all(each.max(1)))
        };
        Self {
            each,
            depths,
            common: u32::try_from(common).unwrap_or(u32::MAX),
        }
    }

    /// Whether a channel can have more in flight than its shares.
    pub(crate) const fn are_of_a_budget(&self) -> bool {
        self.each < u32::MAX
    }

    /// A channel's shares.
    pub(crate) fn of(&self, depths: [u32; 2]) -> [u32; 2] {
        depths.map(|depth| depth.min(self.each))
    }

    /// How many requests can be in flight at once on this number of channels.
    pub(crate) fn total(&self, channels: u32) -> u32 {
        let [send, recv] = self.of(self.depths);
        let shares = send.saturating_add(recv).saturating_mul(channels);
        shares.saturating_add(self.common)
    }
}

/// The common room.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u32,
    total: u32,
    // Places of destroyed queue pairs that may have left completions in the queue.
    undrained: u32,
    is_held: bool,
}

impl Budget {
    pub(crate) const fn new(total: u32) -> Self {
        Self {
            left: total,
            total,
            undrained: 0,
            is_held: false,
        }
    }

    /// How much of it there is, of which stuck queue pairs have none.
    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// How much of it can be taken.
    pub(crate) const fn room(&self) -> u32 {
        if self.is_held { 0 } else { self.left }
    }

    /// How much of it is free, or will be once the queue has been found empty.
    pub(crate) const fn left(&self) -> u32 {
        self.left + self.undrained
    }

    pub(crate) const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub(crate) const fn take(&mut self, places: u32) {
        self.left -= places;
    }

    pub(crate) const fn give_back(&mut self, places: u32) {
        self.left += places;
    }

    /// A queue pair with this number of places is gone, and may have left completions in the queue.
    pub(crate) const fn undrain(&mut self, places: u32) {
        self.undrained += places;
    }

    /// The queue was empty: no queue pair that is gone has completions in it.
    pub(crate) const fn drained(&mut self) {
        self.left += self.undrained;
        self.undrained = 0;
    }

    /// A queue pair with this number of places is stuck, and keeps them.
    pub(crate) const fn lose(&mut self, places: u32) {
        self.total -= places;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::engine::Member;

    #[test]
    fn half_is_divided_and_half_is_common() {
        let shares = Shares::divide(Some(32_768), 4096, [64, 64]);
        assert_eq!(shares.of([64, 64]), [2, 2]);
        assert_eq!(shares.common, 16_384);
        assert_eq!(shares.total(4096), 32_768);
    }

    #[test]
    fn without_room_for_one_request_in_each_queue_there_is_that() {
        for in_flight in [0, 1, 19, 20] {
            let shares = Shares::divide(Some(in_flight), 10, [64, 64]);
            assert_eq!((shares.of([64, 64]), shares.common), ([1, 1], 0));
        }
        // A queue of no requests needs none.
        let shares = Shares::divide(Some(0), 10, [64, 0]);
        assert_eq!((shares.of([64, 0]), shares.total(10)), ([1, 0], 10));
    }

    #[test]
    fn room_for_everything_is_not_divided() {
        for in_flight in [None, Some(1280), Some(u32::MAX)] {
            let shares = Shares::divide(in_flight, 10, [64, 64]);
            assert_eq!((shares.of([64, 64]), shares.common), ([64, 64], 0));
            assert_eq!(shares.total(11), 1408);
        }
        assert!(Shares::divide(Some(1279), 10, [64, 64]).are_of_a_budget());
        // Sums above 32 bits do not overflow either.
        assert!(Shares::divide(Some(u32::MAX), u32::MAX, [u32::MAX; 2]).are_of_a_budget());
    }

    #[test]
    fn an_idle_channel_has_slots_for_its_share_only() {
        let shares = Shares::divide(Some(32_767), 4096, [64, 64]);
        let [send, recv] = shares.of([64, 64]);
        let slot = 128;
        let channel = size_of::<Member>();
        let own = channel + slot * (send + recv) as usize;
        let common = slot * shares.common as usize / 4096;
        let without = channel + slot * 128;
        println!("{own} bytes, and {common} of the common room; without a budget {without}");
        assert!(channel < 512);
        // 1.5 KiB and 16.5 KiB.
        assert!((1485..1587).contains(&(own + common)) && (16_845..16_947).contains(&without));
    }

    proptest! {
        #[test]
        fn shares_and_common_room_are_the_total(
            in_flight in any::<u32>(),
            channels in 1..100_000_u32,
            depths in [0..5000_u32, 0..5000_u32],
        ) {
            let shares = Shares::divide(Some(in_flight), channels, depths);
            if !shares.are_of_a_budget() {
                return Ok(());
            }
            let of = shares.of(depths);
            let least = channels * depths.map(|depth| depth.min(1)).iter().sum::<u32>();
            prop_assert_eq!(shares.total(channels), in_flight.max(least));
            prop_assert_eq!(shares.total(channels), channels * (of[0] + of[1]) + shares.common);
            for (share, depth) in of.into_iter().zip(depths) {
                prop_assert!(share <= depth && share >= depth.min(1));
            }
        }
    }
}
