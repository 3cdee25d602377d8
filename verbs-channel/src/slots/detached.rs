//! Operations of a scope whose handles were dropped: their slots can be had for others.

use super::{Id, Keeper, SlotList, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// The handle of an operation was dropped: its slot is free when it has succeeded. A failure
    /// stays, for the scope to find.
    ///
    /// `false` if it has completed: see [`detach_done`](Self::detach_done).
    #[inline(always)]
    pub(crate) fn detach(&mut self, id: Id) -> bool {
        match self.slots.get_mut(id.index() as usize) {
            Some(slot) if slot.is_in_flight() && slot.id() == id => {
                slot.claim.keeper = Keeper::Detached;
                true
            }
            _ => false,
        }
    }

    /// The handle of an operation was dropped that has completed, or whose result was taken: a slot
    /// that it still has is free, unless it failed.
    #[inline(never)]
    pub(crate) fn detach_done(&mut self, own: &mut SlotList, id: Id) {
        if self.is_done(id) == Some(true) && self.failure(id).is_none() {
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
