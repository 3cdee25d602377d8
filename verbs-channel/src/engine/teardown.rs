//! Ending operations in flight: the steps of the ladder that do not wait.
//!
//! ```text
//! flush: queue pair to ERR ─────────────────────► completions come back flushed
//!   │ it cannot be moved; or the flushes do not come, for which the layer above waits
//!   ▼
//! destroy the queue pair ─── destroyed ─────────► aborted
//!   │ the driver fails to, and the device was not removed: see `refused`
//!   ▼
//! owned buffers are leaked, which is logged ────► stuck
//! borrowed buffers in flight: the process is aborted
//! ```

use verbs_core::error::PollError;
use verbs_core::{Error, QueuePair};

use super::leak::{Leak, abort_with};
use super::{Afterwards, Closing, Engine, Member, SlotBuffer};
use crate::error::DownReason;

impl Engine {
    /// Moves a member's queue pair to `ERR`: what is in flight comes back flushed. If it cannot be
    /// moved, it is destroyed.
    pub(crate) fn flush_or_destroy(&mut self, at: u32, reason: DownReason) {
        if !self.flush_at(at, reason) {
            self.destroy_at(at, reason);
        }
    }

    /// Moves a queue pair to `ERR`. Returns whether it flushes what is in flight.
    pub(crate) fn flush_at(&mut self, at: u32, reason: DownReason) -> bool {
        if let Some(shared) = &mut self.shared {
            shared.has_ends = true;
        }
        let Some(member) = self.flight.members.get_mut(at as usize) else {
            return false;
        };
        if !self.process.is_current() {
            // It goes down when its queue pair is taken.
            return false;
        }
        member.go_down(reason);
        let flushes = member.qp().is_some_and(|qp| qp.to_error().is_ok());
        self.afterwards.close(&mut member.peer);
        flushes
    }

    /// Destroys a member's queue pair, and ends what is in flight on it, unless that is
    /// [deferred](Self::defer_closing).
    pub(crate) fn destroy_at(&mut self, at: u32, reason: DownReason) {
        match self.close(at, reason).and_then(|()| self.poll_all()) {
            Ok(()) => self.end_closed(at),
            Err(error) => self.destroy_all(DownReason::Poll(error)),
        }
        self.replace_overtaken();
    }

    /// Destroys a member's queue pair, and ends what is in flight on it, before this returns.
    ///
    /// Only a queue pair that was [handed out](Self::next_closing) before stays as it is.
    pub(crate) fn destroy_now(&mut self, at: u32, reason: DownReason) {
        let mut deferred = self.closings.take();
        if let Some(closings) = &mut deferred {
            let is_its = |closing: &Closing| closing.channel().at() == at;
            if let Some(queued) = closings.iter().position(is_its) {
                let qp = closings.swap_remove(queued).into_queue_pair();
                self.destroy_queue_pair(at, qp);
            }
        }
        let polled = self.close(at, reason).and_then(|()| self.poll_all());
        if polled.is_ok() {
            self.end_closed(at);
        }
        self.closings = deferred;
        self.update_deferred();
        if let Err(error) = polled {
            self.destroy_all(DownReason::Poll(error));
        }
        self.replace_overtaken();
    }

    /// Destroys the queue pairs of all channels: everything in flight has ended when this returns, unless
    /// that is [deferred](Self::defer_closing).
    ///
    /// Outcomes can still be taken. `reason` is the reason of each channel that was not down before. If it is a failure
    /// of what all channels share, it is that of the engine from now on: see [`group_failure`](Self::group_failure).
    pub fn destroy_all(&mut self, reason: DownReason) {
        if reason.is_of_group() {
            self.failure.get_or_insert(reason);
        }
        self.drain_all_shared(reason);
        self.set_drained(true);
        let all = 0..u32::try_from(self.flight.members.len()).unwrap_or(u32::MAX);
        // The outcomes that a failed poll has lost are those of channels that end here.
        for at in all.clone() {
            let _polled = self.close(at, reason);
        }
        self.set_drained(false);
        let _polled = self.poll_all();
        for at in all {
            self.end_closed(at);
        }
    }

    /// [`destroy_all`](Self::destroy_all) for good: no channel can join any more, and this is the reason.
    ///
    /// The first reason is kept: see [`group_failure`](Self::group_failure).
    #[doc(hidden)]
    pub fn fail_group(&mut self, reason: DownReason) {
        self.failure.get_or_insert(reason);
        self.destroy_all(reason);
    }

    /// Destroys a queue pair: the device touches its buffers no more. Its operations are
    /// [ended](Self::end_closed) after that. If this is [deferred](Self::defer_closing), the queue pair
    /// is queued for the layer above.
    ///
    /// # Errors
    ///
    /// Those of [`poll_all`](Self::poll_all), if receives are shared. The queue pair is destroyed all the same.
    pub(crate) fn close(&mut self, at: u32, reason: DownReason) -> Result<(), PollError> {
        let left = match self.shared {
            Some(_) if !self.is_in_child() => self.leave_shared(at, reason),
            _ => Ok(()),
        };
        // Before its queue pair: on soft-RoCE, destroying one waits for its windows.
        self.end_leases(at, false);
        let member = self.flight.members.get_mut(at as usize);
        let Some(qp) = member.and_then(|member| member.take_qp(reason)) else {
            return left;
        };
        match self.closings {
            // Borrowed buffers are given back when the caller returns.
            Some(_) if !self.has_borrowed_in_flight(at) => self.defer_destroying(at, qp),
            _ => self.destroy_queue_pair(at, qp),
        }
        left
    }

