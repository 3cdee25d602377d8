//! Lists through the slots, by links that stand in them.

use super::{NONE, Slot};

/// The lists that a slot has links for.
pub(super) const ALL: usize = 0;
pub(super) const READY: usize = 1;

/// A slot's neighbours in a list.
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
/// `LINKS` says which of their links are its.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const LINKS: usize> {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl<const LINKS: usize> List<LINKS> {
    pub(super) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }

    /// Puts a slot in, before another; at the end if that is none.
    #[inline(never)]
    pub(super) fn insert<S>(&mut self, slots: &mut [Slot<S>], index: u32, next: u32) {
        let prev = match slots.get_mut(next as usize) {
            Some(slot) => std::mem::replace(&mut slot.links[LINKS].prev, index),
            None => std::mem::replace(&mut self.tail, index),
        };
        match slots.get_mut(prev as usize) {
            Some(slot) => slot.links[LINKS].next = index,
            None => self.head = index,
        }
        slots[index as usize].links[LINKS] = Links { next, prev };
    }

    /// Takes out a slot that is in it.
    #[inline(never)]
    pub(super) fn unlink<S>(&mut self, slots: &mut [Slot<S>], index: u32) {
        let Links { next, prev } = slots[index as usize].links[LINKS];
        match slots.get_mut(prev as usize) {
            Some(slot) => slot.links[LINKS].next = next,
            None => self.head = next,
        }
        match slots.get_mut(next as usize) {
            Some(slot) => slot.links[LINKS].prev = prev,
            None => self.tail = prev,
        }
    }
}
