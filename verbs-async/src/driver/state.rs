//! The state of a driver, which only its lock's holder has.

use std::mem;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::beside::Beside;
use super::line::{Line, Place};
use super::work::{Done, Ring, Started, Work};

/// What stands behind the lock.
pub(super) struct State<R: Ring> {
    pub(super) ring: R,
    pub(super) ops: Slab<Op<R::Ticket>>,
    // Beside the operations, which are moved for each: most have neither.
    works: Beside<R::Work>,
    outcomes: Beside<R::Outcome>,
    // The operation that each of the ring's slots stands for.
    by_slot: Vec<usize>,
    pub(super) channels: Vec<Channel>,
    in_flight: usize,
    // What has to be announced: sleepers, what is in line, and what is abandoned.
    wanted: usize,
    pub(super) armed: bool,
    // How long an operation polls before it goes to sleep.
    pub(super) busy_poll: Duration,
    // To be woken when the lock is free.
    pub(super) wakers: Vec<Waker>,
}

/// An operation, until its outcome has been taken.
pub(super) struct Op<T> {
    pub(super) stage: Stage<T>,
    pub(super) channel: usize,
    pub(super) queue: usize,
    pub(super) waker: Option<Waker>,
}

/// How far an operation is.
#[derive(Clone, Copy)]
pub(super) enum Stage<T> {
    /// In line for a place in its queue.
    Waiting(Place),
    InFlight(T),
    /// In flight, and nobody wants to know how it ends.
    Abandoned,
    Done,
}

/// A channel: of each of its two queues.
#[derive(Default)]
pub(super) struct Channel {
    pub(super) lines: [Line; 2],
    // In flight or in line.
    pub(super) unfinished: [usize; 2],
    // Waits until nothing is.
    drained: Option<Waker>,
}

impl<R: Ring> State<R> {
    pub(super) fn new(ring: R) -> Self {
        Self {
            ring,
            ops: Slab::new(),
            works: Beside::new(),
            outcomes: Beside::new(),
            by_slot: Vec::new(),
            channels: Vec::new(),
            in_flight: 0,
            wanted: 0,
            armed: false,
            busy_poll: Duration::ZERO,
            wakers: Vec::new(),
        }
    }

    /// Posts work, or puts it in line, or has it refused.
    #[inline(always)]
    pub(super) fn start(&mut self, channel: usize, mut work: impl Work<R>) -> usize {
        let queue = work.queue();
        let here = self.channel(channel);
        here.unfinished[queue] += 1;
        let started = if here.lines[queue].is_empty() {
            work.post(&mut self.ring, channel)
        } else {
            Started::Full
        };
        let stage = match started {
            Started::Posted(ticket) => Stage::InFlight(ticket),
            _ => Stage::Done,
        };
        let waker = None;
        let key = self.ops.insert(Op {
            stage,
            channel,
            queue,
            waker,
        });
        match started {
            Started::Posted(ticket) => self.posted(key, ticket),
            Started::Full => self.queue(key, work.into()),
            Started::Refused(outcome) => {
                self.refused(key, outcome);
                self.collect_ended();
            }
        }
        key
    }

    /// Puts work in line.
    #[cold]
    fn queue(&mut self, key: usize, work: R::Work) {
        let Op { channel, queue, .. } = self.ops[key];
        self.works.put(key, work);
        self.join_line(key);
        self.wanted += 1;
        // What makes room has to be announced; and there may be room by now, since what is done and
        // not filed takes it up as well, from whatever queue it is.
        self.turn(None);
        self.advance(channel, queue);
        self.collect_ended();
    }

    /// Work was not posted and will not be.
    #[cold]
    fn refused(&mut self, key: usize, outcome: R::Outcome) {
        let op = &mut self.ops[key];
        let (channel, queue) = (op.channel, op.queue);
        op.stage = Stage::Done;
        self.wakers.extend(op.waker.take());
        self.outcomes.put(key, outcome);
        self.finished(channel, queue);
    }

