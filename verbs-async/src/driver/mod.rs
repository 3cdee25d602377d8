//! The driver: which operations wait for what, and which tasks are woken.
//!
//! No task has the role of the driver, so none can fall asleep in it, be leaked with it, or keep it
//! without being polled. Each operation that is polled and has not completed drives, and so does the
//! notifier's waker, by [`Driver::announced`]. Both do the same:
//!
//! ```text
//! poll the queue until it is empty ──► defer the waker of each operation that has completed, whose
//!   │                                  outcome stays in its slot; post from the backlogs
//!   ▼ empty, some task waits, not armed
//! arm, and poll once more
//!   ▼ empty again: the next completion raises an event
//! unlock, and wake
//! ```
//!
//! An operation whose completion is there when it is first polled takes it: as long as no task waits,
//! there is nothing else to do, and no table to keep.
//!
//! *Invariant:* when the lock is free and some task waits, then all known completions have been
//! dispatched, and the queue is armed or an event is on its way.
//!
//! *Invariant:* a task that is woken may drive in place, and find more to wake: it leaves them to the
//! thread that has woken it. So nothing recurses, and a waker that does long work delays others.
//!
//! *Invariant:* no waker is cloned, woken or dropped, no outcome dropped, nothing logged, and no
//! notifier called, under the lock.

use std::hint;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard};
use crate::{deferred, wake};
use state::{State, Wait};

mod backlog;
mod queueing;
mod state;
mod work;

pub(crate) use work::{End, Ring, Started, Submission, Work};

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
        self.state.lock().busy_poll = busy_poll;
    }

    /// Posts work, or puts it in line behind less than `backlog` others, or refuses it; where it is.
    #[inline(always)]
    pub(crate) fn start(
        &self,
        channel: R::Channel,
        work: impl Work<R>,
        backlog: usize,
    ) -> Submission<R::Ticket> {
        let mut state = self.state.lock();
        let submission = state.start(channel, work, backlog);
        if let Submission::Queued(_) = submission {
            self.unlock(state);
        }
        submission
    }

    /// Takes the end of an operation, if it is there; polls once at most.
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

    /// How an operation has ended whose end was not there to [take](Self::take); its task is woken when
    /// it is.
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

    /// Nobody wants the operation's outcome any more.
    ///
    /// What is in line is taken out of it. What is in flight stays, with its buffers.
    pub(crate) fn abandon(&self, submission: Submission<R::Ticket>) {
        let mut state = self.state.lock();
        state.abandon(submission);
        self.unlock(state);
    }

    /// The ring's completions are announced.
    pub(crate) fn announced(&self) {
        let mut state = self.state.lock();
        state.armed = false;
        state.drive(None);
        self.unlock(state);
    }

    /// Does something to the ring that may change what its channels take, of one or of all.
    pub(crate) fn with<T>(
        &self,
        channel: Option<R::Channel>,
        change: impl FnOnce(&mut R) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let value = change(&mut state.ring);
        match channel {
            Some(channel) => state.capacity_freed(R::index(channel)),
            None => (0..state.channels()).for_each(|index| state.capacity_freed(index)),
        }
        state.drive(None);
        self.unlock(state);
        value
    }

    /// Looks at the ring, or does to it what ends nothing and makes no room.
    pub(crate) fn with_ring<T>(&self, look: impl FnOnce(&mut R) -> T) -> T {
        look(&mut self.state.lock().ring)
    }

    /// Waits until less than `backlog` is in line for a channel's queue. Who waits has a key, and
    /// [leaves](Self::forget_room) with it.
    pub(crate) fn poll_room(
        &self,
        channel: R::Channel,
        queue: usize,
        backlog: usize,
        key: &mut Option<usize>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        let line = state.backlog_of(R::index(channel), queue);
        let (polled, replaced) = if line.len() < backlog {
            (Poll::Ready(()), Some(waker))
        } else {
            (Poll::Pending, line.wait_for_room(key, backlog, waker))
        };
        self.unlock(state);
        wake::drop_guarded(replaced);
        polled
    }

    /// Whoever has this key waits for room no more.
    pub(crate) fn forget_room(&self, channel: R::Channel, queue: usize, key: usize) {
        let mut state = self.state.lock();
        let waker = state.backlog_of(R::index(channel), queue).forget_room(key);
        self.unlock(state);
        wake::drop_guarded(waker);
    }

    /// Does what became due while this thread [held](wake::hold) wake-ups back.
    pub(crate) fn settle(&self) {
        let state = self.state.lock();
        self.unlock(state);
    }

    /// Waits until nothing is left in these queues of a channel. One task can wait for each channel.
    pub(crate) fn poll_drained(
        &self,
        channel: R::Channel,
        queues: [bool; 2],
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        let replaced = if state.is_empty(channel, queues) {
            Some(waker)
        } else {
            // Before the turn, which arms for those who wait only.
            let replaced = state.set_drained(R::index(channel), Some((waker, channel, queues)));
            state.drive(None);
            replaced
        };
        let (drained, mine) = if state.is_empty(channel, queues) {
            (Poll::Ready(()), state.set_drained(R::index(channel), None))
        } else {
            (Poll::Pending, None)
        };
        self.unlock(state);
        wake::drop_guarded(replaced);
        wake::drop_guarded(mine);
        drained
    }

    /// Polls for a while before anything is armed. Others can get the lock in between.
    #[cold]
    fn poll_busily<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<R>>,
        submission: Submission<R::Ticket>,
    ) -> (MutexGuard<'a, State<R>>, Option<R::Outcome>) {
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

    /// Unlocks when an outcome has been taken from a slot.
    #[inline(always)]
    fn unlock_after_take(&self, state: MutexGuard<'_, State<R>>, ticket: R::Ticket) {
        // Else nobody waited, so nothing is due.
        if state.waiters > 0 && state.matters(ticket) {
            self.finish_take(state, ticket);
        }
    }

    #[inline(never)]
    fn finish_take(&self, mut state: MutexGuard<'_, State<R>>, ticket: R::Ticket) {
        let wait = state.stop_waiting(ticket);
        state.capacity_freed(R::index(R::channel(ticket)));
        self.unlock(state);
        wake::drop_guarded(wait);
    }

    /// Unlocks, and does what is due.
    #[inline(always)]
    fn unlock(&self, state: MutexGuard<'_, State<R>>) {
        if state.is_due() {
            self.unlock_and_wake(state);
        }
    }

    #[inline(never)]
    fn unlock_and_wake(&self, mut state: MutexGuard<'_, State<R>>) {
        if wake::are_held() {
            // It stays due: whoever unlocks next does it, and this thread in `settle`.
            return;
        }
        if state.waiters > 0 {
            state.dispatch_known();
        }
        while let Some(line) = state.ring.next_log_line() {
            state.deferred.log(line);
        }
        deferred::wake_after_unlock(
            state,
            |state| &mut state.deferred,
            |state| state.garbage.pop(),
            || self.state.lock(),
        );
    }
}
