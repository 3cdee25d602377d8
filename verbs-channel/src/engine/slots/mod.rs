//! The slot table: the operations in flight, by `wr_id`.
//!
//! A slot holds one operation from its post until its outcome is taken. Its index and generation form
//! the `wr_id`, so a completion finds its slot in one step, and a stale one finds none.
//!
//! ```text
//! free ── take ──► in flight ── succeed, fail ──► completed ── release ──► free
//! ```
//!
//! All channels of an engine share the table, and each has slots of its own in it, in a [`SlotList`]:
//! the stack of its free slots, and a list of all its slots. So what one channel does costs the same
//! however much the others have in flight.
//!
//! With a [budget](super::budget) a channel has few slots of its own. An operation beyond its share
//! has a common slot, which it returns: see [`common`].
//!
//! One more list runs through slots of all channels: `ready`, of the completed operations that own
//! their buffers, in the order of their completion.
//!
//! Nothing here allocates after [`Slots::grow`], except for common slots while outcomes are left
//! untaken; and nothing is unsafe.

use super::afterwards::Queued;
use super::budget::Budget;
use crate::error::Queue;
use ready::ReadyList;
pub(crate) use reservation::{BufferOwner, Reservation};
use slot::{GENERATION, MEMBER, NONE, Slot, SlotOutcome};
pub(crate) use slot::{Id, NEXT, SHARED_PLACES, shared_place, shared_wr_id};

mod common;
mod dispatch;
mod outcome;
mod ready;
mod reservation;
mod slot;

/// The slots of one channel.
#[derive(Debug)]
pub(crate) struct SlotList {
    // The free slots, a stack.
    free: u32,
    // All slots, by `sibling`: the common ones first.
    first: u32,
    // How many operations on borrowed buffers have an outcome that was not taken. Their handles may have
    // been leaked.
    untaken: u32,
    // How many common slots it has, and the most that it may have.
    common: u32,
    max_common: u32,
}

impl SlotList {
    pub(crate) const fn new() -> Self {
        Self {
            free: NONE,
            first: NONE,
            untaken: 0,
            common: 0,
            max_common: 0,
        }
    }

    /// Whether an operation on borrowed buffers has an outcome that was not taken.
    pub(crate) const fn has_untaken(&self) -> bool {
        self.untaken > 0
    }

    /// The outcome of an operation was taken, or will not be.
    #[inline]
    const fn taken(&mut self, owner: BufferOwner) {
        if matches!(owner, BufferOwner::Borrowed) {
            self.untaken -= 1;
        }
    }

    /// Lets the channel have `more` common slots.
    pub(crate) const fn allow_common(&mut self, more: u32) {
        self.max_common = self.max_common.saturating_add(more);
    }
}

/// The table: `S` is a success, `B` a buffer.
#[derive(Debug)]
pub(crate) struct Slots<S, B> {
    slots: Vec<Slot<S, B>>,
    ready: ReadyList,
    failures: u32,
    // The free common slots, a stack.
    common: u32,
    /// The room for what is beyond the shares of channels.
    // Here, not in the engine: what dispatches has one argument less.
    pub(crate) budget: Budget,
    /// The queue of what waits until nothing borrows the engine.
    // Here for the same reason.
    pub(super) afterwards: Queued,
}

