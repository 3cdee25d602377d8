//! Ending operations in flight: the steps of the ladder that do not wait.
//!
//! ```text
//! flush: queue pair to ERR ─────────────────────► completions come back flushed
//!   │ it cannot be moved; or the flushes do not come, for which the layer above waits
//!   ▼
//! destroy the queue pair ─── destroyed ─────────► aborted
//!   │ the driver fails to, and the device was not removed: see `check_refused`
//!   ▼
//! owned buffers are leaked, which is logged ────► stuck
//! borrowed buffers in flight: the process is aborted
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::error::PollError;
use verbs_core::{Context, Error, QueuePair};

use super::leak::{Leak, abort_with};
use super::{Afterwards, Closed, Closing, Engine, Member};
use crate::buffer::Leaked;
use crate::channel_id::ChannelId;
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
        let Some(member) = self.flight.member_mut(at) else {
            return false;
        };
        if !self.process.is_current() {
            // It goes down when its queue pair is taken.
            return false;
        }
        member.go_down(reason);
        let flushes = member.qp().is_some_and(|qp| qp.to_error().is_ok());
        self.afterwards.close(member.peer.close());
        flushes
    }

    /// Destroys a member's queue pair, and ends what is in flight on it, unless that is
    /// [deferred](Self::defer_closing).
    pub(crate) fn destroy_at(&mut self, at: u32, reason: DownReason) {
        let closed = self.close(at, reason, false);
        self.finish_destroying(at, closed);
    }

    /// Ends what was in flight on a member that was closed.
    fn finish_destroying(&mut self, at: u32, closed: Result<(), PollError>) {
        match closed.and_then(|()| self.poll_all()) {
            Ok(()) => self.end_closed(at),
            Err(error) => self.destroy_all(DownReason::Poll(error)),
        }
        self.replace_overtaken();
    }

    /// Destroys a member's queue pair, and ends what is in flight on it, before this returns.
    ///
    /// Only a queue pair that was [handed out](Self::next_closing) before stays as it is.
    pub(crate) fn destroy_now(&mut self, at: u32, reason: DownReason) {
        let closed = self.close(at, reason, false);
        let is_its = |closing: &Closing| closing.channel().at() == at;
        if let Some(queued) = self.closings.iter().position(is_its) {
            let qp = self.closings.swap_remove(queued).qp;
            self.destroy_queue_pair(at, qp);
        }
        self.finish_destroying(at, closed);
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
        // The outcomes that a failed poll has lost are those of channels that end here.
        for at in self.places() {
            let _polled = self.close(at, reason, true);
        }
        let _polled = self.poll_all();
        self.end_all_closed();
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
    /// is queued for the layer above. Receives that are shared are waited for, unless they were
    /// [drained](Self::drain_all_shared).
    ///
    /// # Errors
    ///
    /// Those of [`poll_all`](Self::poll_all), if receives are shared. The queue pair is destroyed all the same.
    pub(super) fn close(
        &mut self,
        at: u32,
        reason: DownReason,
        is_drained: bool,
    ) -> Result<(), PollError> {
        let left = match self.shared {
            Some(_) if !self.is_in_child() => self.leave_shared(at, reason, is_drained),
            _ => Ok(()),
        };
        // Before its queue pair: on soft-RoCE, destroying one waits for its windows.
        self.end_leases(at, false);
        let member = self.flight.member_mut(at);
        let Some(qp) = member.and_then(|member| member.take_qp(reason)) else {
            return left;
        };
        // Borrowed buffers are given back when the caller returns, and a handle that is polled takes no queue pair.
        if self.afterwards.is_deferred && !self.flight.has_borrowed_in_flight(at) {
            self.defer_destroying(at, qp);
        } else {
            self.destroy_queue_pair(at, qp);
        }
        left
    }

    /// Destroys a queue pair that was taken out of its member.
    fn destroy_queue_pair(&mut self, at: u32, qp: QueuePair) {
        let (destroyed, left) = qp.destroy();
        self.afterwards.push(Afterwards::QueuePair(left));
        match destroyed {
            Err(error) if self.pd.context().may_be_removed(&error) => {
                self.refused.push((at, error));
            }
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
        // After the queue pair: by then it has acknowledged what it received.
        self.afterwards.close(member.peer.close());
        if member.is_closing() {
            self.open -= 1;
            if destroyed.is_ok() {
                self.undrained += 1;
            } else {
                self.stuck += 1;
            }
            let is_stuck = destroyed.is_err();
            let channel = member.id;
            member.credits.close(&mut self.flight.budget, is_stuck);
            member.closed(destroyed);
            self.queue_pair_ended(channel, !is_stuck);
        }
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

    /// Ends all operations that are in flight on members whose queue pairs are gone.
    pub(super) fn end_all_closed(&mut self) {
        for at in self.places() {
            self.end_closed(at);
        }
    }

    /// Ends all operations that are in flight on a member, if its queue pair is gone.
    pub(crate) fn end_closed(&mut self, at: u32) {
        let Some(member) = self.flight.member_mut(at) else {
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
            // It is unknown how far it came.
            let place = Some(0);
            self.flight
                .fail(id.wr_id(), place, outcome_without_completion);
            next = self.flight.after(id);
        }
    }

    /// The last step: the driver fails to destroy the queue pair.
    ///
    /// Borrowed buffers in flight are a reason to abort for as long as they are, whether the error was reported or
    /// not.
    fn leak(&mut self, at: u32) {
        let has_borrowed = self.flight.has_borrowed_in_flight(at);
        let member = self.flight.member_mut(at);
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
        let (mut buffers, mut leaked) = (0, Leaked::default());
        let mut next = self.flight.first(at);
        while let Some(id) = next {
            next = self.flight.after(id);
            let owned = self.flight.take_buffer_in_flight(id);
            buffers += owned.map_or(0, |owned| owned.leak(&mut leaked));
        }
        let leak = Leak { buffers, error };
        self.afterwards.push(Afterwards::Leak(leak));
        self.afterwards.wake(leaked);
    }
}

/// Closing channels in two steps, for layers that keep the engine under a lock.
#[doc(hidden)]
impl Engine {
    /// From now on, queue pairs are not destroyed by this engine, but handed out by
    /// [`next_closing`](Self::next_closing): for layers that keep the engine under a lock.
    ///
    /// Then [`destroy`](Self::destroy), [`destroy_all`](Self::destroy_all), [`remove`](Self::remove), and
    /// all that takes channels down because something has failed, return before the operations in
    /// flight have ended. They end in [`finish_close`](Self::finish_close).
    ///
    /// Nothing is deferred where memory is handed back at once: after a post of unknown outcome,
    /// with borrowed buffers in flight, and when the engine is dropped. Nothing is deferred either
    /// where a [`Channel`](crate::Channel) or a [`ChannelGroup`](crate::ChannelGroup) waits: in a
    /// transfer, an abort, a reset or a close, and in any other wait. Such a wait destroys queued
    /// queue pairs, but waits for none that was handed out.
    pub const fn defer_closing(&mut self) {
        self.afterwards.is_deferred = true;
    }

    /// Queues the queue pair of a member for [`next_closing`](Self::next_closing).
    pub(super) fn defer_destroying(&mut self, at: u32, qp: QueuePair) {
        let channel = self.id_at(at);
        let shared = self.shared.as_deref();
        let shared = shared.map(|shared| Arc::clone(&shared.queue));
        // One bound for all that end together.
        let since = self.closings_refused.upgrade().unwrap_or_default();
        self.closings_refused = Arc::downgrade(&since);
        self.closings.push(Closing {
            channel,
            qp,
            drain_timeout: self.limits.drain_timeout,
            refused_since: since,
            shared,
        });
    }

    /// The next queue pair to be [destroyed](Closing::destroy) without the lock, and then
    /// [returned](Self::finish_close), if that is [deferred](Self::defer_closing).
    #[must_use = "operations in flight end when this has been destroyed and returned to the engine"]
    pub fn next_closing(&mut self) -> Option<Closing> {
        self.closings.pop()
    }

    /// Ends the operations that were in flight on a channel, whose queue pair has been destroyed.
    ///
    /// # Errors
    ///
    /// `closed` itself, if the channel belongs to another engine.
    pub fn finish_close(&mut self, closed: Closed) -> Result<(), Closed> {
        if closed.channel == ChannelId::NONE {
            // It has not joined: nothing but its number is left.
            if let Err(error) = closed.destroyed {
                let leak = Leak { buffers: 0, error };
                self.afterwards.push(Afterwards::Leak(leak));
            }
            self.forget_dropped_members();
            return Ok(());
        }
        let Some(at) = self.place(closed.channel) else {
            return Err(closed);
        };
        self.closed(at, closed.destroyed);
        self.dispatch_all();
        self.end_closed(at);
        self.replace_overtaken();
        Ok(())
    }

    /// Whether the queue pair of some channel is being destroyed elsewhere. That channel counts as one
    /// of this engine until it is [returned](Self::finish_close).
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.flight.members.iter().any(Member::is_closing)
    }

    /// Whether the driver has failed to destroy the queue pair of a channel, also of one that was removed: the
    /// device may still access its memory.
    #[must_use]
    pub const fn has_stuck(&self) -> bool {
        self.stuck > 0
    }

    /// Whether [`next_closing`](Self::next_closing) or [`next_afterwards`](Self::next_afterwards) has something to do.
    #[must_use]
    #[inline]
    pub const fn has_deferred(&self) -> bool {
        !self.closings.is_empty() || !self.afterwards.is_empty()
    }
}

/// Queue pairs that a device which may be removed has refused to destroy.
///
/// The kernel refuses calls before it destroys the queue pairs of a device that is removed. So an operation in flight
/// has not ended with the refusal: it is aborted when the kernel has [removed](verbs_core::Context::is_removed) the
/// device, and stuck if that does not happen within the drain timeout. Until then its member is closing. Whoever waits
/// looks between two borrows of the engine, since that reads a directory.
impl Engine {
    /// The device, if it has refused to destroy a queue pair, and what is in flight there has not ended.
    #[inline]
    pub(crate) fn refusing_device(&self) -> Option<&Context> {
        (!self.refused.is_empty()).then(|| self.pd.context())
    }

    /// Ends what is in flight on such queue pairs, if the device is removed, or the drain timeout has passed since
    /// the first call.
    pub(crate) fn check_refused(&mut self, is_removed: bool, now: Instant) {
        if self.refused.is_empty() {
            return;
        }
        let since = *self.refused_since.get_or_insert(now);
        if is_removed || now.saturating_duration_since(since) >= self.limits.drain_timeout {
            self.end_refused(is_removed);
        }
    }

    /// The same without a wait.
    pub(super) fn end_refused_now(&mut self) {
        if let Some(device) = self.refusing_device() {
            let is_removed = device.is_removed();
            self.end_refused(is_removed);
        }
    }

    /// Ends what is in flight on such queue pairs: it is aborted, or stuck.
    fn end_refused(&mut self, is_removed: bool) {
        self.refused_since = None;
        while let Some((at, error)) = self.refused.pop() {
            let destroyed = if is_removed { Ok(()) } else { Err(error) };
            self.closed(at, destroyed);
        }
        self.dispatch_all();
        self.end_all_closed();
        self.replace_overtaken();
    }
}

impl Drop for Engine {
    /// Destroys the queue pairs, and then releases the buffers. Nothing waits for a peer.
    fn drop(&mut self) {
        if self.is_in_child() {
            return;
        }
        while let Some(mut closing) = self.next_closing() {
            closing.drain_timeout = Duration::ZERO;
            // It belongs to this engine, so this does not fail.
            let _finished = self.finish_close(closing.destroy());
        }
        self.afterwards.is_deferred = false;
        self.end_refused_now();
        for at in self.places() {
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
