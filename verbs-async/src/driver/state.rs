//! The state of a driver, behind its lock.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use slab::Slab;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::error::ErrorChain;
use verbs_channel::{__private::Closing, engine::Engine};
use verbs_channel::{ChannelId, DownReason, Message, RejectReason, Ticket};

use super::backlog::{ChannelWaiter, Queued, Stage};
use super::request::{Outcome, Request, Started, Submission};
use crate::events::Subscription;
use crate::task::deferred::{self, Deferred, Defers};
use crate::task::line::Line;
use crate::task::wake::log_error;
use crate::threads;

/// The state behind the lock.
pub(crate) struct DriverState {
    // First: the registration is dropped before the queue.
    pub(crate) subscription: Subscription,
    pub(crate) engine: Engine,
    // When busy tasks check the peers next; `None` for at once.
    pub(crate) next_check: Option<Instant>,
    // When the channel in each place has joined.
    pub(crate) joined: Vec<Instant>,
    owner: Weak<dyn Owner>,
    // How many need an event: sleeping tasks, queued operations, and abandoned ones in flight.
    pub(super) waiters: usize,
    // The part of `waiters` that is queued operations, and tasks that wait for a channel.
    pub(super) queued_or_waiting: usize,
    pub(crate) armed: bool,
    // Waker of the task that waits for a message of shared receives, which is a waiter, too.
    pub(super) message_waker: Option<Waker>,
    // Indexed by slot: who waits for the operation.
    waits: Vec<Option<Wait>>,
    pub(super) queued: Slab<Queued>,
    pub(super) channels: Vec<ChannelQueues>,
    // The queues whose heads wait for the room that all channels share.
    pub(super) line: Line<(usize, Queue)>,
    // How long an operation polls before its task sleeps.
    pub(super) busy_poll: Duration,
    // For when the lock is free.
    pub(super) deferred: Deferred<Garbage>,
}

/// The owner of a driver.
pub(crate) trait Owner: deferred::Owner {
    /// Has a helper thread destroy a queue pair.
    fn destroy_elsewhere(self: Arc<Self>, closing: Closing);
}

/// Who waits for an operation in flight.
pub(crate) enum Wait {
    Task(Waker),
    /// No task: its outcome is to be dropped.
    Abandoned,
}

/// The backlogs of a channel, and the tasks that wait for it.
pub(super) struct ChannelQueues {
    /// The keys of the operations that wait.
    pub(super) backlogs: [Line<usize>; 2],
    /// Their numbers in the line.
    pub(super) in_line: [Option<u64>; 2],
    // Waiters by key: `None` after it was woken, until its future is polled again or dropped.
    pub(super) waiters: Slab<Option<ChannelWaiter>>,
}

impl DriverState {
    pub(super) fn new(engine: Engine, subscription: Subscription, owner: Weak<dyn Owner>) -> Self {
        Self {
            subscription,
            engine,
            next_check: None,
            joined: Vec::new(),
            owner,
            waiters: 0,
            queued_or_waiting: 0,
            armed: false,
            message_waker: None,
            waits: Vec::new(),
            queued: Slab::new(),
            channels: Vec::new(),
            line: Line::default(),
            busy_poll: Duration::ZERO,
            deferred: Deferred::new(),
        }
    }

    /// Posts, queues or rejects a request, which is the only one or was not posted at once for this reason.
    pub(super) fn start(
        &mut self,
        channel: ChannelId,
        mut request: Request,
        backlog: usize,
        reason: Option<RejectReason>,
    ) -> Submission {
        let queue = request.queue();
        let engine = &mut self.engine;
        let started = match reason {
            Some(reason) => request.not_posted(engine, channel, reason),
            None if self.has_backlog(channel.index(), queue) => Started::Full,
            None => request.start(&mut self.engine, channel),
        };
        let stage = match started {
            Started::Posted(ticket) => return Submission::Posted(ticket),
            Started::Full => return self.queue(channel, request, backlog, false),
            Started::Short => return self.queue(channel, request, backlog, true),
            Started::Rejected(reason) => Stage::Rejected(request.rejected(reason)),
        };
        let rejected = self.insert(channel, queue, stage);
        // If the post took the channel down, what waits for its queues is rejected, too.
        self.on_capacity_freed(channel.index());
        rejected
    }

    pub(super) fn has_backlog(&self, index: usize, queue: Queue) -> bool {
        self.backlog_len(index, queue) > 0
    }

    pub(super) fn backlog_len(&self, index: usize, queue: Queue) -> usize {
        let here = self.channels.get(index);
        here.map_or(0, |here| here.backlogs[queue as usize].len())
    }

