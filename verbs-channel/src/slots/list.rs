//! Lists through the slots, by links that stand in them.

use super::{NONE, Slot};

/// The lists that a slot has links for.
pub(super) const ALL: usize = 0;
pub(super) const READY: usize = 1;

/// A slot's neighbours in a list. That there is none before the first is known by the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) next: u32,
    pub(super) prev: u32,
}

pub(super) const NOWHERE: Links = Links {
    next: NONE,
    prev: NONE,
};

/// A doubly linked list through the slots.
///
/// `LINKS` says which of their links are its. To take out the first is to move `head`: nothing else
/// is written, so what the first has for `prev`, and an empty list for `tail`, mean nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const LINKS: usize> {
    pub(super) head: u32,
    tail: u32,
}

impl<const LINKS: usize> List<LINKS> {
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

    /// Says which is the last, of slots that have been linked by hand.
    #[inline(always)]
    pub(super) fn end<S, B>(&mut self, slots: &mut [Slot<S, B>], last: u32) {
        if let Some(slot) = slots.get_mut(last as usize) {
            slot.links[LINKS].next = NONE;
        }
        self.tail = last;
    }

    /// Puts a slot in at the end.
    #[inline(always)]
    pub(super) fn push<S, B>(&mut self, slots: &mut [Slot<S, B>], index: u32) {
        let last = self.last();
        match slots.get_mut(last as usize) {
            Some(slot) => slot.links[LINKS].next = index,
            None => self.head = index,
        }
        if let Some(slot) = slots.get_mut(index as usize) {
            slot.links[LINKS] = Links {
                next: NONE,
                prev: last,
            };
        }
        self.tail = index;
    }

    /// Puts a slot in before another, which is not the first; at the end if that is none.
    #[inline(always)]
    pub(super) fn insert<S, B>(&mut self, slots: &mut [Slot<S, B>], index: u32, next: u32) {
        let Some(slot) = slots.get_mut(next as usize) else {
            return self.push(slots, index);
        };
        let prev = std::mem::replace(&mut slot.links[LINKS].prev, index);
        if let Some(slot) = slots.get_mut(prev as usize) {
            slot.links[LINKS].next = index;
        }
        if let Some(slot) = slots.get_mut(index as usize) {
            slot.links[LINKS] = Links { next, prev };
        }
    }

    /// Takes out a slot that is in it.
    #[inline(always)]
    pub(super) fn unlink<S, B>(&mut self, slots: &mut [Slot<S, B>], index: u32) {
        let Some(slot) = slots.get(index as usize) else {
            return;
        };
        let links = slot.links[LINKS];
        if index == self.head {
            self.head = links.next;
        } else {
            self.join(slots, links);
        }
    }

    /// Makes neighbours of those on both sides of one that was not the first.
    #[inline(always)]
    fn join<S, B>(&mut self, slots: &mut [Slot<S, B>], Links { next, prev }: Links) {
        if let Some(slot) = slots.get_mut(prev as usize) {
            slot.links[LINKS].next = next;
        }
        match slots.get_mut(next as usize) {
            Some(slot) => slot.links[LINKS].prev = prev,
            None => self.tail = prev,
        }
    }
}
