//! Outcomes: taken once, and the slot is free.

use std::mem;

use super::slot::SlotOutcome;
use super::{BufferOwner, Id, Reservation, Slot, SlotList, Slots};
use crate::error::TransportError;

impl<S: Copy, B> Slots<S, B> {
    /// Takes the outcome of an operation of this channel that has completed, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        own: &mut SlotList,
        id: Id,
    ) -> Option<Result<S, TransportError>> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() {
            return None;
        }
        let result = slot.take_outcome();
        own.taken(slot.reservation.owner);
        if id.is_common() {
            self.free_common(own, id);
        } else {
            self.free_completed(own, id);
        }
        Some(result)
    }

    /// [`free_completed`](Self::free_completed) for a common slot.
    #[cold]
    #[inline(never)]
    fn free_common(&mut self, own: &mut SlotList, id: Id) {
        let slot = self.slots.get(id.index() as usize);
        if slot.is_some_and(|slot| slot.reservation.owner == BufferOwner::Slot) {
            self.ready.unlink(&mut self.slots, id.index());
        }
        self.put_back(own, id);
    }

    /// The slot of an operation that is in flight, if no request of it has failed, and the slot is not
    /// common.
    #[inline(always)]
    pub(crate) fn in_flight(&mut self, id: Id) -> Option<InFlight<'_, S, B>> {
        let slot = self.slots.get_mut(id.own_index() as usize)?;
        // Its stamp has a mark if a request of its batch has failed.
        (slot.stamp == id.0 && slot.is_in_flight()).then_some(InFlight { slot, id })
    }

    /// Frees the slot of an operation that has completed.
    #[inline(always)]
    fn free_completed(&mut self, own: &mut SlotList, id: Id) {
        let slots = &mut *self.slots;
        let Some(slot) = slots.get_mut(id.own_index() as usize) else {
            return;
        };
        if slot.reservation.owner == BufferOwner::Slot {
            self.ready.unlink(slots, id.own_index());
        }
        self.free(own, id);
    }

    /// Takes the buffer of an operation that has completed.
    #[inline]
    pub(crate) fn take_buffer(&mut self, id: Id) -> Option<B> {
        if self.is_done(id) != Some(true) {
            return None;
        }
        self.slots.get_mut(id.index() as usize)?.buffer.take()
    }

    /// Takes the buffer of an operation that is in flight.
    pub(crate) fn take_buffer_in_flight(&mut self, id: Id) -> Option<B> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        let is_its = slot.id() == id && slot.is_in_flight();
        is_its.then(|| slot.buffer.take()).flatten()
    }

    /// The failure of the operation, or of a request of it, and when that was, counted in failures.
    pub(crate) fn failure(&self, id: Id) -> Option<(TransportError, u32)> {
        let slot = self.find(id)?;
        Some((slot.failure()?, slot.failed_at))
    }

    /// The operation that owns its buffer and completed first, of those that are ready.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.slots.get(self.ready.head as usize).map(Slot::id)
    }

    /// Claims the [first ready](Self::first_ready) operation, of which channel that is too. It is not
    /// ready any more; its outcome can still be taken.
    pub(crate) fn claim_ready(&mut self) -> Option<(Id, u32)> {
        let index = self.ready.head;
        let slot = self.slots.get_mut(index as usize)?;
        slot.reservation.owner = BufferOwner::Claimed;
        let claimed = (slot.id(), slot.reservation.member);
        self.ready.unlink(&mut self.slots, index);
        Some(claimed)
    }
}

/// The slot of an operation that is in flight.
pub(crate) struct InFlight<'s, S, B> {
    slot: &'s mut Slot<S, B>,
    id: Id,
}

impl<S: Copy, B> InFlight<'_, S, B> {
    /// The place of the buffer that the operation owns.
    #[inline(always)]
    pub(crate) const fn buffer(&mut self) -> &mut Option<B> {
        &mut self.slot.buffer
    }

    /// Ends the operation, whose outcome needs no slot: its reservation. The slot is free.
    #[inline(always)]
    pub(crate) const fn end(self, own: &mut SlotList) -> Reservation {
        let reservation = self.slot.reservation;
        self.slot.free(&mut own.free, self.id.own_index());
        reservation
    }
}

impl<S: Copy, B> Slot<S, B> {
    /// Its outcome; a failure does not stay.
    #[inline(always)]
    fn take_outcome(&mut self) -> Result<S, TransportError> {
        match self.outcome {
            SlotOutcome::Success(success) => Ok(success),
            SlotOutcome::Nothing | SlotOutcome::Failure(_) => Err(self.take_failure()),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> TransportError {
        match mem::replace(&mut self.outcome, SlotOutcome::Nothing) {
            SlotOutcome::Failure(error) => error,
            SlotOutcome::Nothing | SlotOutcome::Success(_) => TransportError::CLOSED,
        }
    }
}
