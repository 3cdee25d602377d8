//! The driver: which operations wait for what, and who is woken.
//!
//! There is no task that drives and could fall asleep, be leaked or never be polled again: whoever
//! is here drives. That is each operation that is polled and not done, and the notifier's waker,
//! which comes in through [`Driver::announced`]. Both do the same:
//!
//! ```text
//! poll the queue until it is empty ──► note the waker of each that has ended, whose outcome stays in
//!   │                                  its slot; post what waits in line for the places it left
//!   ▼ empty, somebody waits, not armed
//! arm, and poll once more
//!   ▼ empty again: the next completion will be announced
//! unlock, and wake whom was noted
//! ```
//!
//! Whose completion is there when it first looks, takes it: as long as nobody waits for anything,
//! there is nothing else to do, and no table to keep.
//!
//! *Invariant:* when the lock is free and somebody waits, then all that is known to have ended has
//! been noticed, and the queue is armed or an announcement is on its way.
//!
//! *Invariant:* a task that is woken may drive in place, and find others: it leaves them to whoever
//! has woken it. So nothing recurses, and a waker that does long work delays others.
//!
//! *Invariant:* no waker is cloned, woken or dropped, no outcome dropped, and no notifier called,
//! under the lock.

use std::hint;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard};
use crate::{noted, wake};
use state::{State, Wait};

mod line;
mod state;
mod work;

pub(crate) use work::{Begun, End, Ring, Started, Work};

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
    ) -> Begun<R::Ticket> {
        let mut state = self.state.lock();
        let begun = state.start(channel, work, backlog);
        if let Begun::InLine(_) = begun {
            self.leave(state);
        }
        begun
    }

    /// Takes the end of an operation, if it is there; polls once at most.
    #[inline(always)]
    pub(crate) fn take<E: End<R>>(&self, begun: &Begun<R::Ticket>) -> Option<E::Taken> {
        let Begun::Posted(ticket) = *begun else {
            return None;
        };
        let mut state = self.state.lock();
        let taken = E::poll(&mut state.ring, ticket);
        if taken.is_some() {
            self.leave_taken(state, ticket);
        } else {
            self.leave(state);
        }
        taken
    }

    /// How an operation has ended whose end was not there to [take](Self::take); its task is woken when
    /// it is.
    #[inline(never)]
    pub(crate) fn wait(&self, begun: &Begun<R::Ticket>, cx: &mut Context<'_>) -> Poll<R::Outcome> {
        let (begun, waker) = (*begun, cx.waker().clone());
        let mut state = self.state.lock();
        let mut outcome = state.outcome(begun);
        if outcome.is_none() && !state.busy_poll.is_zero() {
            (state, outcome) = self.poll_busily(state, begun);
        }
        if outcome.is_none() {
            state.turn(Some(begun));
            outcome = state.outcome(begun);
        }
        let replaced = match outcome {
            None => state.set_waker(begun, waker),
            Some(_) => Some(Wait::Task(waker)),
        };
        self.leave(state);
        wake::let_go(replaced);
        outcome.map_or(Poll::Pending, Poll::Ready)
    }

    /// Nobody wants the operation's outcome any more.
    ///
    /// What is in line is taken out of it. What is in flight stays, with its buffers.
    pub(crate) fn abandon(&self, begun: Begun<R::Ticket>) {
        let mut state = self.state.lock();
        state.abandon(begun);
        self.leave(state);
    }

    /// The ring's completions are announced.
    pub(crate) fn announced(&self) {
        let mut state = self.state.lock();
        state.armed = false;
        state.turn(None);
        self.leave(state);
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
            Some(channel) => state.changed(R::index(channel)),
            None => (0..state.channels()).for_each(|index| state.changed(index)),
        }
        state.turn(None);
        self.leave(state);
        value
    }

    /// Looks at the ring, or does to it what ends nothing and makes no room.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut R) -> T) -> T {
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
        let line = state.line(R::index(channel), queue);
        let (polled, replaced) = if line.len() < backlog {
            (Poll::Ready(()), Some(waker))
        } else {
            (Poll::Pending, line.wait_for_room(key, backlog, waker))
        };
        self.leave(state);
        wake::let_go(replaced);
        polled
    }

    /// Whoever has this key waits for room no more.
    pub(crate) fn forget_room(&self, channel: R::Channel, queue: usize, key: usize) {
        let mut state = self.state.lock();
        let waker = state.line(R::index(channel), queue).forget_room(key);
        self.leave(state);
        wake::let_go(waker);
    }

    /// Does what became due while this thread [held](wake::hold) wake-ups back.
    pub(crate) fn settle(&self) {
        let state = self.state.lock();
        self.leave(state);
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
            state.turn(None);
            replaced
        };
        let (drained, mine) = if state.is_empty(channel, queues) {
            (Poll::Ready(()), state.set_drained(R::index(channel), None))
        } else {
            (Poll::Pending, None)
        };
        self.leave(state);
        wake::let_go(replaced);
        wake::let_go(mine);
        drained
    }

    /// Polls for a while before anything is armed. Others can get the lock in between.
    #[cold]
    fn poll_busily<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<R>>,
        begun: Begun<R::Ticket>,
    ) -> (MutexGuard<'a, State<R>>, Option<R::Outcome>) {
        let start = Instant::now();
        loop {
            state.collect(Some(begun));
            let outcome = state.outcome(begun);
            if outcome.is_some() || start.elapsed() >= state.busy_poll {
                return (state, outcome);
            }
            self.leave(state);
            hint::spin_loop();
            state = self.state.lock();
        }
    }

    /// Unlocks when an outcome has been taken from a slot.
    #[inline(always)]
    fn leave_taken(&self, state: MutexGuard<'_, State<R>>, ticket: R::Ticket) {
        // Else nobody waited, so nothing is due.
        if state.wanted > 0 && state.matters(ticket) {
            self.taken(state, ticket);
        }
    }

    #[inline(never)]
    fn taken(&self, mut state: MutexGuard<'_, State<R>>, ticket: R::Ticket) {
        let wait = state.unwait(ticket);
        state.changed(R::index(R::channel(ticket)));
        self.leave(state);
        wake::let_go(wait);
    }

    /// Unlocks, and does what is due.
    #[inline(always)]
    fn leave(&self, state: MutexGuard<'_, State<R>>) {
        if state.is_due() {
            self.leave_slowly(state);
        }
    }

    #[inline(never)]
    fn leave_slowly(&self, mut state: MutexGuard<'_, State<R>>) {
        if wake::are_held() {
            // It stays due: whoever unlocks next does it, and this thread in `settle`.
            return;
        }
        if state.wanted > 0 {
            state.notice_all();
        }
        while let Some(words) = state.ring.next_words() {
            state.noted.push(words);
        }
        noted::wake(
            state,
            |state| &mut state.noted,
            |state| state.spent.pop(),
            || self.state.lock(),
        );
    }
}
