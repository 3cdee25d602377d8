//! Polls: completions reach their operations.

use std::mem;

use verbs_core::{
    CompletionQueue, PollError, PollSlot, PolledCompletions, WcOpcode, WorkCompletion, WorkSuccess,
};

use super::Engine;
use super::held::{Held, MAX_POLLED, success_of};
use super::member::Member;
use super::shared::Shared;
use super::slots::{Credits, Id, Reservation, Slots, shared_place};
use crate::channel_id::ChannelId;
use crate::engine::SlotBuffer;
use crate::error::{DownReason, Queue};
use crate::request::opcode_in;

impl Engine {
    /// Polls once, and dispatches the completions. Returns how many. The results of operations on
    /// borrowed buffers are stored if `keep_results` is `true`.
    ///
    /// Those that are [held](super::held) are dispatched first, and count too.
    #[inline(always)]
    pub(super) fn poll_cq(&mut self, keep_results: bool) -> Result<usize, PollError> {
        let settled = self.settle(keep_results);
        let found = poll(&self.cq, &mut self.poll_slots)?;
        dispatch(
            &mut self.members,
            &mut self.slots,
            &mut self.shared,
            found,
            keep_results,
        );
        Ok(settled + found.len())
    }

    /// Dispatches the completions that are held. Returns how many, those that were taken included.
    #[inline(always)]
    pub(crate) fn settle(&mut self, keep_results: bool) -> usize {
        if !self.held.is_open() {
            return 0;
        }
        settle(
            &mut self.members,
            &mut self.slots,
            &mut self.shared,
            &mut self.held,
            &self.poll_slots,
            keep_results,
        )
    }

    /// The credits of one of a member's queues that are free once what is held is dispatched: a post that
    /// needs them does that.
    pub(super) fn held_credits(&self, at: u32, queue: Queue) -> u32 {
        if !self.held.is_open() {
            return 0;
        }
        let (_, taken) = self.held.taken(&self.poll_slots).unwrap_or_default();
        let held = self.held.rest(&self.poll_slots);
        let all = taken.iter().chain(held.as_slice());
        all.filter_map(|completion| self.slots.reservation_of(completion.wr_id()))
            .filter(|reservation| reservation.member == at && reservation.queue == queue)
            .map(|reservation| u32::from(reservation.credits))
            .sum()
    }

    /// Polls once for an operation of a scope that is in flight.
    ///
    /// The completions are held if the first is the success of this operation, and dispatched if
    /// not. A handle that finds its success at the front later takes it without a look at its slot.
    /// So none are held on a channel that is down: there, operations have ended without a
    /// completion, and requests of batches have failed. None are held on a channel with common
    /// slots either, which are not freed in a row.
    #[inline(always)]
    pub(crate) fn poll_for_scope(&mut self, at: u32, id: Id) -> PolledForScope {
        let found = match poll(&self.cq, &mut self.poll_slots) {
            Ok(found) => found,
            Err(error) => {
                self.poll_failed(error);
                return PolledForScope::Nothing;
            }
        };
        let [first, ..] = found.as_slice() else {
            return PolledForScope::Nothing;
        };
        let member = self.members.get(at as usize);
        let is_held = success_of(first, id).is_some()
            && member.is_some_and(Member::is_up_in_its_share)
            && self.shared.is_none();
        self.held = Held::all(found.len(), Some(at));
        if let Some(after) = self.poll_slots.get_mut(self.held.end()) {
            *after = PollSlot::new();
        }
        if is_held {
            return PolledForScope::Held;
        }
        PolledForScope::Others(self.settle(true))
    }

    /// Whether the success of this operation is the first that is held.
    #[inline(always)]
    pub(crate) fn holds(&self, id: Id) -> bool {
        // Behind the last there is a completion without an id.
        let front = self.held.front(&self.poll_slots);
        front.is_some_and(|front| success_of(front, id).is_some())
    }

    /// Takes the first success that is held, for a handle of a scope. Its slot is freed when the others
    /// are dispatched.
    ///
    /// The operation is in flight, as its outcome was not taken: see
    /// [`poll_for_scope`](Self::poll_for_scope).
    #[inline(always)]
    pub(crate) fn take_held(&mut self) -> Option<&WorkSuccess> {
        let success = self.held.front(&self.poll_slots)?.success()?;
        self.held.pop();
        Some(success)
    }

