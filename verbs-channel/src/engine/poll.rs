//! Polls: completions reach their operations.

use verbs_core::{PollError, PollSlot, PolledCompletions, WorkCompletion, WorkSuccess};

use super::Engine;
use super::member::Member;
use super::shared::Shared;
use super::slots::{Credits, Id, Reservation, Slots, shared_place};
use crate::channel_id::ChannelId;
use crate::engine::SlotBuffer;
use crate::error::{DownReason, Queue};

impl Engine {
    /// Polls once, and dispatches the completions. Returns how many. The results of operations on
    /// borrowed buffers are stored if `keep_results` is `true`.
    #[inline(always)]
    pub(super) fn poll_cq(&mut self, keep_results: bool) -> Result<usize, PollError> {
        let found = self.cq.poll(&mut self.poll_slots)?;
        dispatch(
            &mut self.members,
            &mut self.slots,
            &mut self.shared,
            found,
            keep_results,
        );
        Ok(found.len())
    }

    /// Polls once for an operation on borrowed buffers. If its success is the only completion, its slot
    /// is freed, and this returns `true`. Otherwise all completions are dispatched.
    #[inline(always)]
    pub(crate) fn poll_for(&mut self, reservation: Reservation, id: Id) -> bool {
        if !self.poll_finds_only(id) {
            return false;
        }
        if let Some(member) = self.members.get_mut(reservation.member as usize)
            && self.slots.free_in_flight(&mut member.slots, id)
        {
            member.return_credits(reservation, 1);
            return true;
        }
        self.dispatch_first();
        false
    }

    /// Polls once. If the success of this operation is the only completion, it becomes the
    /// [last success](Self::last_success), and this returns `true`. Otherwise all are dispatched.
    #[inline(always)]
    fn poll_finds_only(&mut self, id: Id) -> bool {
        let found = match self.cq.poll(&mut self.poll_slots) {
            Ok(found) => found,
            Err(error) => {
                self.poll_failed(error);
                return false;
            }
        };
        if success_of(found, id).is_some() {
            return true;
        }
        if !found.is_empty() {
            dispatch(
                &mut self.members,
                &mut self.slots,
                &mut self.shared,
                found,
                true,
            );
        }
        false
    }

    /// Dispatches the [last success](Self::last_success), whose operation is not in flight.
    #[cold]
    #[inline(never)]
    fn dispatch_first(&mut self) {
        let found = PollSlot::completions(self.poll_slots.get(..1).unwrap_or_default());
        dispatch(
            &mut self.members,
            &mut self.slots,
            &mut self.shared,
            found,
            true,
        );
    }

    /// [`poll_for`](Self::poll_for) an operation of this channel that owns its buffer, which `take` takes
    /// out of the slot. Returns the result of `then` for it. Does not poll if the operation is not in
    /// flight with these credits.
    #[inline(always)]
    pub(crate) fn poll_for_owned<B, T>(
        &mut self,
        channel: ChannelId,
        at: u32,
        id: Id,
        credits: Credits,
        take: impl FnOnce(&mut Option<SlotBuffer>) -> Option<B>,
        then: impl FnOnce(B, &WorkSuccess) -> T,
    ) -> Option<T> {
        let member = self.members.get_mut(at as usize)?;
        if member.id != channel {
            return None;
        }
        // Found once: nothing but a dispatch changes it.
        let mut slot = self.slots.in_flight(id, credits)?;
        let found = match self.cq.poll(&mut self.poll_slots) {
            Ok(found) => found,
            Err(error) => {
                self.poll_failed(error);
                return None;
            }
        };
        if let Some(success) = success_of(found, id)
            && let Some(owned) = take(slot.buffer())
        {
            let reservation = slot.end(&mut member.slots);
            member.return_credits(reservation, 1);
            return Some(then(owned, success));
        }
        if !found.is_empty() {
            dispatch(
                &mut self.members,
                &mut self.slots,
                &mut self.shared,
                found,
                true,
            );
        }
        None
    }

    /// The success that the last poll for an operation has found.
    #[inline(always)]
    pub(crate) fn last_success(&self) -> Option<&WorkSuccess> {
        let found = PollSlot::completions(&self.poll_slots).as_slice();
        found.first()?.success()
    }

    /// Polls the queue once, and dispatches the completions. Returns how many.
    ///
    /// If the queue cannot be polled, all channels are taken down.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn drive(&mut self) -> usize {
        self.poll_cq(true)
            .unwrap_or_else(|error| self.poll_failed(error))
    }

    /// The same at the end of a scope: the results of its operations cannot be taken any more.
    #[inline(always)]
    pub(crate) fn drive_discarding(&mut self) -> usize {
        self.poll_cq(false)
            .unwrap_or_else(|error| self.poll_failed(error))
    }

    #[cold]
    #[inline(never)]
    fn poll_failed(&mut self, error: PollError) -> usize {
        self.destroy_all(DownReason::Poll(error));
        0
    }
}

/// The success of this operation, if a poll found nothing else.
#[inline(always)]
fn success_of(found: PolledCompletions<'_>, id: Id) -> Option<&WorkSuccess> {
    match found.as_slice() {
        [only] if only.wr_id() == id.wr_id() => only.success(),
        _ => None,
    }
}

/// Dispatches the completions of a poll.
// Not inlined: there it has too few registers.
#[inline(never)]
fn dispatch(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, SlotBuffer>,
    shared: &mut Option<Box<Shared>>,
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
            member.return_credits(reservation, count);
        }
        left = match left.get(count..) {
            Some(left) if count > 0 => left,
            _ => {
                dispatch_one(members, slots, shared, first);
                rest
            }
        };
    }
}

/// Dispatches a completion that the fast path does not handle.
#[cold]
#[inline(never)]
fn dispatch_one(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, SlotBuffer>,
    shared: &mut Option<Box<Shared>>,
    completion: &WorkCompletion,
) {
    let wr_id = completion.wr_id();
    if let Some(shared) = shared {
        shared.has_ends |= completion.result().is_err();
        if let Some(place) = shared_place(wr_id) {
            if let Some((channel, error)) = shared.completed(place, completion)
                && let Some(member) = members.get_mut(channel.index())
                && member.id == channel
            {
                let _the_channels_end = member.failed(Queue::Receive, error);
            }
            return;
        }
    }
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
            if let Some(owned) = slots.buffer_before_failure(wr_id) {
                SlotBuffer::stopped_at(owned, Id::place_of(wr_id));
            }
            slots.fail(&mut member.slots, wr_id, failure)
        }
    };
    if let Some(reservation) = ended {
        member.settle(&mut slots.budget, reservation);
    }
}
