//! Credits: the places of a channel in its two queues, and its slots.

use super::budget::Budget;
use super::slots::{Id, Reservation, SlotList, Slots};
use crate::error::Queue;

/// The credits and the slots of a channel.
#[derive(Debug)]
pub(crate) struct Credits {
    // Free places of its share of the send queue and the receive queue.
    left: [u32; 2],
    idle: [u32; 2],
    // Places that it has to itself. Without a budget these are all.
    share: [u32; 2],
    // How many places there are, and how many are taken of the room that all channels share.
    max: [u32; 2],
    common: [u32; 2],
    pub(crate) slots: SlotList,
}

impl Credits {
    pub(crate) const fn new(slots: SlotList, max: [u32; 2], share: [u32; 2]) -> Self {
        Self {
            left: share,
            idle: share,
            share,
            max,
            common: [0; 2],
            slots,
        }
    }

    /// Takes credits and a slot for a request with these flags, or finds common room.
    #[inline(always)]
    pub(super) fn take<S: Copy, B>(
        &mut self,
        slots: &mut Slots<S, B>,
        reservation: Reservation,
        flags: u32,
    ) -> Option<Id> {
        match self.take_of_share(slots, reservation, flags) {
            Some(id) => Some(id),
            None => self.take_common(slots, reservation, flags),
        }
    }

    /// The same, of its share only.
    #[inline(always)]
    fn take_of_share<S: Copy, B>(
        &mut self,
        slots: &mut Slots<S, B>,
        reservation: Reservation,
        flags: u32,
    ) -> Option<Id> {
        let left = &mut self.left[reservation.queue as usize];
        // Not `checked_sub`, which compares first: the overflow shows that there were too few.
        let (rest, is_too_few) = left.overflowing_sub(reservation.credits.into());
        if is_too_few {
            return None;
        }
        let id = slots.take(&mut self.slots, reservation, flags)?;
        *left = rest;
        Some(id)
    }

    /// Takes what its share lacks from the room that all channels share, and a common slot.
    #[cold]
    #[inline(never)]
    fn take_common<S: Copy, B>(
        &mut self,
        slots: &mut Slots<S, B>,
        reservation: Reservation,
        flags: u32,
    ) -> Option<Id> {
        let queue = reservation.queue as usize;
        let lacks = u32::from(reservation.credits).saturating_sub(self.left[queue]);
        // Its share can be taken at any time, so the rest of its queue is all there is.
        let rest = self.max[queue] - self.share[queue] - self.common[queue];
        if lacks > rest.min(slots.budget.room()) {
            return None;
        }
        if !slots.lend_common(&mut self.slots) {
            return None;
        }
        slots.budget.take(lacks);
        self.left[queue] += lacks;
        self.common[queue] += lacks;
        if self.common[queue] > 0 {
            self.idle[queue] = u32::MAX;
        }
        self.take_of_share(slots, reservation, flags)
    }

    /// Returns the credits of this many operations with the same reservation, none of which has a
    /// common slot.
    #[inline(always)]
    pub(crate) fn return_credits(&mut self, reservation: Reservation, times: usize) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.left[reservation.queue as usize] += u32::from(reservation.credits) * times;
    }

    /// Returns the credits of any operation, whose slot may be common. Returns how many of them are the budget's.
    // First to the budget: what the channel has of it is at most what is in flight in common slots, so
    // the others return no more to the share than it has.
    pub(super) fn settle(&mut self, reservation: Reservation) -> u32 {
        let queue = reservation.queue as usize;
        let credits = u32::from(reservation.credits);
        let to_budget = credits.min(self.common[queue]);
        self.common[queue] -= to_budget;
        if self.common[queue] == 0 {
            self.idle[queue] = self.share[queue];
        }
        self.left[queue] += credits - to_budget;
        to_budget
    }

    /// Room of the budget that it has taken.
    pub(crate) const fn common(&self) -> u32 {
        self.common[0] + self.common[1]
    }

    /// How many places there are in one of its queues.
    pub(crate) const fn max(&self, queue: Queue) -> u32 {
        self.max[queue as usize]
    }

    /// How many of them can be taken at once.
    pub(crate) fn capacity(&self, queue: Queue, budget: &Budget) -> u32 {
        let share = self.share[queue as usize];
        self.max(queue).min(share.saturating_add(budget.total()))
    }

    /// Whether nothing is in flight on the channel.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.left == self.idle
    }

    /// Places in one of its queues that are free, and that the budget has room for.
    pub(crate) fn free(&self, queue: Queue, budget: &Budget) -> u32 {
        let queue = queue as usize;
        let rest = self.max[queue] - self.share[queue] - self.common[queue];
        self.left[queue] + rest.min(budget.room())
    }

    /// Places in one of its queues that are taken.
    pub(crate) const fn in_flight(&self, queue: Queue) -> u32 {
        let queue = queue as usize;
        self.share[queue] - self.left[queue] + self.common[queue]
    }
}
