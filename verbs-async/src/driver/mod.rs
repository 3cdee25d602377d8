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
use line::Line;

mod line;

/// What is driven: a completion queue and what is posted to it.
pub(crate) trait Ring {
    /// What to do.
    type Work;
    /// How it ended.
    type Outcome;

    /// Which of the channel's two queues the work is for.
    fn queue(work: &Self::Work) -> usize;

    /// Posts work.
    fn start(&mut self, channel: usize, work: Self::Work) -> Started<Self>;

    /// Takes something that is done; polls if it knows of nothing. `None` if the queue is empty.
    fn next_done(&mut self) -> Option<Done<Self::Outcome>>;

    /// Has the next completion announced. If that fails, it gives up: everything is done then.
    fn arm(&mut self);
}

/// What became of work that was to be posted.
pub(crate) enum Started<R: Ring + ?Sized> {
    /// It is in flight, under this number.
    Posted(usize),
    /// There is no place for it yet.
    Full(R::Work),
    /// It can't be done.
    Refused(R::Outcome),
}

/// Something that is done.
pub(crate) struct Done<O> {
    /// The number under which it was in flight.
    pub(crate) slot: usize,
    /// Its channel.
    pub(crate) channel: usize,
    pub(crate) outcome: O,
}

/// A ring, and those who wait for it.
pub(crate) struct Driver<R: Ring> {
    state: Mutex<State<R>>,
}

/// What stands behind the lock.
pub(crate) struct State<R: Ring> {
    pub(crate) ring: R,
    ops: Slab<Op<R>>,
    // The operation that each of the ring's numbers stands for.
    by_slot: Vec<usize>,
    channels: Vec<Channel>,
    in_flight: usize,
    armed: bool,
    // How long an operation polls before it goes to sleep.
    busy_poll: Duration,
    // To be woken when the lock is free.
    wakers: Vec<Waker>,
}

/// An operation, until its outcome has been taken.
enum Op<R: Ring> {
    /// It waits for a place, in its line.
    Waiting {
        work: R::Work,
        waker: Option<Waker>,
        place: line::Place,
    },
    InFlight {
        queue: usize,
        waker: Option<Waker>,
    },
    /// In flight, and nobody wants to know how it ends.
    Abandoned {
        queue: usize,
    },
    Done(R::Outcome),
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
            by_slot: Vec::new(),
            channels: Vec::new(),
            in_flight: 0,
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
    pub(crate) fn start(&self, channel: usize, work: R::Work) -> usize {
        let mut state = self.lock();
        let key = state.start(channel, work);
        self.leave(state);
        key
    }

