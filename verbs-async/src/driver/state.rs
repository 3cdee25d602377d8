//! The state of a driver, behind its lock.

use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use verbs_channel::Queue;

use super::backlog::{Backlog, Queued, Stage};
use super::fair_queue::Line;
use super::source::{Request, Ring, Started, Submission};
use crate::task::deferred::{Deferred, Defers};
use crate::task::sync::{Mutex, MutexGuard};
use crate::task::wake;

/// The state behind the lock.
pub(super) struct DriverState<R: Ring> {
    pub(super) ring: R,
    // How many need an event: sleeping tasks, queued operations, and abandoned ones in flight.
    pub(super) waiters: usize,
    // The part of `waiters` that is queued operations, and tasks that wait until a channel is
    // drained.
    pub(super) queued_or_draining: usize,
    pub(super) armed: bool,
    // Waker of the task that waits for a message of shared receives, which is a waiter, too.
    pub(super) message_waker: Option<Waker>,
    // Indexed by slot: who waits for the operation.
    waits: Vec<Option<Wait>>,
    pub(super) queued: Slab<Queued<R>>,
    pub(super) channels: Vec<Channel<R>>,
    // The queues whose heads wait for the room that all channels share.
    pub(super) line: Line,
    // How long an operation polls before its task sleeps.
    pub(super) busy_poll: Duration,
    // For when the lock is free.
    pub(super) deferred: Deferred<Garbage<R>>,
    // A thread hands on what is to be destroyed: also what is added meanwhile.
    is_closing: bool,
}

/// Who waits for an operation in flight.
pub(super) enum Wait {
    Task(Waker),
    /// No task: its outcome is to be dropped.
    Abandoned,
}

/// The backlogs of a channel, and the tasks that wait until its queues are drained.
pub(super) struct Channel<R: Ring> {
    pub(super) backlogs: [Backlog; 2],
    // Waiters by key: `None` after it was woken, until its future is polled again or dropped.
    pub(super) drain_waiters: Slab<Option<DrainWaiter<R>>>,
}