    #[inline]
    fn posted(&mut self, key: usize, ticket: R::Ticket) {
        let slot = R::slot(ticket);
        match self.by_slot.get_mut(slot) {
            Some(place) => *place = key,
            None => self.grow_slots(slot, key),
        }
        self.in_flight += 1;
    }

    #[cold]
    fn grow_slots(&mut self, slot: usize, key: usize) {
        self.by_slot.resize(slot + 1, usize::MAX);
        self.by_slot[slot] = key;
    }

    /// The ticket of an operation that is in flight.
    #[inline]
    pub(super) fn in_flight(&self, key: usize) -> Option<R::Ticket> {
        match self.ops.get(key)?.stage {
            Stage::InFlight(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// An operation's outcome has been taken from the ring: the operation's waker.
    ///
    /// What else is done there is filed if anybody waits for anything. Else it stays where it is until
    /// it is asked for.
    #[inline]
    pub(super) fn taken(&mut self, key: usize) -> Option<Waker> {
        let Op {
            channel,
            queue,
            waker,
            ..
        } = self.ops.remove(key);
        self.wanted -= usize::from(waker.is_some());
        self.ended(channel, queue);
        if self.wanted > 0 && self.ring.has_done() {
            self.collect(None);
        }
        waker
    }

    /// Drives: see the module. It may stop early when `own` is done: what is left is announced, if
    /// it was armed for.
    pub(super) fn turn(&mut self, own: Option<usize>) {
        if self.collect(own) || self.armed || self.in_flight == 0 {
            return;
        }
        if own.is_none() && self.wanted == 0 {
            return;
        }
        self.armed = true;
        self.ring.arm();
        self.collect(own);
    }

    /// Polls until the queue is empty, or `own` is done: then it is `true`.
    pub(super) fn collect(&mut self, own: Option<usize>) -> bool {
        while let Some(done) = self.ring.next_done() {
            let key = self.file(done);
            if key.is_some() && key == own {
                return true;
            }
        }
        false
    }

    /// Files what a refusal has ended: that of a chain that was posted in part ends all work of its
    /// channel, and nothing announces that.
    #[cold]
    fn collect_ended(&mut self) {
        if self.ring.has_done() {
            self.collect(None);
        }
    }

    /// Files what is done under its operation, and posts what waits for its place.
    fn file(&mut self, done: Done<R>) -> Option<usize> {
        let key = *self.by_slot.get(R::slot(done.ticket))?;
        let op = self.ops.get_mut(key)?;
        let (channel, queue) = (op.channel, op.queue);
        match op.stage {
            Stage::InFlight(_) => {
                op.stage = Stage::Done;
                self.wanted -= usize::from(op.waker.is_some());
                self.wakers.extend(op.waker.take());
                self.outcomes.put(key, done.outcome);
            }
            Stage::Abandoned => {
                self.wanted -= 1;
                self.ops.remove(key);
            }
            Stage::Waiting(_) | Stage::Done => return None,
        }
        self.ended(channel, queue);
        Some(key)
    }

    /// Something that was in flight is not any more.
    #[inline(always)]
    fn ended(&mut self, channel: usize, queue: usize) {
        self.in_flight -= 1;
        let here = self.channel(channel);
        if here.lines[queue].is_empty() && here.drained.is_none() {
            here.unfinished[queue] -= 1;
        } else {
            self.finished(channel, queue);
            self.advance(channel, queue);
        }
    }

    #[cold]
    fn finished(&mut self, channel: usize, queue: usize) {
        let here = self.channel(channel);
        here.unfinished[queue] -= 1;
        if here.unfinished[queue] == 0 {
            let drained = self.set_drained(channel, None);
            self.wakers.extend(drained);
        }
    }

    /// Has this woken when a queue of the channel is empty. The waker from before is the caller's to
    /// drop.
    pub(super) fn set_drained(&mut self, channel: usize, waker: Option<Waker>) -> Option<Waker> {
        self.wanted += usize::from(waker.is_some());
        let replaced = mem::replace(&mut self.channel(channel).drained, waker);
        self.wanted -= usize::from(replaced.is_some());
        replaced
    }

    /// Posts from the head of a line, as long as there are places.
    pub(super) fn advance(&mut self, channel: usize, queue: usize) {
        while let Some(key) = self.channel(channel).lines[queue].head() {
            if !self.post_head(key) {
                return;
            }
        }
    }

    /// Posts the head of a line. `false` if there is no place for it yet.
    #[cold]
    fn post_head(&mut self, key: usize) -> bool {
        let Op { channel, .. } = self.ops[key];
        let Some(mut work) = self.works.take(key) else {
            return false;
        };
        match work.post(&mut self.ring, channel) {
            Started::Posted(ticket) => {
                self.leave_line(key);
                let op = &mut self.ops[key];
                op.stage = Stage::InFlight(ticket);
                self.wanted -= usize::from(op.waker.is_none());
                self.posted(key, ticket);
                true
            }
            Started::Refused(outcome) => {
                self.leave_line(key);
                self.wanted -= 1;
                self.refused(key, outcome);
                true
            }
            Started::Full => {
                self.works.put(key, work);
                false
            }
        }
    }

    /// What has to be dropped, where nothing is locked.
    #[must_use]
    pub(super) fn abandon(&mut self, key: usize) -> Option<Dropped<R>> {
        let op = self.ops.get_mut(key)?;
        let (channel, queue) = (op.channel, op.queue);
        match op.stage {
            Stage::InFlight(_) => {
                op.stage = Stage::Abandoned;
                let waker = op.waker.take();
                self.wanted += usize::from(waker.is_none());
                // Its buffers are to come back even if nobody waits for anything.
                self.turn(None);
                Some((None, None, waker))
            }
            Stage::Waiting(_) => {
                self.leave_line(key);
                self.wanted -= 1;
                let work = self.works.take(key);
                let op = self.ops.remove(key);
                self.finished(channel, queue);
                // It may have been all that kept the next from its place.
                self.advance(channel, queue);
                self.collect_ended();
                Some((work, None, op.waker))
            }
            Stage::Done => {
                let (outcome, op) = self.remove(key);
                Some((None, outcome, op.waker))
            }
            Stage::Abandoned => None,
        }
    }

    #[inline]
    pub(super) fn is_done(&self, key: usize) -> bool {
        matches!(self.ops.get(key), Some(op) if matches!(op.stage, Stage::Done))
    }

    /// Takes out an operation that is done.
    pub(super) fn remove(&mut self, key: usize) -> (Option<R::Outcome>, Op<R::Ticket>) {
        (self.outcomes.take(key), self.ops.remove(key))
    }

    /// Has the operation's task woken when it is done. The waker from before is the caller's to
    /// drop.
    pub(super) fn set_waker(&mut self, key: usize, waker: &Waker) -> Option<Waker> {
        let op = self.ops.get_mut(key)?;
        match &mut op.waker {
            Some(old) if old.will_wake(waker) => None,
            place => {
                let is_new = place.is_none() && matches!(op.stage, Stage::InFlight(_));
                self.wanted += usize::from(is_new);
                place.replace(waker.clone())
            }
        }
    }

    #[inline]
    pub(super) fn channel(&mut self, channel: usize) -> &mut Channel {
        if channel >= self.channels.len() {
            self.grow_channels(channel);
        }
        &mut self.channels[channel]
    }

    #[cold]
    fn grow_channels(&mut self, channel: usize) {
        self.channels.resize_with(channel + 1, Channel::default);
    }
}

/// What an operation leaves behind.
pub(super) type Dropped<R> = (
    Option<<R as Ring>::Work>,
    Option<<R as Ring>::Outcome>,
    Option<Waker>,
);
