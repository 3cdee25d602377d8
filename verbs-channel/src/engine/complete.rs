//! Polls: completions reach their operations.

use verbs_core::codes::WcOpcode;
use verbs_core::error::PollError;
use verbs_core::{PollSlot, WorkCompletion, WorkSuccess};

use super::Engine;
use super::afterwards::Queued;
use super::flight::{Flight, Id, shared_place};
use super::shared::Shared;
use crate::engine::SlotBuffer;
use crate::error::{DownReason, Queue};

impl Engine {
    /// Polls once, and dispatches the completions. Returns how many. The results of operations on
    /// borrowed buffers are stored if `keep_results` is `true`.
    #[inline(always)]
    pub(super) fn poll_cq(&mut self, keep_results: bool) -> Result<usize, PollError> {
        let found = self.cq.poll(&mut self.poll_slots)?.len();
        self.dispatch(found, keep_results);
        Ok(found)
    }

    /// Polls one completion for an operation of this member that is in flight. If it is the operation's success, and its
    /// slot `has` what `take` takes out of it, the operation ends, and this returns both. Otherwise that completion and
    /// up to 16 others are dispatched.
    #[inline(always)]
    pub(crate) fn poll_for<T>(
        &mut self,
        at: u32,
        id: Id,
        has: impl FnOnce(&Option<SlotBuffer>) -> bool,
        take: impl FnOnce(&mut Option<SlotBuffer>) -> T,
    ) -> Option<(&WorkSuccess, T)> {
        let mut posted = self.flight.posted(at, id)?;
        let (one, _others) = self.poll_slots.split_at_mut(1);
        let found = match self.cq.poll(one) {
            Ok(found) => found,
            Err(error) => return self.poll_failed(error),
        };
        let first = found.as_slice().first()?;
        if first.success().is_none() || first.wr_id() != id.wr_id() || !has(posted.buffer()) {
            return self.dispatch_first();
        }
        // Not copied: the caller copies it to its place.
        let [first, ..] = PollSlot::completions(&self.poll_slots).as_slice() else {
            return None;
        };
        let success = first.success()?;
        let taken = take(posted.buffer());
        posted.end();
        Some((success, taken))
    }

    /// Dispatches the only completion that was found, and then all others.
    #[cold]
    #[inline(never)]
    fn dispatch_first<T>(&mut self) -> Option<T> {
        self.dispatch(1, true);
        self.drive();
        None
    }

    /// Polls the queue once, and dispatches the completions. Returns how many.
    ///
    /// If the queue cannot be polled, all channels are taken down.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn drive(&mut self) -> usize {
        self.poll_cq(true)
            .unwrap_or_else(|error| self.poll_failed(error).unwrap_or(0))
    }

    /// The same at the end of a scope: the results of its operations cannot be taken any more.
    #[inline(always)]
    pub(crate) fn drive_discarding(&mut self) -> usize {
        self.poll_cq(false)
            .unwrap_or_else(|error| self.poll_failed(error).unwrap_or(0))
    }

    #[cold]
    #[inline(never)]
    fn poll_failed<T>(&mut self, error: PollError) -> Option<T> {
        self.destroy_all(DownReason::Poll(error));
        None
    }

    /// Dispatches the completions in the first `found` poll slots.
    #[inline(never)]
    fn dispatch(&mut self, found: usize, keep_results: bool) {
        let found = self.poll_slots.get(..found).unwrap_or_default();
        let mut left = PollSlot::completions(found).as_slice();
        while let Some((first, others)) = left.split_first() {
            let rest = self.flight.succeed(left, keep_results);
            left = if rest.len() < left.len() {
                rest
            } else {
                let Self {
                    flight,
                    afterwards,
                    shared,
                    ..
                } = self;
                dispatch_one(flight, afterwards, shared, first);
                others
            };
        }
    }
}

/// Dispatches a completion that is not the success of an [operation in the usual case](Flight::succeed).
#[cold]
#[inline(never)]
fn dispatch_one(
    flight: &mut Flight,
    afterwards: &mut Queued,
    shared: &mut Option<Box<Shared>>,
    completion: &WorkCompletion,
) {
    let wr_id = completion.wr_id();
    if let Some(shared) = shared {
        shared.has_ends |= completion.result().is_err();
        if let Some(place) = shared_place(wr_id) {
            if let Some((channel, error)) = shared.completed(place, completion)
                && let Some(member) = flight.members.get_mut(channel.index())
                && member.id == channel
            {
                if member.down().is_none() {
                    shared.failed.push(channel);
                }
                let error = error.for_opcode(WcOpcode::RECV);
                let _the_channels_end = member.failed(Queue::Receive, error, afterwards);
            }
            return;
        }
    }
    // An unknown number ends nothing.
    let Some((at, queue)) = flight.owner(wr_id) else {
        return;
    };
    let error = match completion.result() {
        Ok(success) => return flight.succeed_slowly(Id::of(wr_id), &success),
        Err(error) => error,
    };
    let opcode = flight.opcode(wr_id);
    let error = opcode.map_or(error, |opcode| error.for_opcode(opcode));
    let Some(member) = flight.members.get_mut(at as usize) else {
        return;
    };
    let failure = member.failed(queue, error, afterwards);
    flight.fail(wr_id, Id::place_of(wr_id), failure);
}
