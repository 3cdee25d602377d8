//! The driver: which operations wait for what, and who is woken.
//!
//! There is no task that drives and could fall asleep, be leaked or never be polled again: whoever
//! is here drives. That is each operation that is polled and not done, and the notifier's waker,
//! which comes in through [`Driver::announced`]. Both do the same:
//!
//! ```text
//! poll the queue until it is empty ──► file each completion under its operation; note its waker;
//!   │                                  post what waits for the places that it left
//!   ▼ empty, something in flight, not armed
//! arm, and poll once more
//!   ▼ empty again: the next completion will be announced
//! unlock, and wake whom was noted
//! ```
//!
//! *Invariant:* when the lock is free and an operation is in flight whose completion has not been
//! filed, then the queue is armed, or an announcement is on its way, or nobody has waited for it
//! yet.
//!
//! *Invariant:* no waker is woken or dropped, and no notifier called, under the lock.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{hint, mem};

use slab::Slab;

use crate::sync::{Mutex, MutexGuard, PoisonError};
use beside::Beside;
use line::{Line, Place};

mod beside;
mod line;

/// What is driven: a completion queue and what is posted to it.
pub(crate) trait Ring {
    /// What to do: all kinds of it in one.
    type Work: Work<Self>;
    /// How it ended.
    type Outcome;
    /// Names work that is in flight.
    type Ticket: Copy;

    /// A number for work that is in flight, which no other has at the time.
    fn slot(ticket: Self::Ticket) -> usize;

    /// Whether [`next_done`](Self::next_done) has something without a poll.
    fn has_done(&self) -> bool;

    /// Takes something that is done; polls if it knows of nothing. `None` if the queue is empty.
    fn next_done(&mut self) -> Option<Done<Self>>;

    /// Has the next completion announced. If that fails, it gives up: everything is done then.
    fn arm(&mut self);
}

/// What can be posted to a ring.
pub(crate) trait Work<R: Ring + ?Sized>: Into<R::Work> {
    /// Which of the channel's two queues it is for.
    fn queue(&self) -> usize;

    /// Posts it, and leaves nothing of it; or all of it, if there is no place for it.
    fn post(&mut self, ring: &mut R, channel: usize) -> Started<R>;
}

/// What became of work that was to be posted.
pub(crate) enum Started<R: Ring + ?Sized> {
    /// It is in flight.
    Posted(R::Ticket),
    /// There is no place for it yet.
    Full,
    /// It can't be done.
    Refused(R::Outcome),
}

/// Something that is done.
pub(crate) struct Done<R: Ring + ?Sized> {
    pub(crate) ticket: R::Ticket,
    pub(crate) outcome: R::Outcome,
}

/// A ring, and those who wait for it.
pub(crate) struct Driver<R: Ring> {
    state: Mutex<State<R>>,
}

/// What stands behind the lock.
struct State<R: Ring> {
    ring: R,
    ops: Slab<Op<R::Ticket>>,
    // Beside the operations, which are moved for each: most have neither.
    works: Beside<R::Work>,
    outcomes: Beside<R::Outcome>,
    // The operation that each of the ring's slots stands for.
    by_slot: Vec<usize>,
    channels: Vec<Channel>,
    in_flight: usize,
    // What has to be announced: sleepers, what is in line, and what is abandoned.
    wanted: usize,
    armed: bool,
    // How long an operation polls before it goes to sleep.
    busy_poll: Duration,
    // To be woken when the lock is free.
    wakers: Vec<Waker>,
}

/// An operation, until its outcome has been taken.
struct Op<T> {
    stage: Stage<T>,
    channel: usize,
    queue: usize,
    waker: Option<Waker>,
}

/// How far an operation is.
#[derive(Clone, Copy)]
enum Stage<T> {
    /// In line for a place in its queue.
    Waiting(Place),
    InFlight(T),
    /// In flight, and nobody wants to know how it ends.
    Abandoned,
    Done,
}

/// A channel: of each of its two queues.
#[derive(Default)]
struct Channel {
    lines: [Line; 2],
    // In flight or in line.
    unfinished: [usize; 2],
    // Waits until nothing is.
    drained: Option<Waker>,
}

impl<R: Ring> Driver<R> {
    pub(crate) fn new(ring: R) -> Self {
        let state = State {
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
        };
        Self {
            state: Mutex::new(state),
        }
    }

    pub(crate) fn set_busy_poll(&self, busy_poll: Duration) {
        self.lock().busy_poll = busy_poll;
    }

    /// Posts work, or puts it in line; its operation.
    #[inline(always)]
    pub(crate) fn start(&self, channel: usize, work: impl Work<R>) -> usize {
        let mut state = self.lock();
        let key = state.start(channel, work);
        self.leave(state);
        key
    }

