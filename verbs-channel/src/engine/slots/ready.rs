//! The list of completed operations that own their buffers, by links that stand in the slots.

use super::slot::{NONE, Slot};

/// A doubly linked list through slots.
///
/// To take out the first is to move `head`: nothing else is written, so what the first has for
/// `prev`, and an empty list for `tail`, mean nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyList {
    pub(super) head: u32,
    tail: u32,
}

impl ReadyList {
    pub(super) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }

    /// The last, if there is one.
    #[inline(always)]
    pub(super) const fn last(&self) -> u32 {
        if self.head == NONE { NONE } else { self.tail }
    }

    /// Sets the last, of slots that have been linked by hand.
    #[inline(always)]
    pub(super) fn end<S, B>(&mut self, slots: &mut [Slot<S, B>], last: u32) {
        if let Some(slot) = slots.get_mut(last as usize) {
            slot.next = NONE;
        }
        self.tail = last;
    }

    /// Puts a slot in at the end.
    pub(super) fn push<S, B>(&mut self, slots: &mut [Slot<S, B>], index: u32) {
        let last = self.last();
        match slots.get_mut(last as usize) {
            Some(slot) => slot.next = index,
            None => self.head = index,
        }
        if let Some(slot) = slots.get_mut(index as usize) {
            slot.prev = last;
        }
        self.end(slots, index);
    }

    /// Takes out a slot that is in it.
    #[inline(always)]
    pub(super) fn unlink<S, B>(&mut self, slots: &mut [Slot<S, B>], index: u32) {
        let Some(slot) = slots.get(index as usize) else {
            return;
        };
        let (next, prev) = (slot.next, slot.prev);
        if index == self.head {
            self.head = next;
        } else {
            self.join(slots, prev, next);
        }
    }

    /// Makes neighbours of those on both sides of one that was not the first.
    fn join<S, B>(&mut self, slots: &mut [Slot<S, B>], prev: u32, next: u32) {
        if let Some(slot) = slots.get_mut(prev as usize) {
            slot.next = next;
        }
        match slots.get_mut(next as usize) {
            Some(slot) => slot.prev = prev,
            None => self.tail = prev,
        }
    }
}
