//! The state of a driver, which only its lock's holder has.

use std::mem;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::backlog::{Backlog, Queued, Stage};
use super::work::{Ring, Started, Submission, Work};
use crate::deferred::Deferred;

/// What stands behind the lock.
pub(super) struct State<R: Ring> {
    pub(super) ring: R,
    // What has to be announced: who sleeps, what is in line, and what is abandoned in flight.
    pub(super) waiters: usize,
    // Of that: what is in line, and who waits until nothing is left.
    pub(super) queued_or_draining: usize,
    pub(super) armed: bool,
    // By the ring's slots: who waits for what is in flight.
    waits: Vec<Option<Wait>>,
    pub(super) queued: Slab<Queued<R>>,
    pub(super) channels: Vec<Channel<R>>,
    // How long an operation polls before it goes to sleep.
    pub(super) busy_poll: Duration,
    // To be woken when the lock is free.
    pub(super) deferred: Deferred,
    // To be dropped then, one by one: two that panic at once would end the process.
    pub(super) garbage: Vec<Garbage<R>>,
}

/// Who waits for work that is in flight.
pub(super) enum Wait {
    Task(Waker),
    /// Nobody: its outcome is to be dropped.
    Abandoned,
}

/// A channel's two lines, and whoever waits until nothing is left in some of its queues.
pub(super) struct Channel<R: Ring> {
    pub(super) backlogs: [Backlog; 2],
    // Of its two queues.
    drained: Option<Drained<R>>,
}

/// Who waits until nothing is left, on which channel, and in which of its queues.
pub(super) type Drained<R> = (Waker, <R as Ring>::Channel, [bool; 2]);

impl<R: Ring> State<R> {
    pub(super) const fn new(ring: R) -> Self {
        Self {
            ring,
            waiters: 0,
            queued_or_draining: 0,
            armed: false,
            waits: Vec::new(),
            queued: Slab::new(),
            channels: Vec::new(),
            busy_poll: Duration::ZERO,
            deferred: Deferred::new(),
            garbage: Vec::new(),
        }
    }

    /// Posts work: nothing is due by that. Or puts it in line, or has it refused, and then something
    /// may be.
    #[inline(always)]
    pub(super) fn start<W: Work<R>>(
        &mut self,
        channel: R::Channel,
        mut work: W,
        backlog: usize,
    ) -> Submission<R::Ticket> {
        let started =
            if self.queued_or_draining > 0 && self.has_backlog(R::index(channel), work.queue()) {
                Started::Full
            } else {
                work.post(&mut self.ring, channel)
            };
        match started {
            Started::Posted(ticket) => Submission::Posted(ticket),
            Started::Full => Submission::Queued(self.queue(channel, work, backlog)),
            Started::Refused(refusal) => Submission::Queued(self.refused(channel, work, refusal)),
        }
    }

    fn has_backlog(&self, index: usize, queue: usize) -> bool {
        let here = self.channels.get(index);
        here.is_some_and(|here| !here.backlogs[queue].is_empty())
    }

    /// Puts work in line, unless as much is there already.
    #[cold]
    #[inline(never)]
    fn queue<W: Work<R>>(&mut self, channel: R::Channel, work: W, backlog: usize) -> usize {
        let queue = work.queue();
        if self.backlog_of(R::index(channel), queue).len() >= backlog {
            return self.refused(channel, work, R::full(queue));
        }
        let key = self.enqueue(channel, work.queue(), work.into());
        // What makes room has to be announced; and it may have ended by now.
        self.drive(None);
        key
    }

    /// Keeps the outcome of work that was refused.
    #[cold]
    #[inline(never)]
    fn refused<W: Work<R>>(
        &mut self,
        channel: R::Channel,
        mut work: W,
        refusal: R::Refusal,
    ) -> usize {
        self.queued.insert(Queued {
            channel,
            queue: work.queue(),
            stage: Stage::Refused(work.refused(refusal)),
            waker: None,
        })
    }

    /// Whether anything is to be done since the outcome of this work was taken.
    #[inline]
    pub(super) fn matters(&self, ticket: R::Ticket) -> bool {
        let waits = self.waits.get(R::slot(ticket));
        self.queued_or_draining > 0 || waits.is_some_and(Option::is_some) || self.is_due()
    }

