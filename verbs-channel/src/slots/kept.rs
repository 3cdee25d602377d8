//! Operations that keep their buffers, and give them back as they end.

use super::{ALL, Claim, GENERATION, Id, Keeper, SlotList, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// What an operation that is in flight took up, and where it keeps its buffers. Once they are taken
    /// its slot is to be [freed](Self::free).
    #[inline(always)]
    pub(crate) fn in_flight(&mut self, id: Id) -> Option<(Claim, &mut Option<B>)> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp != id.0 || !slot.is_in_flight() {
            return None;
        }
        Some((slot.claim, &mut slot.buffer))
    }

    /// Where an operation that has succeeded keeps its buffers. Once they are taken its slot is to be
    /// [freed](Self::free_done).
    #[inline(always)]
    pub(crate) fn succeeded(&mut self, id: Id) -> Option<&mut Option<B>> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() {
            return None;
        }
        matches!(slot.outcome, Some(Ok(_))).then_some(&mut slot.buffer)
    }

    /// Frees the slot of an operation that is done. What it was [told](Self::told) is still there.
    // All in one place: a call on the way would cost as much as the rest.
    #[inline(always)]
    pub(crate) fn free_done(&mut self, own: &mut SlotList, id: Id) {
        let index = id.index();
        let slots = &mut *self.slots;
        let Some(slot) = slots.get_mut(index as usize) else {
            return;
        };
        slot.stamp = id.0.wrapping_add(GENERATION);
        let is_newest = slot.links[ALL].next == own.free;
        if slot.claim.keeper == Keeper::Slot {
            self.ready.unlink(slots, index);
        }
        if !is_newest {
            own.all.unlink(slots, index);
            own.all.insert(slots, index, own.free);
        }
        own.free = index;
    }

    /// What an operation was told that has succeeded, until another gets its slot.
    #[inline]
    pub(crate) fn told(&self, id: Id) -> Option<&S> {
        let slot = self.slots.get(id.index() as usize)?;
        slot.outcome.as_ref()?.as_ref().ok()
    }

    /// Names the operation that has been done for longest of those that were not named yet, and whose
    /// it is. It is not ready any more; its result can still be taken.
    pub(crate) fn name_ready(&mut self) -> Option<(Id, u32)> {
        let index = self.ready.head;
        let slot = self.slots.get_mut(index as usize)?;
        slot.claim.keeper = Keeper::Named;
        let named = (slot.id(), slot.claim.member);
        self.ready.unlink(&mut self.slots, index);
        Some(named)
    }
}
