//! Polls: completions reach their operations.

use verbs_core::{PollError, PollSlot, PolledCompletions, WorkCompletion, WorkSuccess};

use super::Engine;
use super::member::Member;
use super::slots::{Credits, Id, Reservation, Slots};
use crate::channel_id::ChannelId;
use crate::engine::Kept;
use crate::error::DownReason;

impl Engine {
    /// Polls once, and dispatches the completions; how many they were. The results of operations on
    /// borrowed buffers are kept if `keep_results` says so.
    #[inline(always)]
    pub(super) fn poll_cq(&mut self, keep_results: bool) -> Result<usize, PollError> {
        let found = self.cq.poll(&mut self.room)?;
        dispatch(&mut self.members, &mut self.slots, found, keep_results);
        Ok(found.len())
    }

    /// Polls once for an operation on borrowed buffers: whether its success is all there is. Then it
    /// has ended, and its slot is free. Else what was found is dispatched.
    #[inline(always)]
    pub(crate) fn poll_for(&mut self, reservation: Reservation, id: Id) -> bool {
        if !self.poll_finds_only(id) {
            return false;
        }
        if let Some(member) = self.members.get_mut(reservation.member as usize)
            && self.slots.take_back(&mut member.slots, id)
        {
            member.give_back(reservation, 1);
            return true;
        }
        self.dispatch_first();
        false
    }

    /// Polls once: whether a success of this operation is all there is. Then it is the
    /// [last success](Self::last_success); else what was found is dispatched.
    #[inline(always)]
    fn poll_finds_only(&mut self, id: Id) -> bool {
        let found = match self.cq.poll(&mut self.room) {
            Ok(found) => found,
            Err(error) => {
                self.not_polled(error);
                return false;
            }
        };
        if success_of(found, id).is_some() {
            return true;
        }
        if !found.is_empty() {
            dispatch(&mut self.members, &mut self.slots, found, true);
        }
        false
    }

    /// Dispatches the [last success](Self::last_success) after all: it needs a closer look.
    #[cold]
    #[inline(never)]
    fn dispatch_first(&mut self) {
        let found = PollSlot::completions(self.room.get(..1).unwrap_or_default());
        dispatch(&mut self.members, &mut self.slots, found, true);
    }

    /// [`poll_for`](Self::poll_for) an operation of this channel that owns what `take` takes: what
    /// `then` makes of that and the success. Does not poll if the operation is not in flight with these
    /// credits.
    #[inline(always)]
    pub(crate) fn poll_for_owned<K, T>(
        &mut self,
        channel: ChannelId,
        at: u32,
        id: Id,
        credits: Credits,
        take: impl FnOnce(&mut Option<Kept>) -> Option<K>,
        then: impl FnOnce(K, &WorkSuccess) -> T,
    ) -> Option<T> {
        let member = self.members.get_mut(at as usize)?;
        if member.id != channel {
            return None;
        }
        // Found once: nothing but a dispatch changes it.
        let mut slot = self.slots.in_flight(id, credits)?;
        let found = match self.cq.poll(&mut self.room) {
            Ok(found) => found,
            Err(error) => {
                self.not_polled(error);
                return None;
            }
        };
        if let Some(success) = success_of(found, id)
            && let Some(kept) = take(slot.buffer())
        {
            let reservation = slot.end(&mut member.slots);
            member.give_back(reservation, 1);
            return Some(then(kept, success));
        }
        if !found.is_empty() {
            dispatch(&mut self.members, &mut self.slots, found, true);
        }
        None
    }

    /// The success that the last poll for an operation has found.
    #[inline(always)]
    pub(crate) fn last_success(&self) -> Option<&WorkSuccess> {
        let found = PollSlot::completions(&self.room).as_slice();
        found.first()?.success()
    }

    /// Polls the queue once, and dispatches what was there. Returns how many completions that was.
    ///
    /// If the queue cannot be polled, all channels are taken down.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn drive(&mut self) -> usize {
        self.poll_cq(true)
            .unwrap_or_else(|error| self.not_polled(error))
    }

    /// The same at the end of a scope: the results of its operations cannot be taken any more.
    #[inline(always)]
    pub(crate) fn drive_discarding(&mut self) -> usize {
        self.poll_cq(false)
            .unwrap_or_else(|error| self.not_polled(error))
    }

    #[cold]
    #[inline(never)]
    fn not_polled(&mut self, error: PollError) -> usize {
        self.destroy_all(DownReason::Poll(error));
        0
    }
}

/// The success of this operation, if that is all that a poll found.
#[inline(always)]
fn success_of(found: PolledCompletions<'_>, id: Id) -> Option<&WorkSuccess> {
    match found.as_slice() {
        [only] if only.wr_id() == id.wr_id() => only.success(),
        _ => None,
    }
}

/// Dispatches what a poll found.
// In a place of its own: inlined it has too few registers.
#[inline(never)]
fn dispatch(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, Kept>,
    found: PolledCompletions<'_>,
    keep_results: bool,
) {
    let mut left = found.as_slice();
    while let Some((first, rest)) = left.split_first() {
        let mut count = 0;
        if let Some(reservation) = slots.reservation(first.wr_id())
            && let Some(member) = members.get_mut(reservation.member as usize)
        {
            count = slots.dispatch_successes(
                &mut member.slots,
                reservation,
                left,
                keep_results,
                WorkCompletion::wr_id,
                WorkCompletion::success,
            );
            member.give_back(reservation, count);
        }
        left = match left.get(count..) {
            Some(left) if count > 0 => left,
            _ => {
                dispatch_one(members, slots, first);
                rest
            }
        };
    }
}

/// Dispatches a completion that is not just the success of an operation.
#[cold]
#[inline(never)]
fn dispatch_one(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, Kept>,
    completion: &WorkCompletion,
) {
    let wr_id = completion.wr_id();
    // An unknown number ends nothing.
    let Some((at, queue)) = slots.owner(wr_id) else {
        return;
    };
    let Some(member) = members.get_mut(at as usize) else {
        return;
    };
    let ended = match completion.result() {
        Ok(success) => slots.succeed(&mut member.slots, wr_id, success),
        Err(error) => {
            let failure = member.failed(queue, error);
            slots.fail(&mut member.slots, wr_id, failure)
        }
    };
    if let Some(reservation) = ended {
        member.give_back(reservation, 1);
    }
}