    /// Appends a request to its backlog, or rejects it if the backlog is full. If it `is_short` of the
    /// room that the channels share, it is the head.
    fn queue(
        &mut self,
        channel: ChannelId,
        mut request: Request,
        backlog: usize,
        is_short: bool,
    ) -> Submission {
        let queue = request.queue();
        if self.backlog_len(channel.index(), queue) >= backlog {
            let stage = Stage::Rejected(request.rejected(RejectReason::Backpressure(queue)));
            return self.insert(channel, queue, stage);
        }
        let key = self.enqueue(channel, queue, request);
        if is_short {
            self.join_line(channel.index(), queue);
        }
        // The queue has to be armed for the completion that makes room, which may be there already.
        self.drive(None);
        Submission::Queued(key)
    }

    /// Inserts an operation that is not in the backlog.
    fn insert(&mut self, channel: ChannelId, queue: Queue, stage: Stage) -> Submission {
        Submission::Queued(self.queued.insert(Queued {
            channel,
            queue,
            stage,
            waker: None,
        }))
    }

    /// Whether there is something to do now that the outcome of this operation was taken.
    #[inline]
    pub(super) fn is_due_after_take(&self, ticket: Ticket) -> bool {
        let waits = self.waits.get(ticket.slot());
        self.queued_or_waiting > 0 || waits.is_some_and(Option::is_some) || self.is_due()
    }

    /// Drives: see the module. It may return early when `own` has completed. If the queue was armed
    /// for others, an event announces what is left.
    pub(super) fn drive(&mut self, own: Option<Submission>) {
        let has_waiters = |state: &Self| own.is_some() || state.waiters > 0;
        if !has_waiters(self) || self.dispatch_until(own) || self.armed || !has_waiters(self) {
            return;
        }
        self.arm();
        self.dispatch_until(own);
    }

    /// Arms the queue: the next completion raises an event. If that fails, all operations are aborted, at once or
    /// when their queue pairs have been destroyed.
    #[cold]
    fn arm(&mut self) {
        let Err(error) = self.subscription.arm() else {
            self.armed = true;
            return;
        };
        // Operations of channels that are being closed wait, too.
        let is_up = |at| self.engine.down_reason(at).is_none();
        if self.engine.channels().any(is_up) {
            self.deferred.call(move || {
                log_error(format_args!(
                    "cannot arm the completion queue, taking all channels down: {}",
                    ErrorChain::new(&error)
                ));
            });
        }
        self.engine.destroy_all(DownReason::NotifierFailed);
    }

    /// Polls until the queue is empty, or until `own` has completed, which returns `true`.
    pub(super) fn dispatch_until(&mut self, own: Option<Submission>) -> bool {
        let own = own.and_then(|own| self.posted(own)).map(|own| own.slot());
        while let Some(completed) = self.engine.next_ticket() {
            self.dispatch(completed);
            if own == Some(completed.slot()) {
                return true;
            }
        }
        self.end_failed();
        false
    }

    /// The ticket of an operation, if it was posted.
    pub(super) fn posted(&self, submission: Submission) -> Option<Ticket> {
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
        while self.engine.has_completed()
            && let Some(completed) = self.engine.next_ticket()
        {
            self.dispatch(completed);
        }
        self.end_failed();
    }

    /// Ends what waits for room on channels that have gone down without a completed operation.
    fn end_failed(&mut self) {
        while let Some(channel) = self.engine.next_failed() {
            self.on_capacity_freed(channel.index());
        }
    }

    /// Wakes the task that waits for a completed operation, and posts what waits for its room.
    fn dispatch(&mut self, completed: Ticket) {
        match self.stop_waiting(completed) {
            Some(Wait::Task(waker)) => self.deferred.wake(waker),
            Some(Wait::Abandoned) => {
                let outcome = Outcome::take(&mut self.engine, completed);
                self.deferred
                    .garbage()
                    .extend(outcome.map(Garbage::Outcome));
            }
            None => {}
        }
        self.on_capacity_freed(completed.channel().index());
    }

    /// An operation of the channel has left its queue or its backlog.
    pub(super) fn on_capacity_freed(&mut self, index: usize) {
        if self.queued_or_waiting == 0 {
            return;
        }
        self.advance(index);
        if !self.line.is_empty() {
            self.advance_line();
        }
        self.wake_channel_waiters(index);
    }

    /// Takes the outcome of an operation, if it is known.
    pub(super) fn outcome(&mut self, submission: Submission) -> Option<Outcome> {
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
    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        let outcome = Outcome::take(&mut self.engine, ticket)?;
        let wait = self.stop_waiting(ticket);
        self.deferred.garbage().extend(wait.map(Garbage::Wait));
        self.on_capacity_freed(ticket.channel().index());
        Some(outcome)
    }

