//! Operations whose results nobody will take: their slots can be had for others.

use super::{ALL, Id, Keeper, NONE, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// Nobody will take the result of an operation in a scope.
    pub(crate) fn forgo(&mut self, id: Id) {
        if self.is_done(id).is_some()
            && let Some(slot) = self.slots.get_mut(id.index() as usize)
        {
            slot.claim.keeper = Keeper::Scope;
        }
        self.reclaim();
    }

    /// If no slot is free: frees those of operations that have succeeded, and whose results nobody
    /// will take. Failures stay, for the scope to find.
    pub(crate) fn reclaim(&mut self) {
        let mut index = if self.free == NONE {
            self.all.head
        } else {
            NONE
        };
        while let Some(slot) = self.in_use(index) {
            let (id, next) = (slot.id(), slot.links[ALL].next);
            let is_over = !slot.is_in_flight() && slot.failure().is_none();
            if is_over && slot.claim.keeper == Keeper::Scope {
                self.free(id);
            }
            index = next;
        }
    }
}
