//! The driver: which operations wait, and which tasks are woken.
//!
//! No task has the role of the driver. So it does not matter which tasks sleep, are leaked or are
//! not polled. Each poll of an operation that has not completed drives, and so does the
//! notifier's waker, by [`Driver::on_event`]. Both do the same:
//!
//! ```text
//! poll the queue until it is empty ──► for each completed operation: keep the
//!   │                                  outcome in its slot, defer its waker;
//!   │                                  post from the channel's backlogs, and
//!   │                                  from the line
//!   ▼ empty, some task waits, not armed
//! arm, and poll once more
//!   ▼ empty again: the next completion raises an event
//! unlock, and wake
//! ```
//!
//! If the completion of an operation is there when it is first polled, the poll takes it. While no
//! task waits, there is nothing else to do.
//!
//! *Invariant:* while the lock is free and some task waits, the queue is armed or an event is on its way, and all
//! polled completions have been dispatched, or will be by the thread that unlocks: see
//! [`deferred`](crate::task::deferred). Whoever takes the
//! outcome of such an operation before does for it what dispatching does.
//!
//! *Invariant:* under the lock, no waker is cloned, woken or dropped, no outcome is dropped,
//! nothing is destroyed or logged, and no notifier is called.

use std::hint;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::engine::{ConnectedMember, Engine};
use verbs_channel::error::Rejected;
use verbs_channel::verbs_core::__private::Process;
use verbs_channel::{ChannelId, Message, OwnedRequest, RejectReason, Ticket};

use crate::events::Subscription;
use crate::task::deferred::{Lock, Locked};
use crate::task::sync::MutexGuard;
use crate::task::wake;
use state::Wait;

mod backlog;
mod channel_wait;
mod queueing;
mod request;
mod state;

pub(crate) use backlog::Awaited;
pub(crate) use request::{Outcome, Request, Submission};
pub(crate) use state::{DriverState, Owner};

/// An engine, and the tasks that wait for it.
pub(crate) struct Driver {
    process: Process,
    state: Lock<DriverState>,
}

impl Driver {
    pub(crate) fn new(engine: Engine, subscription: Subscription, owner: Weak<dyn Owner>) -> Self {
        Self {
            process: Process::current(),
            state: Lock::new(DriverState::new(engine, subscription, owner)),
        }
    }

    /// The lock of the state, whose guard wakes tasks when it is dropped, unless that is of [`lock_only`](Lock::lock_only).
    /// Changes that free capacity are to be made [`with`](Self::with) the engine instead.
    pub(crate) fn state(&self) -> &Lock<DriverState> {
        &self.state
    }

