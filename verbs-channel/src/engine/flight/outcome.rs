//! Outcomes: taken once, and the slot is free.

use super::slot::SlotOutcome;
use super::{BufferOwner, Flight, Id, Outcome};

impl Flight {
    /// Takes the outcome of an operation that has completed, and the buffer that it owns, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: Id) -> Option<Outcome> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.id != id || slot.is_in_flight() {
            return None;
        }
        let result = match slot.outcome {
            SlotOutcome::Nothing => return None,
            SlotOutcome::Success(success) => Ok(success),
            SlotOutcome::Failure(error) => Err(error),
        };
        let owned = slot.buffer.take();
        match slot.reservation.owner {
            BufferOwner::Slot => self.ready.unlink(&mut self.slots, id.index()),
            BufferOwner::Borrowed => {
                let member = self.members.get_mut(slot.reservation.member as usize)?;
                member.credits.slots.untaken -= 1;
            }
            BufferOwner::Detached | BufferOwner::Claimed | BufferOwner::Caller => {}
        }
        self.free(id);
        Some(Outcome { result, owned })
    }

    /// The operation that owns its buffer and completed first, of those that are ready.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.slots
            .get(self.ready.first as usize)
            .map(|slot| slot.id)
    }

    /// Claims the [first ready](Self::first_ready) operation, of which channel that is too. It is not
    /// ready any more; its outcome can still be taken.
    pub(crate) fn claim_ready(&mut self) -> Option<(Id, u32)> {
        let index = self.ready.first;
        let slot = self.slots.get_mut(index as usize)?;
        slot.reservation.owner = BufferOwner::Claimed;
        let claimed = (slot.id, slot.reservation.member);
        self.ready.unlink(&mut self.slots, index);
        Some(claimed)
    }
}