    /// Polls one completion for an operation on borrowed buffers that was just posted. If it is its success,
    /// its slot is freed, and this returns `true`. Otherwise the completion is dispatched.
    #[inline(always)]
    pub(crate) fn poll_for(&mut self, reservation: Reservation, id: Id) -> bool {
        if !self.poll_finds_first(id) {
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

    /// Polls one completion. If it is the success of this operation, it becomes the
    /// [last success](Self::last_success), and this returns `true`. Otherwise it is dispatched.
    ///
    /// It is polled to the first slot, so those that are [held](super::held) stay: the first of them was
    /// taken.
    #[inline(always)]
    fn poll_finds_first(&mut self, id: Id) -> bool {
        let found = match poll_one(&self.cq, &mut self.poll_slots) {
            Ok(found) => found,
            Err(error) => {
                self.poll_failed(error);
                return false;
            }
        };
        let [first] = found.as_slice() else {
            return false;
        };
        if success_of(first, id).is_some() {
            return true;
        }
        self.dispatch_first();
        false
    }

    /// Dispatches the only completion that was found, after those that are held.
    #[cold]
    #[inline(never)]
    fn dispatch_first(&mut self) {
        self.settle(true);
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
        let is_held;
        let front = if self.held.is_empty() {
            let found = match poll(&self.cq, &mut self.poll_slots) {
                Ok(found) => found,
                Err(error) => {
                    self.poll_failed(error);
                    return None;
                }
            };
            let [first, rest @ ..] = found.as_slice() else {
                return None;
            };
            is_held = !rest.is_empty();
            if is_held {
                self.held = Held::all(found.len(), None);
            }
            first
        } else {
            is_held = true;
            self.held.front(&self.poll_slots)?
        };
        if let Some(success) = success_of(front, id)
            && let Some(owned) = take(slot.buffer())
        {
            if is_held {
                self.held.pop();
            }
            let reservation = slot.end(&mut member.slots);
            member.return_credits(reservation, 1);
            return Some(then(owned, success));
        }
        if is_held {
            self.settle(true);
        } else {
            self.dispatch_first();
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

/// Result of a poll for an operation of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolledForScope {
    /// Nothing.
    Nothing,
    /// Its success, which is [taken](Engine::take_held) next.
    Held,
    /// How many completions were dispatched, its own perhaps among them.
    Others(usize),
}

/// Polls into all slots but the last, which is empty.
#[inline(always)]
fn poll<'s>(
    cq: &CompletionQueue,
    slots: &'s mut [PollSlot; MAX_POLLED + 1],
) -> Result<PolledCompletions<'s>, PollError> {
    let (slots, _empty) = slots.split_at_mut(MAX_POLLED);
    cq.poll(slots)
}

/// Polls one completion into the first slot.
#[inline(always)]
fn poll_one<'s>(
    cq: &CompletionQueue,
    slots: &'s mut [PollSlot; MAX_POLLED + 1],
) -> Result<PolledCompletions<'s>, PollError> {
    let (first, _rest) = slots.split_at_mut(1);
    cq.poll(first)
}

/// Dispatches the completions that are held, and frees the slots of those that were taken. Returns how
/// many they are.
#[inline(never)]
pub(super) fn settle(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, SlotBuffer>,
    shared: &mut Option<Box<Shared>>,
    held: &mut Held,
    polled: &[PollSlot],
    keep_results: bool,
) -> usize {
    let held = mem::replace(held, Held::NONE);
    if let Some((at, taken)) = held.taken(polled)
        && let Some(member) = members.get_mut(at as usize)
    {
        let (mut left, wr_id) = (taken.iter(), WorkCompletion::wr_id);
        // One run, but for batches.
        while !left.as_slice().is_empty() {
            let (reservation, count) = slots.free_taken(&mut member.slots, &mut left, wr_id);
            member.return_credits(reservation, count);
        }
    }
    if !held.is_empty() {
        let rest = held.rest(polled);
        dispatch(members, slots, shared, rest, keep_results);
    }
    held.count()
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
                if member.down().is_none() {
                    shared.failed.push(channel);
                }
                let error = error.for_opcode(WcOpcode::RECV);
                let _the_channels_end = member.failed(Queue::Receive, error, &mut slots.afterwards);
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
            let error = match queue {
                Queue::Receive => error.for_opcode(WcOpcode::RECV),
                Queue::Send => {
                    let sent = slots.sent(wr_id).and_then(|(flags, owned)| {
                        let of_several = owned.and_then(|owned| owned.flags(Id::place_of(wr_id)));
                        opcode_in(of_several.unwrap_or(flags))
                    });
                    sent.map_or(error, |opcode| error.for_opcode(opcode))
                }
            };
            let failure = member.failed(queue, error, &mut slots.afterwards);
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
