//! Operations that keep their buffers, and give them back as they end.

use super::{Claim, Id, Keeper, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// What an operation that is in flight took up, and where it keeps its buffers. Once they are taken
    /// its slot is to be [freed](Self::free).
    #[inline(always)]
    pub(crate) fn in_flight(&mut self, id: Id) -> Option<(Claim, &mut Option<B>)> {
        let slot = self.slots.get(id.index() as usize)?;
        if slot.stamp != id.0 || !slot.is_in_flight() {
            return None;
        }
        let place = self.buffers.get_mut(id.index() as usize)?;
        Some((slot.claim, place))
    }

    /// Where an operation that has succeeded keeps its buffers. Once they are taken its slot is to be
    /// [freed](Self::free_done).
    #[inline(always)]
    pub(crate) fn succeeded(&mut self, id: Id) -> Option<&mut Option<B>> {
        let slot = self.slots.get(id.index() as usize)?;
        if slot.stamp != id.0 || slot.is_in_flight() || slot.failure.is_some() {
            return None;
        }
        slot.success.as_ref()?;
        self.buffers.get_mut(id.index() as usize)
    }

    /// Frees the slot of an operation that is done. What it was [told](Self::told) is still there.
    #[inline(always)]
    pub(crate) fn free_done(&mut self, id: Id) {
        let slot = self.slots.get(id.index() as usize);
        if slot.is_some_and(|slot| slot.claim.keeper == Keeper::Slot) {
            self.ready.unlink(&mut self.slots, id.index());
        }
        self.free(id);
    }

    /// What an operation was told that has succeeded, until another gets its slot.
    #[inline]
    pub(crate) fn told(&self, id: Id) -> Option<&S> {
        self.slots.get(id.index() as usize)?.success.as_ref()
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
