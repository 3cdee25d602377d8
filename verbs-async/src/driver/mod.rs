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

use std::hint;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard, PoisonError};
use state::State;

mod beside;
mod line;
mod state;
mod work;

pub(crate) use work::{Done, Ring, Started, Work};

/// A ring, and those who wait for it.
pub(crate) struct Driver<R: Ring> {
    state: Mutex<State<R>>,
}

impl<R: Ring> Driver<R> {
    pub(crate) fn new(ring: R) -> Self {
        Self {
            state: Mutex::new(State::new(ring)),
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
    fn wake(&self, state: MutexGuard<'_, State<R>>) {
        crate::noted::wake(state, |state| &mut state.wakers, || self.lock());
    }
}
