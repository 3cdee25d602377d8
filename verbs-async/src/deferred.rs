//! Deferred actions: wake-ups and log lines that wait until a lock is free.

use std::fmt;
use std::task::Waker;

use crate::wake::{drop_guarded, log_error, wake_all};

/// Actions that are deferred until the lock is free: tasks to wake, and lines for the log.
pub(crate) struct Deferred {
    actions: Vec<Action>,
    // A thread runs the actions: it also runs those that are added meanwhile.
    is_waking: bool,
    // A helper thread will run what another has left.
    pub(crate) is_handed_on: bool,
}

/// A deferred action.
enum Action {
    Wake(Waker),
    Log(LogLine),
}

/// A line for the log, formatted when it is written.
pub(crate) type LogLine = Box<dyn fmt::Display + Send>;

impl Deferred {
    pub(crate) const fn new() -> Self {
        Self {
            actions: Vec::new(),
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

    /// How many actions there are that a thread runs in any case: all, unless a helper thread comes.
    pub(crate) const fn own(&self) -> usize {
        if self.is_handed_on {
            0
        } else {
            self.actions.len()
        }
    }

    /// Whether there are actions that no thread is running.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        !self.actions.is_empty() && !self.is_waking
    }

    /// Whether a thread runs the actions, and drops the garbage.
    #[inline]
    pub(crate) const fn is_waking(&self) -> bool {
        self.is_waking
    }
}

/// Unlocks, and runs the deferred actions. Drops the garbage, too, some in each round.
///
/// A task that is woken may come back here in place, and defer more. Those actions are left to the
/// first thread, which continues until there are none. So nothing recurses, however many tasks are
/// woken.
///
/// Actions are run in batches. So their vector keeps its capacity, and waking allocates nothing.
pub(crate) fn wake_after_unlock<G, T>(
    state: G,
    deferred_in: impl Fn(&mut G) -> &mut Deferred,
    garbage_in: impl Fn(&mut G) -> Option<T>,
    lock: impl Fn() -> G,
) {
    // There are none left.
    wake_some_after_unlock(state, deferred_in, garbage_in, lock, usize::MAX);
}

/// [`wake_after_unlock`], but returns the lock after about `most` actions and drops. What is left then is due
/// again: any thread that unlocks continues.
pub(crate) fn wake_some_after_unlock<G, T>(
    mut state: G,
    deferred_in: impl Fn(&mut G) -> &mut Deferred,
    garbage_in: impl Fn(&mut G) -> Option<T>,
    lock: impl Fn() -> G,
    most: usize,
) -> Option<G> {
    if deferred_in(&mut state).is_waking {
        return None;
    }
    let mut left = most;
    loop {
        let deferred = deferred_in(&mut state);
        let mut batch = [const { None }; BATCH];
        let mut count = deferred.actions.len().min(BATCH);
        for (place, action) in batch.iter_mut().zip(deferred.actions.drain(..count)) {
            *place = Some(action);
        }
        deferred.is_waking = true;
        let garbage = garbage_in(&mut state);
        if count == 0 && garbage.is_none() {
            deferred_in(&mut state).is_waking = false;
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
            Some(first) => drop_some(first, &garbage_in, &lock, &mut count),
            None => lock(),
        };
        left = left.saturating_sub(count);
        if left == 0 {
            deferred_in(&mut state).is_waking = false;
            return Some(state);
        }
    }
}

/// Drops garbage, and counts it.
#[cold]
fn drop_some<G, T>(
    first: T,
    garbage_in: impl Fn(&mut G) -> Option<T>,
    lock: impl Fn() -> G,
    count: &mut usize,
) -> G {
    let mut garbage = first;
    for _ in 0..BATCH {
        drop_guarded(garbage);
        *count += 1;
        let mut state = lock();
        match garbage_in(&mut state) {
            Some(next) => garbage = next,
            None => return state,
        }
    }
    drop_guarded(garbage);
    lock()
}

/// How many actions are run before the lock is taken again, and how much garbage is dropped after them.
const BATCH: usize = 16;