    /// Destroys a queue pair that was taken out of its member.
    fn destroy_queue_pair(&mut self, at: u32, qp: QueuePair) {
        let (destroyed, left) = qp.destroy();
        self.afterwards.push(Afterwards::QueuePair(left));
        match destroyed {
            Err(error) if self.pd.context().may_be_removed(&error) => self.refuse(at, error),
            destroyed => self.closed(at, destroyed),
        }
    }

    /// The second half: records whether a member's queue pair could be destroyed.
    pub(crate) fn closed(&mut self, at: u32, destroyed: verbs_core::Result<()>) {
        let Some(member) = self.flight.members.get_mut(at as usize) else {
            return;
        };
        // In the child of a fork, nothing has happened to the parent's queue pair, and this process's memory
        // is not the device's.
        let destroyed = match destroyed {
            Err(Error::OtherProcess { .. }) => Ok(()),
            destroyed => destroyed,
        };
        if member.is_closing() {
            self.open -= 1;
            if destroyed.is_ok() {
                self.undrained += 1;
            } else {
                self.stuck += 1;
            }
            let is_stuck = destroyed.is_err();
            member.credits.close(&mut self.flight.budget, is_stuck);
            member.closed(destroyed);
        }
        // After the queue pair: by then it has acknowledged what it received.
        self.afterwards.close(&mut member.peer);
    }

    /// Dispatches what is in the completion queue. If that fails, all channels are taken down.
    pub(crate) fn dispatch_all(&mut self) {
        if let Err(error) = self.poll_all() {
            self.destroy_all(DownReason::Poll(error));
        }
    }

    /// Dispatches what is in the completion queue.
    ///
    /// Some drivers leave completions of a queue pair that is gone: they have the true outcomes of
    /// operations, and take up room that the next queue pair needs. The next one has the room once
    /// the queue was empty, or was polled to its capacity.
    ///
    /// # Errors
    ///
    /// Those of a poll: the completions that it took are lost, those of any channel. So all channels are to be
    /// [destroyed](Self::destroy_all).
    pub(crate) fn poll_all(&mut self) -> Result<(), PollError> {
        if self.is_in_child() {
            return Ok(());
        }
        for _ in 0..=self.cq.min_capacity() {
            if self.poll_cq(true)? == 0 {
                break;
            }
        }
        self.undrained = 0;
        self.flight.budget.drained();
        Ok(())
    }

    /// Ends all operations that are in flight on a member, if its queue pair is gone.
    pub(crate) fn end_closed(&mut self, at: u32) {
        let Some(member) = self.flight.members.get_mut(at as usize) else {
            return;
        };
        if member.qp().is_some() || member.is_closing() {
            return;
        }
        if member
            .destroyed()
            .is_some_and(|destroyed| destroyed.is_err())
        {
            self.leak(at);
        }
        let Some(member) = self.member(at) else {
            return;
        };
        let outcome_without_completion = member.outcome_without_completion();
        let mut next = self.flight.first(at);
        while let Some(id) = next {
            self.fail(id, outcome_without_completion);
            next = self.flight.after(id);
        }
    }

    /// The last step: the driver fails to destroy the queue pair.
    ///
    /// Borrowed buffers in flight are a reason to abort for as long as they are, whether the error was reported or
    /// not.
    fn leak(&mut self, at: u32) {
        let has_borrowed = self.has_borrowed_in_flight(at);
        let member = self.flight.members.get_mut(at as usize);
        let error = member.and_then(Member::take_stuck_error);
        if has_borrowed {
            // Without the text of the errno, which would be allocated.
            let errno = error.as_ref().and_then(Error::errno).unwrap_or(0);
            abort_with(format_args!(
                "cannot take borrowed buffers back from the device (its queue pair cannot be destroyed: errno \
                 {errno}): aborting the process, since the device may still write to them"
            ));
        }
        let Some(error) = error else {
            return;
        };
        let mut buffers = 0;
        let mut next = self.first(at);
        while let Some(id) = next {
            next = self.flight.after(id);
            let owned = self.flight.take_buffer_in_flight(id);
            buffers += owned.map_or(0, SlotBuffer::leak);
        }
        let leak = Leak { buffers, error };
        self.afterwards.push(Afterwards::Leak(leak));
    }
}

impl Drop for Engine {
    /// Destroys the queue pairs, and then releases the buffers. Nothing waits for a peer.
    fn drop(&mut self) {
        if self.is_in_child() {
            return;
        }
        while let Some(closing) = self.next_closing() {
            // It belongs to this engine, so this does not fail.
            let _finished = self.finish_close(closing.destroy_at_once());
        }
        self.closings = None;
        self.end_refused_now();
        for at in 0..u32::try_from(self.flight.members.len()).unwrap_or(u32::MAX) {
            // A queue pair that was handed out to be destroyed, and not returned: it is unknown
            // when the device is done with its buffers.
            let object = "the queue pair";
            self.closed(at, Err(Error::InUse { object }));
        }
        self.destroy_all(DownReason::Closed);
        self.end_refused_now();
        while let Some((next, _is_slow)) = self.next_afterwards() {
            next();
        }
    }
}
