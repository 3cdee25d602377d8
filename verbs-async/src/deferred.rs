//! What is deferred under a lock until it is free.

use std::fmt;
use std::task::Waker;

use crate::wake::{drop_guarded, log_error, wake_all};

/// What is deferred under a lock until it is free: tasks to wake, and lines for the log.
pub(crate) struct Deferred {
    actions: Vec<Action>,
    // A thread carries them out: it carries out what is added meanwhile, too.
    is_waking: bool,
}

/// One of them.
enum Action {
    Wake(Waker),
    Log(LogLine),
}

/// A line for the log, written when it is displayed.
pub(crate) type LogLine = Box<dyn fmt::Display + Send>;

impl Deferred {
    pub(crate) const fn new() -> Self {
        Self {
            actions: Vec::new(),
            is_waking: false,
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

    /// Whether there is something that no thread carries out yet.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        !self.actions.is_empty() && !self.is_waking
    }

    /// Whether a thread carries out what is deferred, and drops the garbage.
    #[inline]
    pub(crate) const fn is_waking(&self) -> bool {
        self.is_waking
    }
}

/// Unlocks, and carries out what was deferred under the lock; then drops the garbage.
///
/// A task that is woken may come back here at once, in place, and defer more. That is left to the
/// first thread, which goes on until nothing is left: so nothing recurses, however many tasks are
/// woken.
///
/// Many are woken some at a time: so the room for them stays where it is, and waking allocates
/// nothing, whatever those tasks do meanwhile.
pub(crate) fn wake_after_unlock<G, T>(
    mut state: G,
    deferred_in: impl Fn(&mut G) -> &mut Deferred,
    garbage_in: impl Fn(&mut G) -> Option<T>,
    lock: impl Fn() -> G,
) {
    if deferred_in(&mut state).is_waking {
        return;
    }
    loop {
        let deferred = deferred_in(&mut state);
        let mut some = [const { None }; AT_ONCE];
        let count = deferred.actions.len().min(AT_ONCE);
        for (place, action) in some.iter_mut().zip(deferred.actions.drain(..count)) {
            *place = Some(action);
        }
        deferred.is_waking = true;
        let garbage = if count == 0 {
            garbage_in(&mut state)
        } else {
            None
        };
        if count == 0 && garbage.is_none() {
            deferred_in(&mut state).is_waking = false;
            return;
        }
        drop(state);
        let wakers = some
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
        drop_guarded(garbage);
        state = lock();
    }
}

/// Actions that are carried out before the lock is taken again.
const AT_ONCE: usize = 16;
