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
//! polled completions have been dispatched, or will be: by a thread that [holds wake-ups back](wake::hold), or
//! that has used the ring [otherwise](Driver::with_ring), when it [settles](Driver::settle). Whoever takes the
//! outcome of such an operation before does for it what dispatching does.
//!
//! *Invariant:* a task that is woken may drive in place, and find more tasks to wake. It leaves
//! them to the thread that has woken it, and what is to be destroyed to the thread that is handing such on. So
//! nothing recurses, and a waker that does long work delays others: see
//! [`wake_after_unlock`](deferred::wake_after_unlock).
//!
//! *Invariant:* under the lock, no waker is cloned, woken or dropped, no outcome is dropped,
//! nothing is destroyed or logged, and no notifier is called.

use std::hint;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::Queue;
use verbs_channel::verbs_core::Process;

use crate::task::deferred::{self, Defers as _};
use crate::task::sync::{Mutex, MutexGuard};
use crate::task::wake;
use state::{DriverState, Wait};

mod backlog;
mod drained;
mod fair_queue;
mod messages;
mod queueing;
mod source;
mod state;

pub(crate) use source::{End, Request, Ring, SharedReceives, Started, Submission};

/// A ring, and the tasks that wait for it.
pub(crate) struct Driver<R: Ring> {
    process: Process,
    state: Mutex<DriverState<R>>,
}

impl<R: Ring> Driver<R> {
    pub(crate) fn new(ring: R) -> Self {
        Self {
            process: Process::current(),
            state: Mutex::new(DriverState::new(ring)),
        }
    }

