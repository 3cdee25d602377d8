//! One slot of the table: an operation, its buffers, and its outcome.

use std::mem;

use verbs_core::WorkSuccess;

use super::ticket::{Id, SlotBuffer};
use crate::engine::member::{NONE, Reservation};
use crate::error::TransportError;

/// The outcome of an operation.
#[derive(Debug)]
pub(super) enum SlotOutcome {
    Nothing,
    Success(WorkSuccess),
    /// Also while the operation is in flight, if a request of its batch has failed.
    Failure(TransportError),
}

/// An operation, from its post until its outcome is taken: two cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// The id of its operation; if it is free, that of the next one.
    pub(super) id: Id,
    /// Without credits once it has completed.
    pub(super) reservation: Reservation,
    pub(super) outcome: SlotOutcome,
    /// The next free slot of the channel, or the next free common one; or the next ready one.
    pub(super) next: u32,
    /// The ready slot before it.
    pub(super) prev: u32,
    /// The next of all slots of the channel; never changes, unless the slot is common.
    pub(super) sibling: u32,
    /// The slot whose `sibling` a common one is.
    pub(super) prev_sibling: u32,
    /// When its operation failed, counted in failures.
    pub(super) failed_at: u32,
    /// The buffer that the operation owns.
    pub(super) buffer: Option<SlotBuffer>,
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    /// A free slot that is in no list.
    pub(super) const fn new(id: Id) -> Self {
        Self {
            id,
            reservation: Reservation::NOTHING,
            outcome: SlotOutcome::Nothing,
            next: NONE,
            prev: NONE,
            sibling: NONE,
            prev_sibling: NONE,
            failed_at: 0,
            buffer: None,
        }
    }

    #[inline(always)]
    pub(super) const fn is_free(&self) -> bool {
        !self.is_in_flight() && matches!(self.outcome, SlotOutcome::Nothing)
    }

    #[inline(always)]
    pub(super) const fn is_in_flight(&self) -> bool {
        self.reservation.credits > 0
    }

    /// Whether this operation is in flight in it, and no request of it has failed.
    #[inline(always)]
    pub(super) fn is_posted(&self, id: Id) -> bool {
        // An id that was given out is not that of a free slot.
        self.id == id && matches!(self.outcome, SlotOutcome::Nothing)
    }

    /// Frees it, the slot at this index, which has no outcome, and makes it the top of a stack of free slots.
    #[inline(always)]
    pub(super) const fn free(&mut self, top: &mut u32, index: u32) {
        self.id = self.id.next();
        self.reservation.credits = 0;
        self.next = mem::replace(top, index);
    }

    /// The failure of the operation, or of a request of it.
    pub(super) const fn failure(&self) -> Option<TransportError> {
        match self.outcome {
            SlotOutcome::Failure(error) => Some(error),
            SlotOutcome::Nothing | SlotOutcome::Success(_) => None,
        }
    }
}

/// The operations that own their buffers and have completed, in that order: a list by links in the slots.
///
/// To take out the first is to move `first`: nothing else is written, so what the first has for `prev`, and `last` if
/// there is no first, mean nothing.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) first: u32,
    last: u32,
}

impl Ready {
    pub(super) const fn new() -> Self {
        Self {
            first: NONE,
            last: NONE,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, slots: &mut [Slot], index: u32) {
        let last = if self.first == NONE { NONE } else { self.last };
        if let Some(slot) = slots.get_mut(index as usize) {
            (slot.prev, slot.next) = (last, NONE);
        }
        match slots.get_mut(last as usize) {
            Some(slot) => slot.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    #[inline(always)]
    pub(super) fn unlink(&mut self, slots: &mut [Slot], index: u32) {
        let Some(slot) = slots.get(index as usize) else {
            return;
        };
        let (prev, next) = (slot.prev, slot.next);
        if index == self.first {
            self.first = next;
            return;
        }
        if let Some(slot) = slots.get_mut(prev as usize) {
            slot.next = next;
        }
        match slots.get_mut(next as usize) {
            Some(slot) => slot.prev = prev,
            None => self.last = prev,
        }
    }
}