    /// Whether something is to be done before the lock is free.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let is_unnoticed = self.waiters > 0 && self.ring.has_completed();
        let is_spent = !self.garbage.is_empty() && !self.deferred.is_waking();
        let is_noted = self.deferred.is_due() || is_spent;
        is_unnoticed || is_noted || self.ring.has_log_lines()
    }

    /// Drives: see the module. It may stop early when `own` has ended: what is left is announced, if
    /// it was armed for.
    pub(super) fn drive(&mut self, own: Option<Submission<R::Ticket>>) {
        let has_waiters = |state: &Self| own.is_some() || state.waiters > 0;
        if !has_waiters(self) || self.dispatch_until(own) || self.armed || !has_waiters(self) {
            return;
        }
        match self.ring.arm() {
            Ok(()) => self.armed = true,
            Err(line) => self.deferred.log(line),
        }
        self.dispatch_until(own);
    }

    /// Polls until the queue is empty, or `own` has ended: then it is `true`.
    pub(super) fn dispatch_until(&mut self, own: Option<Submission<R::Ticket>>) -> bool {
        let own = own.and_then(|own| self.posted(own)).map(R::slot);
        while let Some(ended) = self.ring.next_completed() {
            self.dispatch(ended);
            if own == Some(R::slot(ended)) {
                return true;
            }
        }
        false
    }

    /// Names the operation's work, if it was posted.
    fn posted(&self, submission: Submission<R::Ticket>) -> Option<R::Ticket> {
        match submission {
            Submission::Posted(ticket) => Some(ticket),
            Submission::Queued(key) => match self.queued.get(key)?.stage {
                Stage::Posted(ticket) => Some(ticket),
                _ => None,
            },
        }
    }

    /// Tells those who wait for it what is known to have ended, without a poll.
    pub(super) fn dispatch_known(&mut self) {
        while self.ring.has_completed() {
            let Some(ended) = self.ring.next_completed() else {
                return;
            };
            self.dispatch(ended);
        }
    }

    /// Tells whoever waits for it that work has ended, and goes on with what waits for its place.
    fn dispatch(&mut self, ended: R::Ticket) {
        match self.stop_waiting(ended) {
            Some(Wait::Task(waker)) => self.deferred.wake(waker),
            Some(Wait::Abandoned) => {
                let outcome = self.ring.take(ended);
                self.garbage.extend(outcome.map(Garbage::Outcome));
            }
            None => {}
        }
        self.capacity_freed(R::index(R::channel(ended)));
    }

    /// Something of a channel is not in flight any more, or not in line.
    pub(super) fn capacity_freed(&mut self, index: usize) {
        if self.queued_or_draining == 0 {
            return;
        }
        self.advance(index);
        let here = self.channels.get(index);
        if let Some((_, channel, queues)) = here.and_then(|here| here.drained.as_ref())
            && self.is_empty(*channel, *queues)
        {
            let waker = self.set_drained(index, None);
            self.deferred.extend(waker);
        }
    }

    /// The outcome of an operation, if it is known.
    pub(super) fn outcome(&mut self, submission: Submission<R::Ticket>) -> Option<R::Outcome> {
        let key = match submission {
            Submission::Posted(ticket) => return self.ring.take(ticket),
            Submission::Queued(key) => key,
        };
        let outcome = match self.queued.get(key)?.stage {
            Stage::Waiting(..) => return None,
            Stage::Posted(ticket) => Some(self.ring.take(ticket)?),
            Stage::Refused(_) => None,
        };
        match self.queued.remove(key).stage {
            Stage::Refused(outcome) => Some(outcome),
            _ => outcome,
        }
    }

    /// Has the operation's task woken when it has ended. What it had before is the caller's to drop.
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

    pub(super) fn wait(&mut self, ticket: R::Ticket, wait: Wait) -> Option<Wait> {
        let slot = R::slot(ticket);
        if slot >= self.waits.len() {
            self.waits.resize_with(slot + 1, || None);
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

    /// Nobody wants the operation's outcome any more.
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
                    Stage::Waiting(work, gap) => {
                        let index = R::index(op.channel);
                        self.dequeue(index, op.queue, gap);
                        // It may have been all that kept the next from its place.
                        self.capacity_freed(index);
                        self.garbage.push(Garbage::Work(work));
                        self.garbage.extend(waker.map(Garbage::Wait));
                        return;
                    }
                    Stage::Refused(outcome) => {
                        self.garbage.push(Garbage::Outcome(outcome));
                        self.garbage.extend(waker.map(Garbage::Wait));
                        return;
                    }
                }
            }
        };
        if let Some(outcome) = self.ring.take(ticket) {
            // Nobody waits for what is known to have ended.
            self.garbage.push(Garbage::Outcome(outcome));
            return;
        }
        let replaced = self.wait(ticket, Wait::Abandoned);
        self.garbage.extend(replaced.map(Garbage::Wait));
        // Its buffers are to come back even if nobody waits for anything.
        self.drive(None);
    }

    /// Has this woken when nothing is left in these queues of a channel. The waker from before is the
    /// caller's to drop.
    pub(super) fn set_drained(&mut self, index: usize, waits: Option<Drained<R>>) -> Option<Waker> {
        let added = usize::from(waits.is_some());
        self.waiters += added;
        self.queued_or_draining += added;
        let here = &mut self.channel(index).drained;
        let (replaced, ..) = mem::replace(here, waits)?;
        self.waiters -= 1;
        self.queued_or_draining -= 1;
        Some(replaced)
    }

    /// Whether nothing is left in these queues of a channel.
    pub(super) fn is_empty(&mut self, channel: R::Channel, queues: [bool; 2]) -> bool {
        (0..2).all(|queue| {
            let is_left =
                self.has_backlog(R::index(channel), queue) || !self.ring.is_idle(channel, queue);
            !queues[queue] || !is_left
        })
    }

    /// How many channels have, or had, anything in line or anybody who waits.
    pub(super) const fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(super) fn channel(&mut self, index: usize) -> &mut Channel<R> {
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, || Channel {
                backlogs: [Backlog::default(), Backlog::default()],
                drained: None,
            });
        }
        &mut self.channels[index]
    }
}

/// What is to be dropped where nothing is locked.
#[expect(dead_code, reason = "it is dropped, and not looked at")]
pub(super) enum Garbage<R: Ring> {
    Work(R::Work),
    Outcome(R::Outcome),
    Wait(Wait),
}
