//! Common slots: those of operations beyond their channel's share of a budget.
//!
//! A common slot is on a stack that all channels share, or in the list of the channel that uses it. The
//! ids of its operations have a mark, by which the paths of the usual case do not find it. The others
//! free it, by [`Slots::put_back`].

use std::mem;

use super::slot::{COMMON, NONE};
use super::{Id, SlotList, Slots};

impl<S: Copy, B> Slots<S, B> {
    /// Makes room for `slots` slots, so that [`grow`](Self::grow) does not allocate.
    pub(crate) fn reserve_exact(&mut self, slots: u32) {
        self.slots.reserve_exact(slots as usize);
    }

    /// Adds free common slots.
    pub(crate) fn grow_common(&mut self, more: u32) {
        let len = self.push_slots(more);
        for (index, slot) in self.slots.iter_mut().enumerate().skip(len).rev() {
            let index = u32::try_from(index).unwrap_or(NONE);
            slot.stamp |= COMMON;
            slot.next = mem::replace(&mut self.common, index);
        }
    }

    /// Gives the channel a common slot, which its next operation takes. `false` if it has all that
    /// it may have.
    pub(crate) fn lend_common(&mut self, own: &mut SlotList) -> bool {
        if own.common >= own.max_common {
            return false;
        }
        if self.common == NONE {
            // There is a slot for each place of the budget: some have outcomes that are not taken.
            let more = self.slots.len() / 8 + 1;
            self.grow_common(u32::try_from(more).unwrap_or(u32::MAX));
        }
        let (index, first) = (self.common, own.first);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        self.common = mem::replace(&mut slot.next, own.free);
        (slot.sibling, slot.prev_sibling) = (first, NONE);
        (own.free, own.first) = (index, index);
        own.common += 1;
        if let Some(slot) = self.slots.get_mut(first as usize) {
            slot.prev_sibling = index;
        }
        true
    }

    /// Frees a slot of this channel that is not in `ready`, be it common or not.
    pub(crate) fn put_back(&mut self, own: &mut SlotList, id: Id) {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return;
        };
        if !slot.is_common() {
            return slot.free(&mut own.free, id.index());
        }
        // Its own links stay: a walk through the list may stand here, and goes on from here.
        let (prev, next) = (slot.prev_sibling, slot.sibling);
        slot.free(&mut self.common, id.index());
        own.common -= 1;
        match self.slots.get_mut(prev as usize) {
            Some(slot) => slot.sibling = next,
            None => own.first = next,
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.prev_sibling = prev;
        }
    }

    /// Frees the slot of an operation that was not posted, be it common or not.
    pub(crate) fn cancel(&mut self, own: &mut SlotList, id: Id) {
        if self.is_done(id) == Some(false) {
            self.put_back(own, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::BufferOwner;
    use super::super::tests::{reservation, table_with_common};

    #[test]
    fn a_common_slot_is_the_next_channels_once_its_outcome_is_taken() {
        let mut table = table_with_common::<()>(0, 1);
        let [first, second] = [0, 1].map(|member| reservation(member, BufferOwner::Slot));
        let id = table.take(first).expect("there is one");
        assert!(table.take(first).is_none(), "it may have one");
        assert!(table.succeed(id.wr_id()).is_some());
        assert!(table.take(first).is_none(), "its outcome has the slot");
        // Outcomes that are not taken are no others' loss.
        let other = table.take(second).expect("another is added");
        assert_ne!(other.index(), id.index());
        assert_eq!(table.release(id).unwrap(), Ok(()));
        assert!(table.release(id).is_none());
        assert!(table.succeed(other.wr_id()).is_some());
        assert_eq!(table.release(other).unwrap(), Ok(()));
        let again = table.take(second).expect("it is free");
        assert_eq!(again.index(), other.index());
        let again = table.take(first).expect("it is free");
        assert_eq!(again.index(), id.index());
        assert!(table.slots.first(&table.own[0]).is_some());
    }
}
