//! The slot table: the operations in flight, and the outcomes that were not taken yet.
//!
//! A slot holds one operation from its post until its outcome is taken. Its index and generation form
//! the `wr_id`, so a completion finds its slot in one step, and a stale one finds none.
//!
//! ```text
//! free ── take ──► in flight ── succeed, fail ──► succeeded, failed ── release ──► free
//! ```
//!
//! All channels of an engine share the table, and each has slots of its own in it, in its [`Credits`]:
//! the stack of its free slots, and a list of all its slots. So what one channel does costs the same
//! however much the others have in flight.
//!
//! With a [budget](super::member::Budget) a channel has few slots of its own. An operation beyond its share
//! has a common slot: one of a stack that all channels share, in the list of the channel that uses it.
//!
//! One more list runs through slots of all channels: the ready operations, which own their buffers and have
//! completed, in the order of their completion.
//!
//! Nothing here allocates after [`Flight::grow`], except for common slots while outcomes are left
//! untaken; and nothing is unsafe.

use std::{iter, mem};

use verbs_core::codes::WcOpcode;
use verbs_core::{WorkCompletion, WorkSuccess};

use super::member::{Budget, BufferOwner, Credits, Member, NONE, Reservation};
use crate::error::{Queue, TransportError};
use slot::{Ready, Slot, SlotOutcome};
pub use ticket::{Completed, Ticket};
pub(crate) use ticket::{Id, NEXT, Outcome, SHARED_PLACES, SlotBuffer, shared_place, shared_wr_id};

mod room;
mod slot;
mod ticket;

/// The members of an engine, and their operations.
#[derive(Debug)]
pub(crate) struct Flight {
    // First: no queue pair may outlive the buffers in `slots`.
    pub(crate) members: Vec<Member>,
    slots: Vec<Slot>,
    ready: Ready,
    failures: u32,
    // The free common slots, a stack.
    common: u32,
    /// The room for what is beyond the shares of channels.
    pub(crate) budget: Budget,
}

