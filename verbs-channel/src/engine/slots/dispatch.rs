//! Dispatch: completions reach their slots, those with the same reservation at once.

use super::ready::ReadyList;
use super::slot::SlotOutcome;
use super::{BufferOwner, Id, MEMBER, Reservation, Slot, SlotList, Slots};
use crate::error::TransportError;

/// The ways to handle success: the slot is freed; the result is stored; or it is stored and the
/// operation is added to the ready list.
const FREE: u8 = 0;
const KEEP: u8 = 1;
const READY: u8 = 2;

impl<S: Copy, B> Slots<S, B> {
    /// The reservation of the operation that this `wr_id` may belong to, if that is in flight.
    #[inline(always)]
    pub(crate) fn reservation(&self, wr_id: u64) -> Option<&Reservation> {
        let slot = self.slots.get(Id(wr_id).own_index() as usize)?;
        slot.is_in_flight().then_some(&slot.reservation)
    }

    /// Dispatches the successes at the front of `found` whose operations have this reservation, on the
    /// channel with these slots. Returns the others. Results that cannot be taken are not stored: those of
    /// detached operations, and, if `keep_results` is false, of all borrowed ones.
    ///
    /// It stops at a completion that is no success, at an unknown `wr_id`, and at a batch of which a
    /// request has failed: see [`succeed`](Self::succeed).
    #[inline(always)]
    pub(crate) fn dispatch_successes<'c, C>(
        &mut self,
        own: &mut SlotList,
        reservation: Reservation,
        found: &'c [C],
        keep_results: bool,
        wr_id: impl Fn(&C) -> u64,
        success: impl Fn(&C) -> Option<&S>,
    ) -> &'c [C] {
        let slots = &mut *self.slots;
        let ready = &mut self.ready;
        let word = reservation.word();
        let owner = reservation.owner;
        let is_borrowed = owner == BufferOwner::Borrowed;
        if owner == BufferOwner::Slot {
            dispatch::<READY, _, _, _>(slots, own, ready, word, found, wr_id, success)
        } else if owner == BufferOwner::Detached || is_borrowed && !keep_results {
            dispatch::<FREE, _, _, _>(slots, own, ready, word, found, wr_id, success)
        } else {
            let rest = dispatch::<KEEP, _, _, _>(slots, own, ready, word, found, wr_id, success);
            if is_borrowed {
                own.untaken += u32::try_from(found.len() - rest.len()).unwrap_or(0);
            }
            rest
        }
    }

    /// Records that a work request has succeeded. Returns the reservation of its operation if that is
    /// complete now. If another request of the operation has failed before, that is its outcome.
    ///
    /// `None` for an unknown `wr_id`, too.
    #[cold]
    pub(crate) fn succeed(
        &mut self,
        own: &mut SlotList,
        wr_id: u64,
        success: S,
    ) -> Option<Reservation> {
        let id = Id(wr_id);
        if self.is_done(id)? {
            return None;
        }
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.failure().is_none() {
            slot.outcome = SlotOutcome::Success(success);
        }
        self.end(own, id)
    }

    /// Records that a work request has failed. Returns the reservation of its operation if that is
    /// complete now. The first failure of a batch is the batch's, unless a request of it is stuck.
    ///
    /// `None` for a request of a batch that is still in flight, and for an unknown `wr_id`.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        own: &mut SlotList,
        wr_id: u64,
        error: TransportError,
    ) -> Option<Reservation> {
        let id = self.find_request(wr_id)?.id();
        if self.is_done(id) != Some(false) {
            return None;
        }
        let slot = self.slots.get_mut(id.index() as usize)?;
        // The device may still have the rest of a batch that has failed before.
        if slot.failure().is_none() || error == TransportError::Stuck {
            slot.outcome = SlotOutcome::Failure(error);
            slot.failed_at = self.failures;
            self.failures = self.failures.wrapping_add(1);
        }
        if wr_id & MEMBER != 0 {
            slot.stamp = id.0 | MEMBER;
            return None;
        }
        self.end(own, id)
    }

    /// Ends an operation that is in flight, and has an outcome.
    fn end(&mut self, own: &mut SlotList, id: Id) -> Option<Reservation> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        slot.stamp = id.0;
        let reservation = slot.reservation;
        let has_failed = slot.failure().is_some();
        slot.reservation.credits = 0;
        match reservation.owner {
            BufferOwner::Slot => self.ready.push(&mut self.slots, id.index()),
            BufferOwner::Borrowed => own.untaken += 1,
            // A failure stays, for the scope to report.
            BufferOwner::Detached if !has_failed => self.put_back(own, id),
            _ => {}
        }
        Some(reservation)
    }
}

/// Dispatches the successes at the front of `found`. Returns the others.
#[inline(always)]
fn dispatch<'c, const THEN: u8, S: Copy, B, C>(
    slots: &mut [Slot<S, B>],
    own: &mut SlotList,
    ready: &mut ReadyList,
    word: u64,
    found: &'c [C],
    wr_id: impl Fn(&C) -> u64,
    success: impl Fn(&C) -> Option<&S>,
) -> &'c [C] {
    let mut last = ready.last();
    let mut top = own.free;
    // Not by a slice's iterator: that computes its end first, and how many are left at last.
    let mut left = found;
    while let Some(completion) = left.first() {
        let wr_id = wr_id(completion);
        let id = Id(wr_id);
        let Some(slot) = slots.get_mut(id.own_index() as usize) else {
            break;
        };
        if slot.stamp != wr_id || slot.reservation.word() != word {
            break;
        }
        let Some(success) = success(completion) else {
            break;
        };
        if THEN == FREE {
            slot.free(&mut top, id.own_index());
        } else {
            slot.outcome = SlotOutcome::Success(*success);
            slot.reservation.credits = 0;
        }
        if THEN == READY {
            slot.prev = last;
            match slots.get_mut(last as usize) {
                Some(before) => before.next = id.own_index(),
                None => ready.head = id.own_index(),
            }
            last = id.own_index();
        }
        left = left.get(1..).unwrap_or_default();
    }
    match THEN {
        FREE => own.free = top,
        READY => ready.end(slots, last),
        _ => {}
    }
    left
}