/// The waker of a task that waits until these queues of this channel are drained.
pub(super) type DrainWaiter<R> = (Waker, <R as Ring>::Channel, &'static [Queue]);

impl<R: Ring> DriverState<R> {
    pub(super) const fn new(ring: R) -> Self {
        Self {
            ring,
            waiters: 0,
            queued_or_draining: 0,
            armed: false,
            message_waker: None,
            waits: Vec::new(),
            queued: Slab::new(),
            channels: Vec::new(),
            line: Line::new(),
            busy_poll: Duration::ZERO,
            deferred: Deferred::new(),
            is_closing: false,
        }
    }

    /// Posts, queues or rejects a request. If it is posted, nothing becomes due by that.
    #[inline(always)]
    pub(super) fn start<W: Request<R>>(
        &mut self,
        channel: R::Channel,
        mut request: W,
        backlog: usize,
    ) -> Submission<R::Ticket> {
        let started = if self.queued_or_draining > 0
            && self.has_backlog(R::index(channel), request.queue())
        {
            Started::Full
        } else {
            request.post(&mut self.ring, channel)
        };
        match started {
            Started::Posted(ticket) => Submission::Posted(ticket),
            started => Submission::Queued(self.not_posted(channel, request, backlog, started)),
        }
    }

    /// Tries again, queues or rejects a request that was not posted. Returns its key.
    // Takes the request by value and returns a number: passing it by reference would put it in
    // memory on the usual path too.
    #[cold]
    #[inline(never)]
    fn not_posted<W: Request<R>>(
        &mut self,
        channel: R::Channel,
        mut request: W,
        backlog: usize,
        mut started: Started<R>,
    ) -> usize {
        if let Started::RoomMade = started {
            self.reserve_waits();
            started = request.post(&mut self.ring, channel);
        }
        let stage = match started {
            Started::Posted(ticket) => Stage::Posted(ticket),
            Started::RoomMade | Started::Full => {
                return self.queue(channel, request, backlog, false);
            }
            Started::Short => return self.queue(channel, request, backlog, true),
            Started::Rejected(reason) => Stage::Rejected(request.rejected(reason)),
        };
        let key = self.insert(channel, request.queue(), stage);
        // If the post took the channel down, what waits for its queues is rejected, too.
        self.on_capacity_freed(R::index(channel));
        key
    }

    pub(super) fn has_backlog(&self, index: usize, queue: Queue) -> bool {
        let here = self.channels.get(index);
        here.is_some_and(|here| !here.backlogs[queue as usize].is_empty())
    }

    /// Appends a request to its backlog, or rejects it if the backlog is full. If it `is_short` of the
    /// room that the channels share, it is the head.
    fn queue<W: Request<R>>(
        &mut self,
        channel: R::Channel,
        mut request: W,
        backlog: usize,
        is_short: bool,
    ) -> usize {
        let queue = request.queue();
        if self.backlog_of(R::index(channel), queue).len() >= backlog {
            let stage = Stage::Rejected(request.rejected(R::full(queue)));
            return self.insert(channel, queue, stage);
        }
        let key = self.enqueue(channel, queue, request.into());
        if is_short {
            self.join_line(R::index(channel), queue);
        }
        // The queue has to be armed for the completion that makes room, which may be there already.
        self.drive(None);
        key
    }

    /// Inserts an operation that is not in the backlog.
    fn insert(&mut self, channel: R::Channel, queue: Queue, stage: Stage<R>) -> usize {
        self.queued.insert(Queued {
            channel,
            queue,
            stage,
            waker: None,
        })
    }

    /// Whether there is something to do now that the outcome of this operation was taken.
    #[inline]
    pub(super) fn is_due_after_take(&self, ticket: R::Ticket) -> bool {
        let waits = self.waits.get(R::slot(ticket));
        self.queued_or_draining > 0 || waits.is_some_and(Option::is_some) || self.is_due()
    }

    /// Drives: see the module. It may return early when `own` has completed. If the queue was armed
    /// for others, an event announces what is left.
    pub(super) fn drive(&mut self, own: Option<Submission<R::Ticket>>) {
        let has_waiters = |state: &Self| own.is_some() || state.waiters > 0;
        if !has_waiters(self) || self.dispatch_until(own) || self.armed || !has_waiters(self) {
            return;
        }
        match self.ring.arm() {
            Ok(()) => self.armed = true,
            Err(line) => line.into_iter().for_each(|line| self.deferred.log(line)),
        }
        self.dispatch_until(own);
    }

    /// Polls until the queue is empty, or until `own` has completed, which returns `true`.
    pub(super) fn dispatch_until(&mut self, own: Option<Submission<R::Ticket>>) -> bool {
        let own = own.and_then(|own| self.posted(own)).map(R::slot);
        while let Some(completed) = self.ring.next_completed() {
            self.dispatch(completed);
            if own == Some(R::slot(completed)) {
                return true;
            }
        }
        self.end_failed();
        false
    }

    /// The ticket of an operation, if it was posted.
    pub(super) fn posted(&self, submission: Submission<R::Ticket>) -> Option<R::Ticket> {
        match submission {
            Submission::Posted(ticket) => Some(ticket),
            Submission::Queued(key) => match self.queued.get(key)?.stage {
                Stage::Posted(ticket) => Some(ticket),
                _ => None,
            },
        }
    }

    /// Dispatches what has been polled already, without another poll.
    pub(super) fn dispatch_polled(&mut self) {
        while self.ring.has_completed()
            && let Some(completed) = self.ring.next_completed()
        {
            self.dispatch(completed);
        }
        self.end_failed();
    }

    /// Ends what waits for room on channels that have gone down without a completed operation.
    fn end_failed(&mut self) {
        while let Some(channel) = self.ring.next_failed() {
            self.on_capacity_freed(R::index(channel));
        }
    }

    /// Wakes the task that waits for a completed operation, and posts what waits for its room.
    fn dispatch(&mut self, completed: R::Ticket) {
        match self.stop_waiting(completed) {
            Some(Wait::Task(waker)) => self.deferred.wake(waker),
            Some(Wait::Abandoned) => {
                let outcome = self.ring.take(completed);
                self.deferred
                    .garbage()
                    .extend(outcome.map(Garbage::Outcome));
            }
            None => {}
        }
        self.on_capacity_freed(R::index(R::channel(completed)));
    }

    /// An operation of the channel has left its queue or its backlog.
    pub(super) fn on_capacity_freed(&mut self, index: usize) {
        if self.queued_or_draining == 0 {
            return;
        }
        self.advance(index);
        if !self.line.is_empty() {
            self.advance_line();
        }
        self.wake_drained(index);
    }

    /// Takes the outcome of an operation, if it is known.
    pub(super) fn outcome(&mut self, submission: Submission<R::Ticket>) -> Option<R::Outcome> {
        let key = match submission {
            Submission::Posted(ticket) => return self.take(ticket),
            Submission::Queued(key) => key,
        };
        let outcome = match self.queued.get(key)?.stage {
            Stage::Waiting(..) => return None,
            Stage::Posted(ticket) => Some(self.take(ticket)?),
            Stage::Rejected(_) => None,
        };
        match self.queued.remove(key).stage {
            Stage::Rejected(outcome) => Some(outcome),
            _ => outcome,
        }
    }

    /// Takes the outcome of an operation that was posted, if it is known. If another thread has polled it, and not
    /// dispatched it yet, this does what that would.
    fn take(&mut self, ticket: R::Ticket) -> Option<R::Outcome> {
        let outcome = self.ring.take(ticket)?;
        let wait = self.stop_waiting(ticket);
        self.deferred.garbage().extend(wait.map(Garbage::Wait));
        self.on_capacity_freed(R::index(R::channel(ticket)));
        Some(outcome)
    }

    /// Wakes the task when the operation has completed. Returns what was replaced, for the caller
    /// to drop.
    pub(super) fn set_waker(
        &mut self,
        submission: Submission<R::Ticket>,
        waker: Waker,
    ) -> Option<Wait> {
        let ticket = match submission {
            Submission::Posted(ticket) => ticket,
            Submission::Queued(key) => match self.queued.get_mut(key)? {
                Queued {
                    stage: Stage::Posted(ticket),
                    ..
                } => *ticket,
                waiting => return waiting.waker.replace(waker).map(Wait::Task),
            },
        };
        self.wait(ticket, Wait::Task(waker))
    }

    /// Makes room for the tasks of operations in all slots of the ring.
    pub(super) fn reserve_waits(&mut self) {
        let slots = self.ring.slots();
        if slots > self.waits.len() {
            self.waits.resize_with(slots, || None);
        }
    }

    pub(super) fn wait(&mut self, ticket: R::Ticket, wait: Wait) -> Option<Wait> {
        let slot = R::slot(ticket);
        if slot >= self.waits.len() {
            // Shared slots may have been added since.
            let len = self.ring.slots().max(slot + 1);
            self.waits.resize_with(len, || None);
        }
        let replaced = self.waits[slot].replace(wait);
        self.waiters += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn stop_waiting(&mut self, ticket: R::Ticket) -> Option<Wait> {
        let wait = self.waits.get_mut(R::slot(ticket))?.take()?;
        self.waiters -= 1;
        Some(wait)
    }

    /// Abandons an operation: no task will take its outcome.
    pub(super) fn abandon(&mut self, submission: Submission<R::Ticket>) {
        let ticket = match submission {
            Submission::Posted(ticket) => ticket,
            Submission::Queued(key) => {
                let Some(op) = self.queued.try_remove(key) else {
                    return;
                };
                let waker = op.waker.map(Wait::Task);
                match op.stage {
                    Stage::Posted(ticket) => ticket,
                    Stage::Waiting(request, links) => {
                        let index = R::index(op.channel);
                        self.dequeue(index, op.queue, links);
                        // It may have been the head, and the next may have room.
                        self.on_capacity_freed(index);
                        self.deferred.garbage().push(Garbage::Request(request));
                        self.deferred.garbage().extend(waker.map(Garbage::Wait));
                        return;
                    }
                    Stage::Rejected(outcome) => {
                        self.deferred.garbage().push(Garbage::Outcome(outcome));
                        self.deferred.garbage().extend(waker.map(Garbage::Wait));
                        return;
                    }
                }
            }
        };
        if let Some(outcome) = self.take(ticket) {
            self.deferred.garbage().push(Garbage::Outcome(outcome));
            return;
        }
        let replaced = self.wait(ticket, Wait::Abandoned);
        self.deferred.garbage().extend(replaced.map(Garbage::Wait));
        // Its buffers are returned even if no task waits for anything.
        self.drive(None);
    }

    /// The length of the table of channels.
    pub(super) const fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(super) fn channel(&mut self, index: usize) -> &mut Channel<R> {
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, || Channel {
                backlogs: [Backlog::default(), Backlog::default()],
                drain_waiters: Slab::new(),
            });
            self.line.resize(index + 1);
        }
        &mut self.channels[index]
    }
}