/// Operations in flight.
impl Flight {
    /// Stores the buffer that an operation owns from now on: it had none.
    #[expect(clippy::mem_forget, reason = "a buffer of the device is never dropped")]
    #[inline(always)]
    pub(crate) fn store_buffer(&mut self, id: Id, buffer: SlotBuffer) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize) {
            let none = slot.buffer.replace(buffer);
            debug_assert!(none.is_none(), "an operation gets its buffer once");
            mem::forget(none);
        }
    }

    /// The reservation of an operation that is in flight.
    fn in_flight(&self, id: Id) -> Option<Reservation> {
        let slot = self.find(id)?;
        slot.is_in_flight().then_some(slot.reservation)
    }

    /// An operation of this member that is in flight, no request of which has failed, and whose slot is not common.
    #[inline(always)]
    pub(crate) fn posted(&mut self, at: u32, id: Id) -> Option<Posted<'_>> {
        let member = self.members.get_mut(at as usize)?;
        let slot = self.slots.get_mut(id.own_index() as usize)?;
        if !slot.is_posted(id) {
            return None;
        }
        debug_assert_eq!(
            slot.reservation.member, at,
            "the credits go back to its channel"
        );
        let credits = &mut member.credits;
        Some(Posted { slot, credits, id })
    }

    /// Dispatches the successes at the front of `found`: those of [posted](Self::posted) operations of one request, as
    /// long as they have the same reservation. Returns the others.
    ///
    /// A result that cannot be taken is not stored: that of a detached operation, and, if `keep_results` is false, of
    /// any borrowed one.
    #[inline(always)]
    pub(crate) fn succeed<'c>(
        &mut self,
        found: &'c [WorkCompletion],
        keep_results: bool,
    ) -> &'c [WorkCompletion] {
        let first = found
            .first()
            .map_or(Id::NONE, |first| Id::of(first.wr_id()));
        let Some(slot) = self.slots.get(first.own_index() as usize) else {
            return found;
        };
        let reservation = slot.reservation;
        let Some(member) = self.members.get_mut(reservation.member as usize) else {
            return found;
        };
        if reservation.credits != 1 {
            return found;
        }
        let credits = &mut member.credits;
        let owner = reservation.owner;
        let is_stored = match owner {
            BufferOwner::Borrowed => keep_results,
            BufferOwner::Detached => false,
            BufferOwner::Slot | BufferOwner::Claimed | BufferOwner::Caller => true,
        };
        let slots = self.slots.as_mut_slice();
        let mut free = credits.slots.free;
        let mut left = found.iter();
        while let Some(completion) = left.as_slice().first() {
            let id = Id::of(completion.wr_id());
            let Some(slot) = slots.get_mut(id.own_index() as usize) else {
                break;
            };
            if slot.id != id || slot.reservation.word() != reservation.word() {
                break;
            }
            let Some(success) = completion.success() else {
                break;
            };
            if is_stored {
                slot.reservation.credits = 0;
                slot.outcome = SlotOutcome::Success(*success);
                if owner == BufferOwner::Slot {
                    self.ready.push(slots, id.own_index());
                }
                credits.slots.untaken += u32::from(owner == BufferOwner::Borrowed);
            } else {
                slot.free(&mut free, id.own_index());
            }
            left.next();
        }
        credits.slots.free = free;
        credits.give_back_to_share(reservation.queue(), found.len() - left.len());
        left.as_slice()
    }

    /// [`succeed`](Self::succeed) for any operation: its slot may be common, or another request of its batch may have
    /// failed. Then that is the outcome.
    pub(crate) fn succeed_slowly(&mut self, id: Id, success: &WorkSuccess) {
        if self.is_done(id) != Some(false) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(id.index() as usize)
            && slot.failure().is_none()
        {
            slot.outcome = SlotOutcome::Success(*success);
        }
        self.complete(id);
    }

    /// Records that a work request has failed, the one at this place of its operation; `None` for the last. The first
    /// failure of a batch is the batch's, unless a request of it is stuck. The operation is complete with its last
    /// request.
    #[cold]
    pub(crate) fn fail(&mut self, wr_id: u64, place: Option<usize>, error: TransportError) {
        let Some(id) = self.find_request(wr_id).map(|slot| slot.id) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return;
        };
        let is_last = wr_id == id.wr_id();
        if !slot.is_in_flight() || !is_last && slot.reservation.credits == 1 {
            return;
        }
        let is_first = slot.failure().is_none();
        if let (true, Some(SlotBuffer::Chain(chain))) = (is_first, &mut slot.buffer) {
            chain.stopped_at(place);
        }
        // The device may still have the rest of a batch that has failed before.
        if is_first || error == TransportError::Stuck {
            slot.outcome = SlotOutcome::Failure(error);
            slot.failed_at = self.failures;
            self.failures = self.failures.wrapping_add(1);
        }
        if is_last {
            self.complete(id);
        }
    }

    /// An operation that has an outcome is complete: returns its credits.
    fn complete(&mut self, id: Id) {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return;
        };
        let Some(member) = self.members.get_mut(slot.reservation.member as usize) else {
            return;
        };
        member.credits.give_back(&mut self.budget, slot.reservation);
        if let Some(failure) = slot.failure() {
            let is_abort = matches!(failure, TransportError::Aborted(_));
            let requests = slot.reservation.credits.into();
            member.credits.cells.fail(requests, is_abort);
        }
        slot.reservation.credits = 0;
        match slot.reservation.owner {
            BufferOwner::Slot => self.ready.push(&mut self.slots, id.index()),
            BufferOwner::Borrowed => member.credits.slots.untaken += 1,
            // A failure stays, for the scope to report.
            BufferOwner::Detached if slot.failure().is_none() => self.free(id),
            BufferOwner::Detached | BufferOwner::Claimed | BufferOwner::Caller => {}
        }
    }

    /// Detaches an operation that is in flight: its outcome will not be taken. Its slot is freed when
    /// it succeeds. A failure stays, for the scope to report.
    ///
    /// The slot is still the operation's, since nothing frees it but what takes its outcome; or this is
    /// [`Id::NONE`]. `false` if the operation has completed.
    #[inline(always)]
    pub(crate) fn detach(&mut self, id: Id) -> bool {
        let Some(slot) = self.slots.get_mut(id.index() as usize) else {
            return true;
        };
        debug_assert_eq!(slot.id, id, "the slot of a live handle was freed");
        let is_in_flight = slot.is_in_flight();
        if is_in_flight {
            slot.reservation.owner = BufferOwner::Detached;
        }
        is_in_flight
    }

    /// Takes the buffer of an operation that is in flight: the device is done with it, or it is to be leaked.
    #[inline(always)]
    pub(crate) fn take_buffer_in_flight(&mut self, id: Id) -> Option<SlotBuffer> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        let is_in_flight = slot.id == id && slot.is_in_flight();
        is_in_flight.then(|| slot.buffer.take()).flatten()
    }
}