    /// The outcome of an operation, if it is done; else its task is woken when it is.
    ///
    /// `take` is tried first if it is in flight: it takes it from the ring if it has ended, and polls
    /// once at most. It may give up on any: then the outcome comes the other way.
    #[inline]
    pub(crate) fn poll<T: From<R::Outcome>>(
        &self,
        key: usize,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut R, R::Ticket) -> Poll<T>,
    ) -> Poll<T> {
        let mut state = self.lock();
        if let Some(ticket) = state.in_flight(key) {
            let outcome = take(&mut state.ring, ticket);
            if outcome.is_ready() {
                let waker = state.taken(key);
                self.leave(state);
                // It may hold the last reference to a task.
                drop(waker);
                return outcome;
            }
        }
        self.poll_slowly(state, key, cx)
    }

    #[inline(never)]
    fn poll_slowly<'a, T: From<R::Outcome>>(
        &'a self,
        mut state: MutexGuard<'a, State<R>>,
        key: usize,
        cx: &mut Context<'_>,
    ) -> Poll<T> {
        if !state.is_done(key) && !state.busy_poll.is_zero() {
            state = self.poll_busily(state, key);
        }
        if !state.is_done(key) {
            state.turn(Some(key));
        }
        let (outcome, replaced) = if state.is_done(key) {
            let (outcome, op) = state.remove(key);
            let outcome = outcome.map_or(Poll::Pending, |outcome| Poll::Ready(outcome.into()));
            (outcome, op.waker)
        } else {
            (Poll::Pending, state.set_waker(key, cx.waker()))
        };
        self.leave(state);
        drop(replaced);
        outcome
    }

    /// Nobody wants the operation's outcome any more.
    ///
    /// What is in line is taken out of it. What is in flight stays, with its buffers.
    pub(crate) fn abandon(&self, key: usize) {
        let mut state = self.lock();
        let dropped = state.abandon(key);
        self.leave(state);
        drop(dropped);
    }

    /// The ring's completions are announced.
    pub(crate) fn announced(&self) {
        let mut state = self.lock();
        state.armed = false;
        state.turn(None);
        self.leave(state);
    }

    /// Does something to the ring itself, and deals with what that changes.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut R) -> T) -> T {
        let mut state = self.lock();
        let value = change(&mut state.ring);
        for channel in 0..state.channels.len() {
            state.advance(channel, 0);
            state.advance(channel, 1);
        }
        state.turn(None);
        self.leave(state);
        value
    }

    /// Looks at the ring, and changes nothing.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut R) -> T) -> T {
        look(&mut self.lock().ring)
    }

    /// Waits until nothing is left in these queues of a channel. One task can wait for each channel.
    pub(crate) fn poll_drained(
        &self,
        channel: usize,
        queues: &[usize],
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut state = self.lock();
        // Before the turn, which arms for those who sleep only.
        let replaced = state.set_drained(channel, Some(cx.waker().clone()));
        state.turn(None);
        let unfinished = state.channel(channel).unfinished;
        let (drained, mine) = if queues.iter().all(|queue| unfinished[*queue] == 0) {
            (Poll::Ready(()), state.set_drained(channel, None))
        } else {
            (Poll::Pending, None)
        };
        self.leave(state);
        drop((replaced, mine));
        drained
    }

    /// Polls for a while before anything is armed. Others can get the lock in between.
    #[cold]
    fn poll_busily<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<R>>,
        key: usize,
    ) -> MutexGuard<'a, State<R>> {
        let start = Instant::now();
        loop {
            state.collect(Some(key));
            if state.is_done(key) || start.elapsed() >= state.busy_poll {
                return state;
            }
            self.leave(state);
            hint::spin_loop();
            state = self.lock();
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks, and wakes whom was noted.
    #[inline]
    fn leave(&self, state: MutexGuard<'_, State<R>>) {
        if !state.wakers.is_empty() {
            self.wake(state);
        }
    }

    #[inline(never)]
    fn wake(&self, mut state: MutexGuard<'_, State<R>>) {
        let mut wakers = mem::take(&mut state.wakers);
        drop(state);
        crate::wake::all(wakers.drain(..));
        // The room is used again: waking allocates nothing.
        let mut state = self.lock();
        if state.wakers.capacity() < wakers.capacity() {
            wakers.append(&mut state.wakers);
            mem::swap(&mut state.wakers, &mut wakers);
        }
    }
}

impl<R: Ring> State<R> {
    /// Posts work, or puts it in line, or has it refused.
    #[inline(always)]
    fn start(&mut self, channel: usize, mut work: impl Work<R>) -> usize {
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
    fn in_flight(&self, key: usize) -> Option<R::Ticket> {
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
    fn taken(&mut self, key: usize) -> Option<Waker> {
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
    fn turn(&mut self, own: Option<usize>) {
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
    fn collect(&mut self, own: Option<usize>) -> bool {
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
    fn set_drained(&mut self, channel: usize, waker: Option<Waker>) -> Option<Waker> {
        self.wanted += usize::from(waker.is_some());
        let replaced = mem::replace(&mut self.channel(channel).drained, waker);
        self.wanted -= usize::from(replaced.is_some());
        replaced
    }

    /// Posts from the head of a line, as long as there are places.
    fn advance(&mut self, channel: usize, queue: usize) {
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
    fn abandon(&mut self, key: usize) -> Option<Dropped<R>> {
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
    fn is_done(&self, key: usize) -> bool {
        matches!(self.ops.get(key), Some(op) if matches!(op.stage, Stage::Done))
    }

    /// Takes out an operation that is done.
    fn remove(&mut self, key: usize) -> (Option<R::Outcome>, Op<R::Ticket>) {
        (self.outcomes.take(key), self.ops.remove(key))
    }

    /// Has the operation's task woken when it is done. The waker from before is the caller's to
    /// drop.
    fn set_waker(&mut self, key: usize, waker: &Waker) -> Option<Waker> {
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
    fn channel(&mut self, channel: usize) -> &mut Channel {
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
type Dropped<R> = (
    Option<<R as Ring>::Work>,
    Option<<R as Ring>::Outcome>,
    Option<Waker>,
);