    /// Whether this is the child of a fork. There, what is dropped must not use the ring, which is the parent's,
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
        channel: R::Channel,
        request: impl Request<R>,
        backlog: usize,
    ) -> Submission<R::Ticket> {
        let mut state = self.state.lock();
        let submission = state.start(channel, request, backlog);
        if let Submission::Queued(_) = submission {
            self.unlock(state);
        }
        submission
    }

    /// Takes the output of an operation if it has completed. Polls once at most.
    #[inline(always)]
    pub(crate) fn take<E: End<R>>(&self, submission: &Submission<R::Ticket>) -> Option<E::Taken> {
        let Submission::Posted(ticket) = *submission else {
            return None;
        };
        let mut state = self.state.lock();
        let taken = E::poll(&mut state.ring, ticket);
        if taken.is_some() {
            self.unlock_after_take(state, ticket);
        } else {
            self.unlock(state);
        }
        taken
    }

    /// The outcome of an operation that [`take`](Self::take) did not return. Its task is woken when
    /// it has completed.
    #[inline(never)]
    pub(crate) fn wait(
        &self,
        submission: &Submission<R::Ticket>,
        cx: &mut Context<'_>,
    ) -> Poll<R::Outcome> {
        let (submission, waker) = (*submission, cx.waker().clone());
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
        self.unlock(state);
        wake::drop_guarded(replaced);
        outcome.map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes the outcome of an operation if its completion is there. Its task is not woken later.
    pub(crate) fn poll_outcome(&self, submission: &Submission<R::Ticket>) -> Option<R::Outcome> {
        let mut state = self.state.lock();
        let mut outcome = state.outcome(*submission);
        if outcome.is_none() {
            state.dispatch_until(Some(*submission));
            outcome = state.outcome(*submission);
        }
        self.unlock(state);
        outcome
    }

    /// Whether an operation has been posted.
    pub(crate) fn is_posted(&self, submission: &Submission<R::Ticket>) -> bool {
        self.state.lock().posted(*submission).is_some()
    }

    /// Rejects an operation that is in its backlog, as if that had been full. Others go on.
    pub(crate) fn withdraw(&self, submission: &Submission<R::Ticket>) {
        let mut state = self.state.lock();
        state.withdraw(*submission);
        self.unlock(state);
    }

    /// Abandons an operation: no task will take its outcome.
    ///
    /// A queued operation is removed from the backlog. One in flight stays there, with its buffers.
    pub(crate) fn abandon(&self, submission: Submission<R::Ticket>) {
        if self.is_in_child() {
            return;
        }
        let mut state = self.state.lock();
        state.abandon(submission);
        self.unlock(state);
    }

    /// The ring's queue had an event, and is not armed any more.
    pub(crate) fn on_event(&self) {
        let mut state = self.state.lock();
        state.armed = false;
        state.drive(None);
        self.unlock(state);
    }

    /// Changes the ring in a way that may free capacity of one channel, or of all.
    pub(crate) fn with<T>(
        &self,
        channel: Option<R::Channel>,
        change: impl FnOnce(&mut R) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let value = change(&mut state.ring);
        match channel {
            Some(channel) => state.on_capacity_freed(R::index(channel)),
            None => (0..state.channels()).for_each(|index| state.on_capacity_freed(index)),
        }
        state.drive(None);
        self.unlock(state);
        value
    }

    /// Uses the ring without freeing capacity or completing operations. If that takes a channel down,
    /// [`settle`](Self::settle) is to follow.
    pub(crate) fn with_ring<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        f(&mut self.state.lock().ring)
    }

    /// Waits until the backlog of a channel's queue is shorter than `backlog`.
    ///
    /// A task that waits has a key, to be passed to [`cancel_room`](Self::cancel_room).
    pub(crate) fn poll_room(
        &self,
        channel: R::Channel,
        queue: Queue,
        backlog: usize,
        key: &mut Option<usize>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        let queued = state.backlog_of(R::index(channel), queue);
        let (polled, replaced) = if queued.len() < backlog {
            (Poll::Ready(()), Some(waker))
        } else {
            (Poll::Pending, queued.add_room_waiter(key, backlog, waker))
        };
        self.unlock(state);
        wake::drop_guarded(replaced);
        polled
    }

    /// Stops the wait for room that has this key.
    pub(crate) fn cancel_room(&self, channel: R::Channel, queue: Queue, key: usize) {
        if self.is_in_child() {
            return;
        }
        let mut state = self.state.lock();
        let waker = state.backlog_of(R::index(channel), queue).cancel_room(key);
        self.unlock(state);
        wake::drop_guarded(waker);
    }

    /// A channel has joined the ring: there is room for the tasks that wait for operations in its slots.
    /// If the channel is down already, what it had is ended.
    pub(crate) fn joined(&self) {
        let mut state = self.state.lock();
        state.reserve_waits();
        // The queue is not armed if that has failed before.
        state.drive(None);
        self.unlock(state);
    }

    /// Continues with what another thread has left, on a helper thread.
    pub(crate) fn continue_waking(&self) {
        deferred::continue_waking(&self.state);
    }

    /// Does what became due while wake-ups were [held back](wake::hold) on this thread, or in
    /// [`with_ring`](Self::with_ring).
    pub(crate) fn settle(&self) {
        let state = self.state.lock();
        self.unlock(state);
    }

    /// Waits until these queues of a channel and their backlogs are empty. Any number of tasks can
    /// wait, each for what it was polled for last.
    ///
    /// A task that waits has a key, to be passed to [`cancel_drained`](Self::cancel_drained).
    pub(crate) fn poll_drained(
        &self,
        channel: R::Channel,
        queues: &'static [Queue],
        key: &mut Option<usize>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        let replaced = if state.is_empty(channel, queues) {
            Some(waker)
        } else {
            // Before driving, which arms the queue only if a task waits.
            let waiter = (waker, channel, queues);
            let replaced = state.add_drain_waiter(R::index(channel), key, waiter);
            state.drive(None);
            replaced
        };
        let (drained, own) = if state.is_empty(channel, queues) {
            let own = key.take();
            let own = own.and_then(|key| state.stop_draining(R::index(channel), key));
            (Poll::Ready(()), own)
        } else {
            (Poll::Pending, None)
        };
        self.unlock(state);
        wake::drop_guarded(replaced);
        wake::drop_guarded(own);
        drained
    }

    /// Stops the wait for empty queues that has this key.
    pub(crate) fn cancel_drained(&self, channel: R::Channel, key: usize) {
        if self.is_in_child() {
            return;
        }
        let mut state = self.state.lock();
        let waker = state.stop_draining(R::index(channel), key);
        self.unlock(state);
        wake::drop_guarded(waker);
    }

    /// Polls for the busy-poll time before the queue is armed. Other threads can take the lock in
    /// between.
    #[cold]
    fn poll_busily<'a>(
        &'a self,
        mut state: MutexGuard<'a, DriverState<R>>,
        submission: Submission<R::Ticket>,
    ) -> (MutexGuard<'a, DriverState<R>>, Option<R::Outcome>) {
        let start = Instant::now();
        loop {
            state.dispatch_until(Some(submission));
            let outcome = state.outcome(submission);
            if outcome.is_some() || start.elapsed() >= state.busy_poll {
                return (state, outcome);
            }
            self.unlock(state);
            hint::spin_loop();
            state = self.state.lock();
        }
    }

    /// Unlocks after an outcome was taken from a slot.
    #[inline(always)]
    fn unlock_after_take(&self, state: MutexGuard<'_, DriverState<R>>, ticket: R::Ticket) {
        // If no task waited, nothing else is due.
        let has_deferred = state.ring.has_deferred();
        if has_deferred || state.waiters > 0 && state.is_due_after_take(ticket) {
            self.finish_take(state, ticket);
        }
    }

    // Cold, though it is not when tasks wait: so what was taken stays in registers where none does.
    #[cold]
    #[inline(never)]
    fn finish_take<'a>(&'a self, mut state: MutexGuard<'a, DriverState<R>>, ticket: R::Ticket) {
        let wait = state.stop_waiting(ticket);
        state.on_capacity_freed(R::index(R::channel(ticket)));
        self.unlock(state);
        wake::drop_guarded(wait);
    }

    /// Unlocks after doing what is due.
    #[inline(always)]
    fn unlock<'a>(&'a self, state: MutexGuard<'a, DriverState<R>>) {
        if state.is_due() {
            self.unlock_and_wake(state);
        }
    }

    #[inline(never)]
    fn unlock_and_wake<'a>(&'a self, state: MutexGuard<'a, DriverState<R>>) {
        if wake::are_held() {
            // It stays due: the next thread that unlocks does it, or this one in `settle`.
            return;
        }
        deferred::wake_after_unlock(&self.state, state);
    }
}
