//! The room of one channel: the places in its two queues, and its slots.

use std::sync::Arc;

use super::budget::Budget;
use crate::engine::counters::Cells;
use crate::error::{Queue, RejectReason};
use crate::request::Opcodes;

/// Where the buffers of an operation belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferOwner {
    /// To the caller of a scope or of a blocking call, which ends only after the operation.
    Borrowed,
    /// The same, of an operation of a scope whose handle was dropped: its outcome is not taken.
    Detached,
    /// To the slot.
    Slot,
    /// To the slot, of a completed operation whose ticket was given out: it is not ready any more.
    Claimed,
    /// To an `unsafe` caller.
    Caller,
}

impl BufferOwner {
    /// Whether a borrow ends with the operation.
    pub(crate) const fn is_borrowed(self) -> bool {
        matches!(self, Self::Borrowed | Self::Detached)
    }
}

/// The room that an operation holds while it is in flight, and where its buffers belong.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Reservation {
    /// The channel that it is on.
    pub(crate) member: u32,
    /// Places in its queue.
    pub(crate) credits: u16,
    /// The opcodes of its requests, and so the queue that it is in.
    pub(crate) opcodes: Opcodes,
    /// Where its buffers belong.
    pub(crate) owner: BufferOwner,
}

impl Reservation {
    #[inline(always)]
    pub(crate) const fn queue(self) -> Queue {
        self.opcodes.queue()
    }

    /// All of it in one word, to be compared at once.
    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.member as u64
            | (self.credits as u64) << 32
            | (self.opcodes.bits() as u64) << 48
            | (self.owner as u64) << 56
    }

    /// The reservation of a free slot.
    pub(crate) const NOTHING: Self = Self {
        credits: 0,
        ..Self::new(0, Opcodes::IN_BUFFERS, BufferOwner::Borrowed)
    };

    /// For one work request.
    #[inline(always)]
    pub(crate) const fn new(member: u32, opcodes: Opcodes, owner: BufferOwner) -> Self {
        Self {
            credits: 1,
            opcodes,
            owner,
            member,
        }
    }

    /// For a batch of `count` requests, if a reservation can be that large.
    #[inline]
    pub(crate) fn batch(
        member: u32,
        count: usize,
        opcodes: Opcodes,
        owner: BufferOwner,
    ) -> Result<Self, RejectReason> {
        let Ok(credits) = u16::try_from(count) else {
            return Err(RejectReason::BatchTooLong {
                asked: u32::try_from(count).unwrap_or(u32::MAX),
                max: u16::MAX.into(),
            });
        };
        let one = Self::new(member, opcodes, owner);
        Ok(Self { credits, ..one })
    }
}

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The credits and the slots of a channel.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Free places of its share of the send queue and the receive queue.
    pub(crate) left: [u32; 2],
    // Places that it has to itself. Without a budget these are all.
    share: [u32; 2],
    // How many places there are, and how many are taken of the room that all channels share.
    max: [u32; 2],
    common: [u32; 2],
    // Its queue pair is gone or stuck: what it has of the common room is not room again.
    is_closed: bool,
    /// Its slots.
    pub(crate) slots: SlotList,
    /// Counts its requests.
    pub(crate) cells: Arc<Cells>,
}

/// The slots of one channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList {
    /// The free slots, a stack.
    pub(crate) free: u32,
    /// All slots, by `sibling`: the common ones first.
    pub(crate) first: u32,
    /// How many operations on borrowed buffers have an outcome that was not taken. Their handles may have
    /// been leaked.
    pub(crate) untaken: u32,
    /// How many common slots it has, and the most that it may have.
    pub(crate) common: u32,
    pub(crate) max_common: u32,
}

impl SlotList {
    pub(crate) const fn new() -> Self {
        Self {
            free: NONE,
            first: NONE,
            untaken: 0,
            common: 0,
            max_common: 0,
        }
    }

    /// Lets the channel have `more` common slots.
    pub(crate) const fn allow_common(&mut self, more: u32) {
        self.max_common = self.max_common.saturating_add(more);
    }
}

impl Credits {
    pub(crate) const fn new(
        slots: SlotList,
        max: [u32; 2],
        share: [u32; 2],
        cells: Arc<Cells>,
    ) -> Self {
        Self {
            left: share,
            share,
            max,
            common: [0; 2],
            is_closed: false,
            slots,
            cells,
        }
    }