    /// Wakes the task when the operation has completed. Returns what was replaced, for the caller
    /// to drop.
    pub(super) fn set_waker(&mut self, submission: Submission, waker: Waker) -> Option<Wait> {
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

    /// Makes room for the tasks of operations in all slots of the engine.
    pub(super) fn reserve_waits(&mut self) {
        let slots = self.engine.slots();
        if slots > self.waits.len() {
            self.waits.resize_with(slots, || None);
        }
    }

    pub(super) fn wait(&mut self, ticket: Ticket, wait: Wait) -> Option<Wait> {
        let slot = ticket.slot();
        if slot >= self.waits.len() {
            // Shared slots may have been added since.
            let len = self.engine.slots().max(slot + 1);
            self.waits.resize_with(len, || None);
        }
        let replaced = self.waits[slot].replace(wait);
        self.waiters += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn stop_waiting(&mut self, ticket: Ticket) -> Option<Wait> {
        let wait = self.waits.get_mut(ticket.slot())?.take()?;
        self.waiters -= 1;
        Some(wait)
    }

    /// Abandons an operation: no task will take its outcome.
    pub(super) fn abandon(&mut self, submission: Submission) {
        let ticket = match submission {
            Submission::Posted(ticket) => ticket,
            Submission::Queued(key) => {
                let Some(op) = self.queued.try_remove(key) else {
                    return;
                };
                let waker = op.waker.map(Wait::Task);
                match op.stage {
                    Stage::Posted(ticket) => ticket,
                    Stage::Waiting(request, number) => {
                        let index = op.channel.index();
                        self.dequeue(index, op.queue, number);
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

    pub(super) fn channel(&mut self, index: usize) -> &mut ChannelQueues {
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, || ChannelQueues {
                backlogs: Default::default(),
                in_line: [None; 2],
                waiters: Slab::new(),
            });
        }
        &mut self.channels[index]
    }
}

/// The messages of receives that channels share.
impl DriverState {
    /// The oldest message. Polls if there is none, and posts the blocks that are free.
    pub(super) fn next_message(&mut self) -> Option<Message> {
        let message = self.engine.next_message();
        if message.is_none() {
            self.engine.refill();
        }
        message
    }

    /// Whether there is something to do for the shared receives.
    // Not inlined: the path without waiters stays short.
    #[cold]
    #[inline(never)]
    fn has_news(&self) -> bool {
        self.is_message_due() || self.engine.has_failed()
    }

    /// Whether the task that waits for a message is to be woken.
    fn is_message_due(&self) -> bool {
        self.message_waker.is_some()
            && (self.engine.has_message() || self.engine.has_no_more_messages())
    }

    /// Wakes that task if there is a message, or there are no more.
    fn wake_for_message(&mut self) {
        if self.is_message_due()
            && let Some(waker) = self.stop_messages()
        {
            self.deferred.wake(waker);
        }
    }

    pub(super) fn wait_for_message(&mut self, waker: Waker) -> Option<Waker> {
        let replaced = self.message_waker.replace(waker);
        self.waiters += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn stop_messages(&mut self) -> Option<Waker> {
        let waker = self.message_waker.take()?;
        self.waiters -= 1;
        Some(waker)
    }
}

impl Defers for DriverState {
    type Garbage = Garbage;

    fn deferred(&mut self) -> &mut Deferred<Garbage> {
        &mut self.deferred
    }

    #[inline]
    fn is_due(&self) -> bool {
        let has_undispatched = self.waiters > 0 && (self.engine.has_completed() || self.has_news());
        has_undispatched || self.deferred.is_due() || self.engine.has_deferred()
    }

    fn defer_due(&mut self) {
        if self.waiters > 0 {
            self.dispatch_polled();
            self.wake_for_message();
        }
        while let Some((call, is_slow)) = self.engine.next_afterwards() {
            match is_slow {
                true => self.deferred.call(|| threads::detach(call)),
                false => self.deferred.call(call),
            }
        }
    }

    fn take_ending(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        let closing = self.engine.next_closing()?;
        let owner = Weak::clone(&self.owner);
        Some(Box::new(move || {
            if let Some(owner) = owner.upgrade() {
                owner.destroy_elsewhere(closing);
            }
        }))
    }

    fn owner(&self) -> Option<Arc<dyn deferred::Owner>> {
        let owner: Arc<dyn deferred::Owner> = self.owner.upgrade()?;
        Some(owner)
    }
}

/// Values to drop after unlocking.
#[expect(dead_code, reason = "only dropped")]
pub(crate) enum Garbage {
    Request(Request),
    Outcome(Outcome),
    Wait(Wait),
}
