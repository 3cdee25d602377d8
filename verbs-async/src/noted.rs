//! What is deferred under a lock until it is free: tasks to wake, and what is to be dropped.

use std::task::Waker;

/// Tasks to wake once the lock is free.
pub(crate) struct Deferred {
    wakers: Vec<Waker>,
    // Somebody wakes them: what is noted meanwhile is theirs to wake.
    is_waking: bool,
}

impl Deferred {
    pub(crate) const fn new() -> Self {
        Self {
            wakers: Vec::new(),
            is_waking: false,
        }
    }

    pub(crate) fn push(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    pub(crate) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.wakers.extend(wakers);
    }

    /// Whether something is noted that nobody wakes yet.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        !self.wakers.is_empty() && !self.is_waking
    }

    /// Whether somebody wakes what is deferred, and drops what is spent.
    #[inline]
    pub(crate) const fn is_waking(&self) -> bool {
        self.is_waking
    }
}

/// Unlocks, and wakes the tasks that were noted under the lock; drops what is spent when there are
/// none left.
///
/// Those who are woken may come back here at once, in place, and note others. They leave them to the
/// first, which goes on until nothing is left: so nothing recurses, however many are woken.
///
/// If they are many it is some at a time: so the room for them stays where it is, and waking
/// allocates nothing, whatever those who are woken do meanwhile.
pub(crate) fn wake<G, T>(
    mut state: G,
    deferred_in: impl Fn(&mut G) -> &mut Deferred,
    spent_in: impl Fn(&mut G) -> Option<T>,
    lock: impl Fn() -> G,
) {
    if deferred_in(&mut state).is_waking {
        return;
    }
    loop {
        let noted = deferred_in(&mut state);
        let mut some = [const { None }; AT_ONCE];
        let count = deferred.wakers.len().min(AT_ONCE);
        for (place, waker) in some.iter_mut().zip(deferred.wakers.drain(..count)) {
            *place = Some(waker);
        }
        deferred.is_waking = true;
        let spent = if count == 0 {
            spent_in(&mut state)
        } else {
            None
        };
        if count == 0 && spent.is_none() {
            deferred_in(&mut state).is_waking = false;
            return;
        }
        drop(state);
        crate::wake::wake_all(some.into_iter().flatten());
        crate::wake::drop_guarded(spent);
        state = lock();
    }
}

/// How many are woken before the lock is taken again.
const AT_ONCE: usize = 16;