/// Outcomes: taken once, and the slot is free.
impl Flight {
    /// Takes the outcome of an operation that has completed, and the buffer that it owns, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: Id) -> Option<Outcome> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.id != id || slot.is_in_flight() {
            return None;
        }
        let result = match slot.outcome {
            SlotOutcome::Nothing => return None,
            SlotOutcome::Success(success) => Ok(success),
            SlotOutcome::Failure(error) => Err(error),
        };
        let owned = slot.buffer.take();
        match slot.reservation.owner {
            BufferOwner::Slot => self.ready.unlink(&mut self.slots, id.index()),
            BufferOwner::Borrowed => {
                let member = self.members.get_mut(slot.reservation.member as usize)?;
                member.credits.slots.untaken -= 1;
            }
            BufferOwner::Detached | BufferOwner::Claimed | BufferOwner::Caller => {}
        }
        self.free(id);
        Some(Outcome { result, owned })
    }

    /// The operation that owns its buffer and completed first, of those that are ready.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<Id> {
        self.slots
            .get(self.ready.first as usize)
            .map(|slot| slot.id)
    }

    /// Claims the [first ready](Self::first_ready) operation, of which channel that is too. It is not
    /// ready any more; its outcome can still be taken.
    pub(crate) fn claim_ready(&mut self) -> Option<(Id, u32)> {
        let index = self.ready.first;
        let slot = self.slots.get_mut(index as usize)?;
        slot.reservation.owner = BufferOwner::Claimed;
        let claimed = (slot.id, slot.reservation.member);
        self.ready.unlink(&mut self.slots, index);
        Some(claimed)
    }
}

/// Queries.
impl Flight {
    /// Whether the operation has completed; `None` if it has no slot here.
    #[inline]
    pub(crate) fn is_done(&self, id: Id) -> Option<bool> {
        Some(!self.find(id)?.is_in_flight())
    }

    /// Whether the operation is in flight.
    #[inline(always)]
    pub(crate) fn is_pending(&self, id: Id) -> bool {
        self.is_done(id) == Some(false)
    }

    /// The failure of the operation, or of a request of it, and when that was, counted in failures.
    pub(crate) fn failure(&self, id: Id) -> Option<(TransportError, u32)> {
        let slot = self.find(id)?;
        Some((slot.failure()?, slot.failed_at))
    }

    /// The queue of an operation on buffers of a scope or a call.
    pub(crate) fn borrowed(&self, id: Id) -> Option<Queue> {
        let reservation = self.find(id)?.reservation;
        (reservation.owner.is_borrowed()).then_some(reservation.queue())
    }

    /// The same while the operation is in flight. An operation of the send queue completes without the
    /// peer's doing; a receive waits for the peer to send.
    pub(crate) fn borrowed_in_flight(&self, id: Id) -> Option<Queue> {
        self.is_pending(id).then(|| self.borrowed(id)).flatten()
    }

    /// The channel that a completion belongs to, and the queue.
    pub(crate) fn owner(&self, wr_id: u64) -> Option<(u32, Queue)> {
        let reservation = self.find_request(wr_id)?.reservation;
        Some((reservation.member, reservation.queue()))
    }

    /// The opcode of the request that a completion belongs to, if all that it may be of have the same.
    pub(crate) fn opcode(&self, wr_id: u64) -> Option<WcOpcode> {
        let slot = self.find_request(wr_id)?;
        let buffer = slot.buffer.as_ref();
        let of_several = buffer.and_then(|buffer| buffer.opcodes(Id::place_of(wr_id)));
        of_several.unwrap_or(slot.reservation.opcodes).one()
    }

