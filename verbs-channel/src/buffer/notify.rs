//! Tasks that wait until something is given back: any of them may want it, so all are woken.

use std::mem;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::atomic::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, discard, fence, wake};

/// Counts what is given back while tasks [watch](Watch), and wakes them.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    /// How many tasks watch: while there are none, nothing is locked or counted.
    watches: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    next: u64,
    /// Wakers of sleeping tasks, with the numbers of their watches.
    sleeping: Vec<(u64, Waker)>,
}

/// Wakes its task when a buffer is returned after the watch was created.
#[derive(Debug)]
pub(crate) struct Watch {
    returns: Arc<Returns>,
    number: u64,
    /// The count when the task looked.
    seen: u64,
}

impl Returns {
    /// Something has been given back: what was done before is seen by tasks that look after their wake-up.
    #[inline]
    pub(crate) fn notify(&self) {
        // Either this thread sees the watch, or the task sees what this thread did before.
        fence(Ordering::SeqCst);
        if self.watches.load(Ordering::Relaxed) > 0 {
            self.wake_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_all(&self) {
        let mut state = self.lock();
        state.count += 1;
        let sleeping = mem::take(&mut state.sleeping);
        drop(state);
        // Wakers are woken and dropped without the lock.
        sleeping.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// Watches from now on. Buffers returned before are in the pool already.
    pub(crate) fn watch(this: &Arc<Self>) -> Watch {
        this.watches.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut state = this.lock();
        state.next += 1;
        let (number, seen) = (state.next, state.count);
        drop(state);
        Watch {
            returns: Arc::clone(this),
            number,
            seen,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Ready when something was given back since the watch was created, or since this was ready.
    pub(crate) fn poll_returned(&mut self, context: &Context<'_>) -> Poll<()> {
        // Wakers are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut state = self.returns.lock();
        if state.count != self.seen {
            self.seen = state.count;
            drop(state);
            // It is reported once: a panic would keep the task asleep.
            discard(waker);
            return Poll::Ready(());
        }
        let place = state.place(self.number);
        let replaced = match place {
            Some(at) => Some(mem::replace(&mut state.sleeping[at].1, waker)),
            None => {
                state.sleeping.push((self.number, waker));
                None
            }
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl State {
    fn place(&self, number: u64) -> Option<usize> {
        self.sleeping.iter().position(|(of, _)| *of == number)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.returns.lock();
        let place = state.place(self.number);
        let sleeping = place.map(|at| state.sleeping.swap_remove(at));
        drop(state);
        sleeping.into_iter().for_each(|(_, waker)| discard(waker));
        self.returns.watches.fetch_sub(1, Ordering::Relaxed);
    }
}