    /// Whether this is the child of a fork. There, what is dropped must not use the engine, which is the parent's,
    /// nor its lock, which a thread may have that is not there.
    pub(crate) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }

    pub(crate) fn set_busy_poll(&self, busy_poll: Duration) {
        self.state.lock().busy_poll = busy_poll;
    }

    /// Posts a request, queues it if the backlog is shorter than `backlog`, or rejects it. Returns
    /// where to find the operation.
    #[inline(always)]
    pub(crate) fn start(
        &self,
        channel: ChannelId,
        mut request: OwnedRequest,
        backlog: usize,
    ) -> Submission {
        let mut state = self.state.lock_only();
        let reason =
            if state.queued_or_waiting > 0 && state.has_backlog(channel.index(), request.queue()) {
                None
            } else {
                match state.engine.start(channel, &mut request) {
                    // Nothing becomes due by that.
                    Ok(ticket) => return Submission::Posted(ticket),
                    Err(reason) => Some(reason),
                }
            };
        self.start_slowly(state, channel, Request::One(request), (backlog, reason))
    }

    /// The same for any kind of request.
    pub(crate) fn start_any(
        &self,
        channel: ChannelId,
        request: Request,
        backlog: usize,
    ) -> Submission {
        self.start_slowly(self.state.lock_only(), channel, request, (backlog, None))
    }

    #[cold]
    #[inline(never)]
    fn start_slowly<'a>(
        &'a self,
        mut state: MutexGuard<'a, DriverState>,
        channel: ChannelId,
        request: Request,
        (backlog, reason): (usize, Option<RejectReason>),
    ) -> Submission {
        let submission = state.start(channel, request, backlog, reason);
        self.state.unlock(state);
        submission
    }

    /// The outcome of an operation. Its task is woken when it has completed.
    #[inline(never)]
    pub(crate) fn wait(&self, submission: Submission, cx: &mut Context<'_>) -> Poll<Outcome> {
        // It may have been dispatched before: then no waker is needed.
        let dispatched = self.state.lock().outcome(submission);
        if let Some(outcome) = dispatched {
            return Poll::Ready(outcome);
        }
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        let mut outcome = state.outcome(submission);
        if outcome.is_none() && !state.busy_poll.is_zero() {
            (state, outcome) = self.poll_busily(state, submission);
        }
        if outcome.is_none() {
            state.drive(Some(submission));
            outcome = state.outcome(submission);
        }
        let replaced = match outcome {
            None => state.set_waker(submission, waker),
            Some(_) => Some(Wait::Task(waker)),
        };
        drop(state);
        wake::drop_guarded(replaced);
        outcome.map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes the outcome of an operation if its completion is there. Its task is not woken later.
    pub(crate) fn poll_outcome(&self, submission: &Submission) -> Option<Outcome> {
        let mut state = self.state.lock();
        let mut outcome = state.outcome(*submission);
        if outcome.is_none() {
            state.dispatch_until(Some(*submission));
            outcome = state.outcome(*submission);
        }
        drop(state);
        outcome
    }

    /// Whether an operation has been posted, and has not completed by now.
    pub(crate) fn is_in_flight(&self, submission: &Submission) -> bool {
        let mut state = self.state.lock();
        state.dispatch_until(Some(*submission));
        let posted = state.posted(*submission);
        posted.is_some_and(|ticket| state.engine.is_in_flight(ticket))
    }

    /// Rejects an operation that is in its backlog, as if that had been full. Others go on.
    pub(crate) fn withdraw(&self, submission: &Submission) {
        self.state.lock().withdraw(*submission);
    }

    /// Abandons an operation: no task will take its outcome.
    ///
    /// A queued operation is removed from the backlog. One in flight stays there, with its buffers.
    pub(crate) fn abandon(&self, submission: Submission) {
        if self.is_in_child() {
            return;
        }
        self.state.lock().abandon(submission);
    }

    /// The queue had an event, and is not armed any more.
    pub(crate) fn on_event(&self) {
        let mut state = self.state.lock();
        state.armed = false;
        state.drive(None);
    }

    /// Changes the engine in a way that may free capacity of one channel, or of all.
    pub(crate) fn with<T>(
        &self,
        channel: Option<ChannelId>,
        change: impl FnOnce(&mut Engine) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let value = change(&mut state.engine);
        match channel {
            Some(channel) => state.on_capacity_freed(channel.index()),
            None => (0..state.channels()).for_each(|index| state.on_capacity_freed(index)),
        }
        state.drive(None);
        value
    }

    /// Uses the engine without freeing capacity or completing operations.
    pub(crate) fn with_engine<T>(&self, f: impl FnOnce(&mut Engine) -> T) -> T {
        f(&mut self.state.lock().engine)
    }

    /// A wait for this state of a channel. Any number of tasks can wait.
    pub(crate) const fn wait_for(&self, channel: ChannelId, awaited: Awaited) -> ChannelWait<'_> {
        ChannelWait {
            driver: self,
            channel,
            awaited,
            key: None,
        }
    }

    /// Adds a channel. With a rejection, returns whether there will be a place.
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    pub(crate) fn join(
        &self,
        member: ConnectedMember,
    ) -> Result<Joined, (Rejected<ConnectedMember, verbs_channel::Error>, bool)> {
        let mut state = self.state.lock();
        let capacity = state.subscription.cq().min_capacity();
        let joined = match state.engine.join(member) {
            Err(rejected) => {
                let is_full = matches!(rejected.error(), verbs_channel::Error::GroupFull(_));
                Err((rejected, is_full && state.engine.is_closing()))
            }
            Ok(at) => {
                let (now, places) = (Instant::now(), state.joined.len().max(at.index() + 1));
                state.joined.resize(places, now);
                state.joined[at.index()] = now;
                // For the tasks that wait for operations in its slots.
                state.reserve_waits();
                Ok(Joined {
                    at,
                    receives: state.engine.prepared_receives(at),
                })
            }
        };
        // A device may forget that a queue was armed which it makes larger.
        state.armed &= state.subscription.cq().min_capacity() == capacity;
        // Arms it again, and ends what waits for a channel that is down already.
        state.drive(None);
        joined
    }

    /// Polls for the busy-poll time before the queue is armed. Other threads can take the lock in
    /// between.
    #[cold]
    fn poll_busily<'a>(
        &'a self,
        mut state: Locked<'a, DriverState>,
        submission: Submission,
    ) -> (Locked<'a, DriverState>, Option<Outcome>) {
        let start = Instant::now();
        loop {
            state.dispatch_until(Some(submission));
            let outcome = state.outcome(submission);
            if outcome.is_some() || start.elapsed() >= state.busy_poll {
                return (state, outcome);
            }
            drop(state);
            hint::spin_loop();
            state = self.state.lock();
        }
    }

    /// Unlocks after an outcome was taken from a slot.
    #[inline(always)]
    pub(crate) fn unlock_after_take(&self, state: MutexGuard<'_, DriverState>, ticket: Ticket) {
        // If no task waited, nothing else is due.
        let has_deferred = state.engine.has_deferred();
        if has_deferred || state.waiters > 0 && state.is_due_after_take(ticket) {
            self.finish_take(state, ticket);
        }
    }

    // Cold, though it is not when tasks wait: so what was taken stays in registers where none does.
    #[cold]
    #[inline(never)]
    fn finish_take<'a>(&'a self, mut state: MutexGuard<'a, DriverState>, ticket: Ticket) {
        let wait = state.stop_waiting(ticket);
        state.on_capacity_freed(ticket.channel().index());
        self.state.unlock(state);
        wake::drop_guarded(wait);
    }

    /// Waits for the oldest message of receives that channels share: one task at a time. `None` if there are no
    /// more. While it is pending, also returns whether receives are missing for lack of blocks.
    pub(crate) fn poll_message(&self, cx: &Context<'_>) -> (Poll<Option<Message>>, bool) {
        self.state.poll(cx, |state, waker| {
            // Before driving, which arms the queue only if a task waits.
            let replaced = state.wait_for_message(waker);
            let mut message = state.next_message();
            if message.is_none() {
                state.drive(None);
                if state.engine.has_message() {
                    message = state.next_message();
                }
            }
            let needs_blocks = state.engine.needs_blocks();
            if message.is_none() && !state.engine.has_no_more_messages() {
                return ((Poll::Pending, needs_blocks), [replaced, None]);
            }
            let own = state.stop_messages();
            ((Poll::Ready(message), needs_blocks), [replaced, own])
        })
    }

    /// No task waits for messages any more.
    pub(crate) fn stop_messages(&self) {
        if !self.is_in_child() {
            self.state.end_wait(DriverState::stop_messages);
        }
    }
}