impl<R: Ring> Defers for DriverState<R> {
    type Garbage = Garbage<R>;
    type Owner = R::Owner;

    fn deferred(&mut self) -> &mut Deferred<Garbage<R>> {
        &mut self.deferred
    }

    #[inline]
    fn is_due(&self) -> bool {
        let has_undispatched = self.waiters > 0 && (self.ring.has_completed() || self.has_news());
        has_undispatched || self.deferred.is_due() || self.ring.has_deferred()
    }

    fn defer_due<'a>(
        lock: &'a Mutex<Self>,
        mut state: MutexGuard<'a, Self>,
    ) -> MutexGuard<'a, Self> {
        if state.waiters > 0 {
            state.dispatch_polled();
            state.wake_for_message();
        }
        while let Some(line) = state.ring.next_log_line() {
            state.deferred.log(line);
        }
        while !state.is_closing
            && let Some(closing) = state.ring.next_closing()
        {
            if !state.deferred.is_waking() {
                state.deferred.garbage().push(Garbage::Closing(closing));
                continue;
            }
            // Users' code runs, which may wait for this. If no helper thread can be started, it is destroyed here,
            // and what that takes down is left to this loop.
            state.is_closing = true;
            drop(state);
            wake::drop_guarded(closing);
            state = lock.lock();
            state.is_closing = false;
        }
        state
    }

    fn owner(&self) -> Option<R::Owner> {
        self.ring.owner()
    }

    fn continue_elsewhere(owner: R::Owner) -> bool {
        R::continue_elsewhere(owner)
    }
}

/// Values to drop after unlocking.
#[expect(dead_code, reason = "only dropped")]
pub(super) enum Garbage<R: Ring> {
    Request(R::Request),
    Outcome(R::Outcome),
    Wait(Wait),
    Closing(R::Closing),
}
