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

#[cfg(test)]
mod tests {
    use super::super::tests::{TIMED_OUT, Table, claim, complete, table};
    use super::*;

    #[test]
    fn a_detached_success_gives_its_slot_when_there_is_no_other() {
        let mut table = table::<()>(3);
        let before = table.take(claim(0, Keeper::Caller)).unwrap();
        let mark = table.mark();
        let [first, second] = [0; 2].map(|_| table.take(claim(0, Keeper::Lender)).unwrap());
        let free_detached = |table: &mut Table<()>| table.slots.free_detached(&mut table.own[0]);
        table.detach(first);
        table.detach(second);
        assert!(!free_detached(&mut table), "in flight");
        assert!(table.take(claim(0, Keeper::Lender)).is_none());
        assert!(table.slots.has_borrowed_in_flight(&table.own[0]));
        assert!(complete(&mut table, second.wr_id()));
        assert!(free_detached(&mut table));
        assert!(!free_detached(&mut table), "once");
        assert_eq!(table.slots.is_done(second), None);
        let third = table.take(claim(0, Keeper::Lender)).unwrap();
        // It is the old one's slot and not the old one: what comes late changes nothing.
        table.detach(second);
        assert!(complete(&mut table, third.wr_id()));
        assert!(!free_detached(&mut table), "its result may be taken");
        // One that has succeeded when its handle is dropped is free at once.
        table.detach(third);
        assert_eq!(table.slots.is_done(third), None);
        // A failure stays.
        assert!(table.slots.fail(first.wr_id(), TIMED_OUT).is_some());
        assert!(!free_detached(&mut table));
        assert_eq!(table.slots.failure(first), Some(TIMED_OUT));
        assert_eq!(table.first_since(mark), Some(first));
        assert!(!table.slots.has_borrowed_in_flight(&table.own[0]));
        table.release_since(mark);
        assert_eq!(table.slots.is_done(before), Some(false));
        assert_eq!(table.first_since(table.mark()), None);
    }

    #[test]
    fn detached_successes_of_a_scope_that_has_ended_are_nobody_s() {
        let mut table = table::<()>(2);
        let mark = table.mark();
        for late in [false, true] {
            let id = table.take(claim(0, Keeper::Lender)).unwrap();
            table.detach(id);
            // By a batch's way too, in which a closer look is needed.
            if late {
                assert!(table.slots.succeed(id.wr_id(), ()).is_some());
            } else {
                assert!(complete(&mut table, id.wr_id()));
            }
        }
        table.release_since(mark);
        let owned = [0; 2].map(|_| table.take(claim(0, Keeper::Slot)).unwrap());
        assert!(!table.slots.free_detached(&mut table.own[0]));
        assert!(
            owned
                .iter()
                .all(|id| table.slots.is_done(*id) == Some(false))
        );
    }
}