    /// An operation of a channel that has a slot: the first in no particular order.
    pub(crate) fn first(&self, at: u32) -> Option<Id> {
        self.in_use(at).next().map(|slot| slot.id)
    }

    /// The operation after this one, on its channel. The slot of this one may have been freed
    /// meanwhile.
    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        let slot = self.slots.get(id.index() as usize)?;
        self.in_use_from(slot.sibling).next().map(|slot| slot.id)
    }

    /// Whether buffers that safe code uses again are in flight on a channel: those of a scope or
    /// a call.
    pub(crate) fn has_borrowed_in_flight(&self, at: u32) -> bool {
        let mut slots = self.in_use(at);
        slots.any(|slot| slot.is_in_flight() && slot.reservation.owner.is_borrowed())
    }

    /// Whether all that is in flight on a channel is on buffers of a scope or a call. It looks at slots until it has found
    /// all of it.
    pub(crate) fn is_all_borrowed(&self, at: u32) -> bool {
        let Some(member) = self.member(at) else {
            return true;
        };
        let queues = [Queue::Send, Queue::Receive];
        let mut left: u32 = queues
            .map(|queue| member.credits.in_flight(queue))
            .iter()
            .sum();
        let mut slots = self.in_use(at).filter(|slot| slot.is_in_flight());
        while left > 0
            && let Some(slot) = slots.next()
        {
            if !slot.reservation.owner.is_borrowed() {
                return false;
            }
            left = left.saturating_sub(slot.reservation.credits.into());
        }
        true
    }

    /// Whether an operation on an owned buffer is in flight, or has an outcome that was not taken.
    pub(crate) fn owns_any(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| !slot.is_free() && slot.reservation.owner == BufferOwner::Slot)
    }

    /// A member, by its place.
    #[inline(always)]
    pub(crate) fn member(&self, at: u32) -> Option<&Member> {
        self.members.get(at as usize)
    }

    pub(crate) fn member_mut(&mut self, at: u32) -> Option<&mut Member> {
        self.members.get_mut(at as usize)
    }

    /// The slots of a channel that are in use.
    fn in_use(&self, at: u32) -> impl Iterator<Item = &Slot> {
        let member = self.member(at);
        self.in_use_from(member.map_or(NONE, |member| member.credits.slots.first))
    }

    /// The slots of a channel that are in use, from this one on.
    fn in_use_from(&self, first: u32) -> impl Iterator<Item = &Slot> {
        let first = self.slots.get(first as usize);
        let all = iter::successors(first, |slot| self.slots.get(slot.sibling as usize));
        all.filter(|slot| !slot.is_free())
    }

    /// The slot of the operation that has a work request with this `wr_id`.
    fn find_request(&self, wr_id: u64) -> Option<&Slot> {
        let slot = self.slots.get(Id(wr_id).index() as usize)?;
        (slot.id.has_request(wr_id) && !slot.is_free()).then_some(slot)
    }

    /// The slot of an operation that has one.
    #[inline(always)]
    fn find(&self, id: Id) -> Option<&Slot> {
        let slot = self.slots.get(id.index() as usize)?;
        (slot.id == id && !slot.is_free()).then_some(slot)
    }
}

/// An operation that is in flight.
pub(crate) struct Posted<'f> {
    slot: &'f mut Slot,
    credits: &'f mut Credits,
    id: Id,
}

impl Posted<'_> {
    /// The place of the buffer that the operation owns.
    #[inline(always)]
    pub(crate) const fn buffer(&mut self) -> &mut Option<SlotBuffer> {
        &mut self.slot.buffer
    }

    /// Ends the operation, whose success needs no slot.
    #[inline(always)]
    pub(crate) fn end(self) {
        let Self { slot, credits, id } = self;
        let reservation = slot.reservation;
        credits.give_back_to_share(reservation.queue(), reservation.credits.into());
        slot.free(&mut credits.slots.free, id.own_index());
    }
}

#[cfg(test)]
mod tests;
