//! Deferred actions: wake-ups, log lines and drops that wait until a lock is free.

use std::fmt;
use std::task::Waker;

use super::sync::{Mutex, MutexGuard};
use super::wake::{drop_guarded, log_error, wake_all};

/// Work deferred until the lock is free: tasks to wake, lines for the log, and garbage of this
/// type.
pub(crate) struct Deferred<T> {
    actions: Vec<Action>,
    // Dropped one by one: two panics at once would abort the process.
    garbage: Vec<T>,
    // Some of it was taken, and is being dropped.
    is_dropping: bool,
    // A thread runs the actions: it also runs those that are added meanwhile.
    is_waking: bool,
    // A helper thread will run what another has left.
    is_handed_on: bool,
}

/// A deferred action.
enum Action {
    Wake(Waker),
    Log(LogLine),
}

/// A line for the log, formatted when it is written.
pub(crate) type LogLine = Box<dyn fmt::Display + Send>;

/// A state behind a lock, under which actions are deferred.
pub(crate) trait Defers: Sized {
    /// Values to drop after unlocking.
    type Garbage;
    /// Keeps the lock for a helper thread.
    type Owner;

    fn deferred(&mut self) -> &mut Deferred<Self::Garbage>;

    /// Whether there is something to do before the lock is free.
    fn is_due(&self) -> bool;

    /// Defers what has become due. It may unlock meanwhile.
    fn defer_due<'a>(_lock: &'a Mutex<Self>, state: MutexGuard<'a, Self>) -> MutexGuard<'a, Self> {
        state
    }

    fn owner(&self) -> Option<Self::Owner>;

    /// Has a helper thread call [`continue_waking`], without the lock. Returns whether one will.
    fn continue_elsewhere(owner: Self::Owner) -> bool;
}

impl<T> Deferred<T> {
    pub(crate) const fn new() -> Self {
        Self {
            actions: Vec::new(),
            garbage: Vec::new(),
            is_dropping: false,
            is_waking: false,
            is_handed_on: false,
        }
    }

    pub(crate) fn wake(&mut self, waker: Waker) {
        self.actions.push(Action::Wake(waker));
    }

    pub(crate) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.actions.extend(wakers.into_iter().map(Action::Wake));
    }

    pub(crate) fn log(&mut self, line: LogLine) {
        self.actions.push(Action::Log(line));
    }

    /// Values to drop after unlocking.
    pub(crate) const fn garbage(&mut self) -> &mut Vec<T> {
        &mut self.garbage
    }

    /// Whether all garbage has been dropped.
    pub(crate) const fn is_dropped(&self) -> bool {
        self.garbage.is_empty() && !self.is_dropping
    }

    /// Whether there is something that no thread is running.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        let is_empty = self.actions.is_empty() && self.garbage.is_empty();
        !is_empty && !self.is_waking
    }

    /// Whether a thread runs the actions, and drops the garbage.
    #[inline]
    pub(crate) const fn is_waking(&self) -> bool {
        self.is_waking
    }
}

/// Unlocks, runs the deferred actions, and drops the garbage.
///
/// A task that is woken may come back here in place, and defer more. Those actions are left to the
/// first thread. So nothing recurses, however many tasks are woken.
///
/// That thread runs what there is now, and about [`MOST`] actions and drops that are added meanwhile. It leaves
/// the rest to a helper thread. If none can be started, it continues until there are none.
pub(crate) fn wake_after_unlock<'a, S: Defers>(lock: &'a Mutex<S>, state: MutexGuard<'a, S>) {
    take_turns(lock, state, MOST);
}

/// Continues with what another thread has left, on a helper thread.
pub(crate) fn continue_waking<S: Defers>(lock: &Mutex<S>) {
    let mut state = lock.lock();
    state.deferred().is_handed_on = false;
    if state.is_due() {
        take_turns(lock, state, MOST_ELSEWHERE);
    }
}

fn take_turns<'a, S: Defers>(lock: &'a Mutex<S>, mut state: MutexGuard<'a, S>, most: usize) {
    while let Some(mut left) = wake_some(lock, state, most) {
        if !left.is_due() || left.deferred().is_handed_on {
            return;
        }
        let owner = left.owner();
        left.deferred().is_handed_on = owner.is_some();
        // The helper thread may come before this returns.
        drop(left);
        if owner.is_some_and(S::continue_elsewhere) {
            return;
        }
        state = lock.lock();
        state.deferred().is_handed_on = false;
    }
}

/// Unlocks, and runs what there is now, unless a helper thread will, and about `most` actions and drops that are
/// added meanwhile. Returns the lock if something may be left.
///
/// Actions are run in batches. So their vector keeps its capacity, and waking allocates nothing.
fn wake_some<'a, S: Defers>(
    lock: &'a Mutex<S>,
    state: MutexGuard<'a, S>,
    most: usize,
) -> Option<MutexGuard<'a, S>> {
    let mut state = S::defer_due(lock, state);
    let deferred = state.deferred();
    if deferred.is_waking {
        return None;
    }
    let own = match deferred.is_handed_on {
        true => 0,
        false => deferred.actions.len() + deferred.garbage.len(),
    };
    let mut left = most + own;
    loop {
        let deferred = state.deferred();
        let mut batch = [const { None }; BATCH];
        let mut count = deferred.actions.len().min(BATCH);
        for (place, action) in batch.iter_mut().zip(deferred.actions.drain(..count)) {
            *place = Some(action);
        }
        let garbage = deferred.garbage.pop();
        deferred.is_dropping = garbage.is_some();
        deferred.is_waking = count > 0 || garbage.is_some();
        if !deferred.is_waking {
            return None;
        }
        drop(state);
        let wakers = batch
            .into_iter()
            .flatten()
            .filter_map(|action| match action {
                Action::Wake(waker) => Some(waker),
                Action::Log(line) => {
                    log_error(format_args!("{line}"));
                    None
                }
            });
        wake_all(wakers);
        state = match garbage {
            Some(first) => drop_some(lock, first, &mut count),
            None => lock.lock(),
        };
        state.deferred().is_dropping = false;
        state = S::defer_due(lock, state);
        left = left.saturating_sub(count);
        if left == 0 {
            state.deferred().is_waking = false;
            return Some(state);
        }
    }
}

/// Drops garbage, and counts it.
#[cold]
fn drop_some<'a, S: Defers>(
    lock: &'a Mutex<S>,
    first: S::Garbage,
    count: &mut usize,
) -> MutexGuard<'a, S> {
    let mut garbage = first;
    for _ in 1..BATCH {
        drop_guarded(garbage);
        *count += 1;
        let mut state = lock.lock();
        match state.deferred().garbage.pop() {
            Some(next) => garbage = next,
            None => return state,
        }
    }
    drop_guarded(garbage);
    *count += 1;
    lock.lock()
}

/// How many actions are run before the lock is taken again, and how much garbage is dropped after them.
const BATCH: usize = 16;

/// How many actions that are added meanwhile a thread runs, if it came for something else.
const MOST: usize = 64;

/// How many a helper thread runs before others get their turn.
const MOST_ELSEWHERE: usize = 64 * MOST;
