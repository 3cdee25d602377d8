//! Operations of a scope whose handles were dropped: their slots can be had for others.

use super::{Id, Keeper, SlotList, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// The handle of an operation was dropped: its slot is free when it has succeeded. A failure
    /// stays, for the scope to find.
    #[inline]
    pub(crate) fn detach(&mut self, own: &mut SlotList, id: Id) {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return;
        };
        if slot.id() != id {
            return;
        }
        if slot.is_in_flight() {
            slot.claim.keeper = Keeper::Detached;
        } else if slot.failure().is_none() {
            self.free(own, id);
        }
    }

    /// Frees the slot that a detached operation of the channel has, if one has succeeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_detached(&mut self, own: &mut SlotList) -> bool {
        let index = self.detached.head;
        let Some(id) = self.slots.get(index as usize).map(super::Slot::id) else {
            return false;
        };
        self.detached.unlink(&mut self.slots, index);
        self.free(own, id);
        true
    }

    /// Forgets which detached operations have succeeded: the scope ends, and looks at all.
    pub(crate) fn end_detached(&mut self) {
        self.detached = super::List::new();
    }
}