impl<S: Copy, B> Slots<S, B> {
    /// The bytes of a slot.
    #[cfg(test)]
    pub(crate) const SLOT_SIZE: usize = size_of::<Slot<S, B>>();

    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            ready: ReadyList::new(),
            failures: 0,
            common: NONE,
            budget: Budget::new(0),
            afterwards: Queued::new(),
        }
    }

    /// How many slots there are.
    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds free slots to a channel's; what is in flight stays.
    pub(crate) fn grow(&mut self, own: &mut SlotList, more: u32) {
        let len = self.push_slots(more);
        // Backwards, so that they are taken in ascending order at first.
        for (index, slot) in self.slots.iter_mut().enumerate().skip(len).rev() {
            let index = u32::try_from(index).unwrap_or(NONE);
            slot.sibling = std::mem::replace(&mut own.first, index);
            slot.next = std::mem::replace(&mut own.free, index);
        }
    }

    /// Adds `more` slots that are in no list, up to the maximum of a table. Returns how many there
    /// were before.
    fn push_slots(&mut self, more: u32) -> usize {
        let len = self.slots.len();
        // The last index is that of `Id::NONE`.
        let room = usize::try_from(MEMBER - 1).map_or(0, |max| max.saturating_sub(len));
        let end = len.saturating_add(room.min(more as usize));
        for index in len..end {
            self.slots.push(Slot {
                stamp: index as u64,
                reservation: Reservation::NOTHING,
                next: NONE,
                prev: NONE,
                sibling: NONE,
                prev_sibling: NONE,
                failed_at: 0,
                flags: 0,
                outcome: SlotOutcome::Nothing,
                buffer: None,
            });
        }
        len
    }

    /// Takes a free slot of the channel for a request with these flags; `None` if no slot is free.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        own: &mut SlotList,
        reservation: Reservation,
        flags: u32,
    ) -> Option<Id> {
        let slot = self.slots.get_mut(own.free as usize)?;
        own.free = slot.next;
        slot.stamp = slot.stamp.wrapping_add(GENERATION);
        slot.reservation = reservation;
        slot.flags = flags;
        Some(Id(slot.stamp))
    }

    /// Frees a slot that is not in `ready`.
    #[inline(always)]
    pub(crate) fn free(&mut self, own: &mut SlotList, id: Id) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize) {
            slot.free(&mut own.free, id.index());
        }
    }

    /// Stores the buffer that an operation owns.
    #[inline(always)]
    pub(crate) fn store_buffer(&mut self, id: Id, buffer: B) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize) {
            slot.buffer = Some(buffer);
        }
    }

    /// Detaches an operation that is in flight: its outcome will not be taken. Its slot is freed when
    /// it succeeds. A failure stays, for the scope to report.
    ///
    /// The slot is still the operation's, since nothing frees it but what takes its outcome; or this is
    /// [`Id::NONE`]. `false` if the operation has completed: then it is to be
    /// [detached](Self::detach_completed) in another way.
    #[inline(always)]
    pub(crate) fn detach(&mut self, id: Id) -> bool {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return true;
        };
        debug_assert_eq!(slot.id(), id, "the slot of a live handle was freed");
        let is_in_flight = slot.is_in_flight();
        if is_in_flight {
            slot.reservation.owner = BufferOwner::Detached;
        }
        is_in_flight
    }

    /// Detaches an operation of this channel that has completed: its slot is freed if it has succeeded.
    #[inline]
    pub(crate) fn detach_completed(&mut self, own: &mut SlotList, id: Id) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize)
            && slot.failure().is_none()
        {
            own.taken(slot.reservation.owner);
            self.put_back(own, id);
        }
    }

    /// Whether the operation has completed; `None` if it has no slot here.
    #[inline]
    pub(crate) fn is_done(&self, id: Id) -> Option<bool> {
        Some(!self.find(id)?.is_in_flight())
    }

    /// The queue of an operation on buffers of a scope or a call.
    pub(crate) fn borrowed(&self, id: Id) -> Option<Queue> {
        let reservation = self.find(id)?.reservation;
        let is_borrowed = reservation.owner.is_borrowed();
        is_borrowed.then_some(reservation.queue)
    }

    /// The same while the operation is in flight. An operation of the send queue completes without the
    /// peer's doing; a receive waits for the peer to send.
    pub(crate) fn borrowed_in_flight(&self, id: Id) -> Option<Queue> {
        let is_in_flight = self.is_done(id) == Some(false);
        is_in_flight.then(|| self.borrowed(id)).flatten()
    }

    /// The channel that a completion belongs to, and the queue.
    pub(crate) fn owner(&self, wr_id: u64) -> Option<(u32, Queue)> {
        let Reservation { member, queue, .. } = self.find_request(wr_id)?.reservation;
        Some((member, queue))
    }

    /// The flags of the operation of the send queue that a completion belongs to, and the buffer that it owns.
    pub(crate) fn sent(&self, wr_id: u64) -> Option<(u32, Option<&B>)> {
        let slot = self.find_request(wr_id)?;
        Some((slot.flags, slot.buffer.as_ref()))
    }

    /// The place of the buffer of an operation, before this work request of it is its first failure.
    pub(crate) fn buffer_before_failure(&mut self, wr_id: u64) -> Option<&mut Option<B>> {
        let id = self.find_request(wr_id)?.id();
        let slot = self.slots.get_mut(id.index() as usize)?;
        let is_first = slot.is_in_flight() && slot.failure().is_none();
        is_first.then_some(&mut slot.buffer)
    }

    /// An operation of a channel that has a slot: the first in no particular order.
    pub(crate) fn first(&self, own: &SlotList) -> Option<Id> {
        self.in_use_from(own.first).next().map(Slot::id)
    }

    /// The operation after this one, on its channel. The slot of this one may have been freed
    /// meanwhile.
    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        let slot = self.slots.get(id.index() as usize)?;
        self.in_use_from(slot.sibling).next().map(Slot::id)
    }

    /// Whether buffers that safe code uses again are in flight on a channel: those of a scope or
    /// a call; and those of an operation that is to own its buffer, and does not have it yet.
    pub(crate) fn has_borrowed_in_flight(&self, own: &SlotList) -> bool {
        self.in_use_from(own.first).any(|slot| {
            let owner = slot.reservation.owner;
            let has_none = owner == BufferOwner::Slot && slot.buffer.is_none();
            slot.is_in_flight() && (owner.is_borrowed() || has_none)
        })
    }

    /// Whether any operation of a channel that owns its buffer has a slot.
    pub(crate) fn owns_any(&self, own: &SlotList) -> bool {
        let mut slots = self.in_use_from(own.first);
        slots.any(|slot| slot.reservation.owner == BufferOwner::Slot)
    }

    /// The slots of a channel that are in use, from this one on.
    fn in_use_from(&self, first: u32) -> impl Iterator<Item = &Slot<S, B>> {
        let first = self.slots.get(first as usize);
        let all = std::iter::successors(first, |slot| self.slots.get(slot.sibling as usize));
        all.filter(|slot| slot.is_in_use())
    }

    /// The slot of the operation that has a work request with this `wr_id`.
    fn find_request(&self, wr_id: u64) -> Option<&Slot<S, B>> {
        let slot = self.slots.get(Id(wr_id).index() as usize)?;
        slot.has_request(wr_id).then_some(slot)
    }

    /// The slot of an operation that has one.
    #[inline]
    fn find(&self, id: Id) -> Option<&Slot<S, B>> {
        let slot = self.slots.get(id.index() as usize)?;
        (slot.stamp & !MEMBER == id.0).then_some(slot)
    }
}

#[cfg(test)]
mod tests;