/// A channel that has joined.
pub(crate) struct Joined {
    pub(crate) at: ChannelId,
    /// Its prepared receives.
    pub(crate) receives: Vec<Ticket>,
}

/// A wait for a channel, which ends when it is dropped.
pub(crate) struct ChannelWait<'a> {
    driver: &'a Driver,
    channel: ChannelId,
    awaited: Awaited,
    // Its key among the waiters of the channel, once it has slept.
    key: Option<usize>,
}

impl ChannelWait<'_> {
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Self {
            driver,
            channel,
            awaited,
            ref mut key,
        } = *self;
        driver.state().poll(cx, |state, waker| {
            let replaced = if state.is_in(channel, awaited) {
                Some(waker)
            } else {
                // Before driving, which arms the queue only if a task waits.
                let replaced = state.add_channel_waiter(key, (waker, channel, awaited));
                state.drive(None);
                replaced
            };
            if !state.is_in(channel, awaited) {
                return (Poll::Pending, [replaced, None]);
            }
            let own = key.take();
            let own = own.and_then(|key| state.remove_channel_waiter(channel, key));
            (Poll::Ready(()), [replaced, own])
        })
    }
}

impl Drop for ChannelWait<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && !self.driver.is_in_child()
        {
            let state = self.driver.state();
            state.end_wait(|state| state.remove_channel_waiter(self.channel, key));
        }
    }
}
