//! Room: an operation takes credits and a slot, and returns them.

use std::mem;

use verbs_core::QueuePair;

use super::slot::{Ready, Slot, SlotOutcome};
use super::ticket::COMMON;
use super::{Flight, Id, SHARED_PLACES, Ticket};
use crate::engine::counters::Cells;
use crate::engine::member::{Budget, Credits, NONE, Reservation};

impl Flight {
    /// A table that has this number of common slots.
    pub(crate) fn with_common(common: u32) -> Self {
        let mut flight = Self {
            members: Vec::new(),
            slots: Vec::new(),
            ready: Ready::new(),
            failures: 0,
            common: NONE,
            budget: Budget::new(common),
        };
        grow_common(&mut flight.slots, &mut flight.common, common);
        flight
    }

    /// How many slots there are.
    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds free slots to a member's; what is in flight stays.
    pub(crate) fn grow(&mut self, at: u32, more: u32) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        let own = &mut member.credits.slots;
        // Backwards, so that they are taken in ascending order at first.
        for (index, slot) in push_slots(&mut self.slots, more, 0).rev() {
            slot.sibling = mem::replace(&mut own.first, index);
            slot.next = mem::replace(&mut own.free, index);
        }
    }

    /// Takes credits and a slot. Returns its ticket, the queue pair, and what counts it when it is posted; `None` if it is
    /// to be rejected.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        reservation: Reservation,
    ) -> Option<(Ticket, &QueuePair, &Cells)> {
        let member = self.members.get_mut(reservation.member as usize)?;
        let channel = member.id;
        let (qp, credits) = member.up()?;
        let id = match take_slot(&mut self.slots, credits, reservation) {
            Some(id) => id,
            None => {
                let (slots, common) = (&mut self.slots, &mut self.common);
                take_common(slots, common, &mut self.budget, credits, reservation)?
            }
        };
        Some((Ticket { channel, id }, qp, &credits.cells))
    }

    /// Frees the slot and the credits of an operation that was not posted, but counted, with this number of bytes.
    pub(crate) fn cancel(&mut self, id: Id, bytes: u64) {
        if let Some(reservation) = self.in_flight(id)
            && let Some(member) = self.members.get_mut(reservation.member as usize)
        {
            member.credits.give_back(&mut self.budget, reservation);
            member
                .credits
                .cells
                .cancel(reservation.credits.into(), bytes);
            self.free(id);
        }
    }

    /// Frees a slot that is not ready.
    #[inline(always)]
    pub(super) fn free(&mut self, id: Id) {
        if let Some(slot) = self.slots.get_mut(id.own_index() as usize)
            && let Some(member) = self.members.get_mut(slot.reservation.member as usize)
        {
            slot.outcome = SlotOutcome::Nothing;
            slot.free(&mut member.credits.slots.free, id.own_index());
        } else {
            self.free_common(id.index());
        }
    }

    #[cold]
    #[inline(never)]
    fn free_common(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let Some(member) = self.members.get_mut(slot.reservation.member as usize) else {
            return;
        };
        let own = &mut member.credits.slots;
        slot.outcome = SlotOutcome::Nothing;
        slot.free(&mut self.common, index);
        own.common -= 1;
        // Its own links stay: a walk through the list may stand here, and goes on from here.
        let (prev, next) = (slot.prev_sibling, slot.sibling);
        match self.slots.get_mut(prev as usize) {
            Some(slot) => slot.sibling = next,
            None => own.first = next,
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.prev_sibling = prev;
        }
    }
}

/// Takes credits of the share of a member, and a slot.
#[inline(always)]
pub(super) fn take_slot(
    slots: &mut [Slot],
    credits: &mut Credits,
    reservation: Reservation,
) -> Option<Id> {
    let left = &mut credits.left[reservation.queue() as usize];
    // Not `checked_sub`, which compares first: the overflow shows that there were too few.
    let (rest, is_too_few) = left.overflowing_sub(reservation.credits.into());
    if is_too_few {
        return None;
    }
    let slot = slots.get_mut(credits.slots.free as usize)?;
    *left = rest;
    credits.slots.free = slot.next;
    slot.reservation = reservation;
    Some(slot.id)
}

/// The same with room that all channels share, and a common slot.
#[cold]
#[inline(never)]
pub(super) fn take_common(
    slots: &mut Vec<Slot>,
    common: &mut u32,
    budget: &mut Budget,
    credits: &mut Credits,
    reservation: Reservation,
) -> Option<Id> {
    let queue = reservation.queue();
    let lacks = credits.lacks(budget, queue, reservation.credits).ok()?;
    if credits.slots.common >= credits.slots.max_common {
        return None;
    }
    if *common == NONE {
        // There is a slot for each place of the budget: some have outcomes that are not taken.
        let more = slots.len() / 8 + 1;
        grow_common(slots, common, u32::try_from(more).unwrap_or(NONE));
    }
    let slot = slots.get_mut(*common as usize)?;
    credits.take_common(budget, queue, lacks);
    let own = &mut credits.slots;
    let (index, first) = (*common, own.first);
    *common = mem::replace(&mut slot.next, own.free);
    (slot.sibling, slot.prev_sibling) = (first, NONE);
    (own.free, own.first) = (index, index);
    own.common += 1;
    if let Some(slot) = slots.get_mut(first as usize) {
        slot.prev_sibling = index;
    }
    take_slot(slots, credits, reservation)
}

/// Adds free common slots.
fn grow_common(slots: &mut Vec<Slot>, common: &mut u32, more: u32) {
    for (index, slot) in push_slots(slots, more, COMMON).rev() {
        slot.next = mem::replace(common, index);
    }
}

/// Adds `more` slots that are in no list, up to the maximum of a table. Returns them, with their indexes.
fn push_slots(
    slots: &mut Vec<Slot>,
    more: u32,
    mark: u64,
) -> impl DoubleEndedIterator<Item = (u32, &mut Slot)> {
    let len = u32::try_from(slots.len()).unwrap_or(NONE);
    // The last index is that of `Id::NONE`.
    let end = len.saturating_add(more).min(SHARED_PLACES - 1);
    let new = (len..end).map(|index| Slot::new(Id::of(u64::from(index) | mark)));
    slots.extend(new);
    (len..end).zip(slots.iter_mut().skip(len as usize))
}

#[cfg(test)]
mod tests {
    use super::super::BufferOwner;
    use super::super::tests::{reservation, table_with_common};

    #[test]
    fn a_common_slot_is_the_next_channels_once_its_outcome_is_taken() {
        let mut table = table_with_common(0, 1);
        let [first, second] = [0, 1].map(|member| reservation(member, BufferOwner::Slot));
        let id = table.take(first).expect("there is one");
        assert!(table.take(first).is_none(), "it may have one");
        assert!(table.succeed(id.wr_id()));
        assert!(table.take(first).is_none(), "its outcome has the slot");
        // Outcomes that are not taken are no others' loss.
        let other = table.take(second).expect("another is added");
        assert_ne!(other.index(), id.index());
        assert_eq!(table.release(id).unwrap(), Ok(()));
        assert!(table.release(id).is_none());
        assert!(table.succeed(other.wr_id()));
        assert_eq!(table.release(other).unwrap(), Ok(()));
        let again = table.take(second).expect("it is free");
        assert_eq!(again.index(), other.index());
        let again = table.take(first).expect("it is free");
        assert_eq!(again.index(), id.index());
        assert!(table.0.first(0).is_some());
    }
}