    /// How many credits its share lacks for this number of requests to a queue, if the room that all channels share
    /// has them.
    pub(crate) fn lacks(
        &self,
        budget: &Budget,
        queue: Queue,
        asked: u16,
    ) -> Result<u32, RejectReason> {
        let asked = u32::from(asked);
        let max = self.capacity(queue, budget);
        if max == 0 {
            Err(RejectReason::NoCapacity(queue))
        } else if asked > max {
            Err(RejectReason::BatchTooLong { asked, max })
        } else if asked > self.max[queue as usize] - self.in_flight(queue) {
            Err(RejectReason::Backpressure(queue))
        } else if asked > self.free(queue, budget) {
            Err(RejectReason::Budget(queue))
        } else {
            Ok(asked.saturating_sub(self.left[queue as usize]))
        }
    }

    /// Takes the credits that its share lacks from the room that all channels share.
    pub(crate) const fn take_common(&mut self, budget: &mut Budget, queue: Queue, lacks: u32) {
        budget.take(lacks);
        self.left[queue as usize] += lacks;
        self.common[queue as usize] += lacks;
    }

    /// Returns credits of operations that have no common slots.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are fewer than 2^32 places"
    )]
    #[inline(always)]
    pub(crate) fn give_back_to_share(&mut self, queue: Queue, places: usize) {
        self.left[queue as usize] += places as u32;
        self.cells.complete(places as u64);
    }

    /// Returns the credits of an operation: to the budget, if it has some of it.
    // The room that it has of it is at most what is in flight in common slots: operations in others, which return theirs to the
    // share without this, return no more to it than it has.
    pub(crate) fn give_back(&mut self, budget: &mut Budget, reservation: Reservation) {
        let queue = reservation.queue() as usize;
        let credits = u32::from(reservation.credits);
        self.cells.complete(credits.into());
        let to_budget = credits.min(self.common[queue]);
        self.common[queue] -= to_budget;
        self.left[queue] += credits - to_budget;
        if !self.is_closed {
            budget.give_back(to_budget);
        }
    }

    /// Its queue pair is gone, or stuck.
    pub(crate) const fn close(&mut self, budget: &mut Budget, is_stuck: bool) {
        self.is_closed = true;
        let common = self.common[0] + self.common[1];
        if is_stuck {
            budget.lose(common);
        } else {
            budget.undrain(common);
        }
    }

    /// How many places of one of its queues can be taken at once.
    pub(crate) fn capacity(&self, queue: Queue, budget: &Budget) -> u32 {
        let share = self.share[queue as usize];
        self.max[queue as usize].min(share.saturating_add(budget.total()))
    }

    /// Whether nothing is in flight on the channel.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.left == self.share && self.common == [0; 2]
    }

    /// Places in one of its queues that are free, and that the budget has room for.
    pub(crate) fn free(&self, queue: Queue, budget: &Budget) -> u32 {
        let queue = queue as usize;
        self.left[queue] + self.rest(queue).min(budget.room())
    }

    /// Places in one of its queues that are taken.
    pub(crate) const fn in_flight(&self, queue: Queue) -> u32 {
        let queue = queue as usize;
        self.share[queue] - self.left[queue] + self.common[queue]
    }

    /// How much it can have of the common room: its share can be taken at any time.
    const fn rest(&self, queue: usize) -> u32 {
        self.max[queue] - self.share[queue] - self.common[queue]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_room_of_a_closed_channel_is_returned_once() {
        let mut budget = Budget::new(2);
        let mut credits = Credits::new(SlotList::new(), [2; 2], [1; 2], Arc::default());
        let reservation = Reservation::batch(0, 2, Opcodes::IN_BUFFERS, BufferOwner::Slot).unwrap();
        credits.take_common(&mut budget, Queue::Send, 1);
        credits.left = [0, 1];
        credits.close(&mut budget, false);
        assert_eq!((budget.room(), budget.left()), (1, 2));
        credits.give_back(&mut budget, reservation);
        budget.drained();
        assert_eq!(budget.room(), 2);
        assert!(credits.is_idle());
    }
}