    /// The outcome of an operation, if it is done; else its task is woken when it is.
    pub(crate) fn poll_outcome(&self, key: usize, cx: &mut Context<'_>) -> Poll<R::Outcome> {
        let mut state = self.lock();
        if !state.is_done(key) && !state.busy_poll.is_zero() {
            state = self.poll_busily(state, key);
        }
        if !state.is_done(key) {
            state.turn(Some(key));
        }
        let (outcome, replaced) = match state.take_outcome(key) {
            Some(outcome) => (Poll::Ready(outcome), None),
            None => (Poll::Pending, state.set_waker(key, cx.waker())),
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
        state.turn(None);
        let here = state.channel(channel);
        let (drained, replaced) = if queues.iter().all(|queue| here.unfinished[*queue] == 0) {
            (Poll::Ready(()), here.drained.take())
        } else {
            (Poll::Pending, here.drained.replace(cx.waker().clone()))
        };
        self.leave(state);
        drop(replaced);
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

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks, and wakes whom was noted.
    #[inline]
    fn leave(&self, mut state: MutexGuard<'_, State<R>>) {
        if state.wakers.is_empty() {
            return;
        }
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
    fn start(&mut self, channel: usize, work: R::Work) -> usize {
        let queue = R::queue(&work);
        let in_line = !self.channel(channel).lines[queue].is_empty();
        let started = if in_line {
            Started::Full(work)
        } else {
            self.ring.start(channel, work)
        };
        match started {
            Started::Posted(slot) => {
                let key = self.ops.insert(Op::InFlight { queue, waker: None });
                self.posted(key, slot);
                self.channel(channel).unfinished[queue] += 1;
                key
            }
            Started::Refused(outcome) => self.ops.insert(Op::Done(outcome)),
            Started::Full(work) => {
                let place = line::Place::new(channel, queue);
                let waker = None;
                let key = self.ops.insert(Op::Waiting { work, waker, place });
                self.join_line(key);
                self.channel(channel).unfinished[queue] += 1;
                // There may be room by now; and if not, what makes room has to be announced.
                self.turn(None);
                key
            }
        }
    }

    fn posted(&mut self, key: usize, slot: usize) {
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, usize::MAX);
        }
        self.by_slot[slot] = key;
        self.in_flight += 1;
    }

    /// Drives: see the module. It may stop early when `own` is done: what is left is announced, if
    /// it was armed for.
    fn turn(&mut self, own: Option<usize>) {
        if self.collect(own) || self.armed || self.in_flight == 0 {
            return;
        }
        self.armed = true;
        self.ring.arm();
        self.collect(own);
    }

    /// Polls until the queue is empty, or `own` is done: then it is `true`.
    #[inline]
    fn collect(&mut self, own: Option<usize>) -> bool {
        while let Some(done) = self.ring.next_done() {
            let key = self.file(done);
            if key.is_some() && key == own {
                return true;
            }
        }
        false
    }

    /// Files what is done under its operation, and posts what waits for its place.
    #[inline]
    fn file(&mut self, done: Done<R::Outcome>) -> Option<usize> {
        let key = *self.by_slot.get(done.slot)?;
        let op = self.ops.get_mut(key)?;
        let queue = match mem::replace(op, Op::Done(done.outcome)) {
            Op::InFlight { queue, waker } => {
                self.wakers.extend(waker);
                queue
            }
            Op::Abandoned { queue } => {
                drop(self.ops.remove(key));
                queue
            }
            other => {
                *op = other;
                return None;
            }
        };
        self.in_flight -= 1;
        self.finished(done.channel, queue);
        self.advance(done.channel, queue);
        Some(key)
    }

    fn finished(&mut self, channel: usize, queue: usize) {
        let here = self.channel(channel);
        here.unfinished[queue] -= 1;
        if here.unfinished[queue] == 0 {
            let drained = here.drained.take();
            self.wakers.extend(drained);
        }
    }

    /// Posts from the head of a line, as long as there are places.
    #[inline]
    fn advance(&mut self, channel: usize, queue: usize) {
        while let Some(key) = self.channel(channel).lines[queue].head() {
            let Some(Op::Waiting { .. }) = self.ops.get(key) else {
                return;
            };
            if !self.post_head(key, channel, queue) {
                return;
            }
        }
    }

    /// Posts the head of a line. `false` if there is no place for it yet.
    fn post_head(&mut self, key: usize, channel: usize, queue: usize) -> bool {
        let abandoned = Op::Abandoned { queue };
        let Op::Waiting { work, waker, place } = mem::replace(&mut self.ops[key], abandoned) else {
            return false;
        };
        match self.ring.start(channel, work) {
            Started::Posted(slot) => {
                self.leave_line(place);
                self.ops[key] = Op::InFlight { queue, waker };
                self.posted(key, slot);
                true
            }
            Started::Refused(outcome) => {
                self.leave_line(place);
                self.ops[key] = Op::Done(outcome);
                self.wakers.extend(waker);
                self.finished(channel, queue);
                true
            }
            Started::Full(work) => {
                self.ops[key] = Op::Waiting { work, waker, place };
                false
            }
        }
    }

    /// What has to be dropped, where nothing is locked.
    fn abandon(&mut self, key: usize) -> Option<Op<R>> {
        match self.ops.get_mut(key)? {
            op @ Op::InFlight { .. } => {
                let Op::InFlight { queue, .. } = *op else {
                    return None;
                };
                let op = mem::replace(op, Op::Abandoned { queue });
                // Its buffers are to come back even if nobody waits for anything.
                self.turn(None);
                Some(op)
            }
            Op::Waiting { place, .. } => {
                let place = *place;
                self.leave_line(place);
                let op = self.ops.remove(key);
                self.finished(place.channel, place.queue);
                // It may have been all that kept the next from its place.
                self.advance(place.channel, place.queue);
                Some(op)
            }
            Op::Done(_) => Some(self.ops.remove(key)),
            Op::Abandoned { .. } => None,
        }
    }

    #[inline]
    fn is_done(&self, key: usize) -> bool {
        matches!(self.ops.get(key), Some(Op::Done(_)))
    }

    #[inline]
    fn take_outcome(&mut self, key: usize) -> Option<R::Outcome> {
        if !self.is_done(key) {
            return None;
        }
        match self.ops.remove(key) {
            Op::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Has the operation's task woken when it is done. The waker from before is the caller's to
    /// drop.
    fn set_waker(&mut self, key: usize, waker: &Waker) -> Option<Waker> {
        match self.ops.get_mut(key) {
            Some(Op::InFlight { waker: old, .. } | Op::Waiting { waker: old, .. }) => match old {
                Some(old) if old.will_wake(waker) => None,
                _ => old.replace(waker.clone()),
            },
            _ => None,
        }
    }

    fn channel(&mut self, channel: usize) -> &mut Channel {
        if self.channels.len() <= channel {
            self.channels.resize_with(channel + 1, Channel::default);
        }
        &mut self.channels[channel]
    }
}
