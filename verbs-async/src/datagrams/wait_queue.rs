//! A queue of tasks that sleep until there is something for one of them, first come, first woken.
//!
//! A task that is polled may take what there is, whether or not it was woken for it, so a task that
//! is woken and not polled delays no other. If it finds nothing, it waits again at its old place.

use std::iter;
use std::task::Waker;

use crate::task::line::Line;

/// The tasks that wait.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    sleeping: Line<Waker>,
    /// How many have been woken, and have neither been polled nor dropped since.
    woken: usize,
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.sleeping.is_empty()
    }

    /// Whether a task was woken, and has neither been polled nor dropped since.
    pub(super) const fn has_woken(&self) -> bool {
        self.woken > 0
    }

    /// Tasks that were woken, and have neither been polled nor dropped since, may not come for long.
    pub(super) const fn forget_woken(&mut self) {
        self.woken = 0;
    }

    /// The wakers of at most `available` tasks, without those that are woken already.
    #[must_use = "they are woken without the lock"]
    pub(super) fn wake(&mut self, available: usize) -> impl Iterator<Item = Waker> {
        iter::from_fn(move || {
            if self.woken >= available {
                return None;
            }
            let waker = self.sleeping.pop()?;
            self.woken += 1;
            Some(waker)
        })
    }

    /// The task sleeps: at its place, or at the end if it has none. Returns its previous waker, to be
    /// dropped without the lock.
    pub(super) fn sleep(&mut self, key: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let Some(key) = *key else {
            *key = Some(self.sleeping.push(waker));
            return None;
        };
        let replaced = self.sleeping.put(key, waker);
        self.end_wake_up(replaced.is_none());
        replaced
    }

    /// The task does not wait any more. Returns its waker, to be dropped without the lock.
    pub(super) fn leave(&mut self, key: u64) -> Option<Waker> {
        let waker = self.sleeping.remove(key);
        self.end_wake_up(waker.is_none());
        waker
    }

    fn end_wake_up(&mut self, was_woken: bool) {
        self.woken = self.woken.saturating_sub(usize::from(was_woken));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Lines {
        line: WaitQueue,
        counts: [Arc<Count>; 3],
        keys: [Option<u64>; 3],
    }

    impl Lines {
        fn sleeping() -> Self {
            let mut this = Self {
                line: WaitQueue::default(),
                counts: Default::default(),
                keys: [None; 3],
            };
            (0..3).for_each(|task| this.sleep(task));
            this
        }

        fn sleep(&mut self, task: usize) {
            let waker = Waker::from(Arc::clone(&self.counts[task]));
            drop(self.line.sleep(&mut self.keys[task], waker));
        }

        /// How often each was woken, after this is there.
        fn woken(&mut self, available: usize) -> [usize; 3] {
            self.line.wake(available).for_each(Waker::wake);
            self.counts
                .each_ref()
                .map(|count| count.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn one_waiter_is_woken_for_each_item() {
        let mut lines = Lines::sleeping();
        assert_eq!(lines.woken(0), [0, 0, 0]);
        assert_eq!(lines.woken(1), [1, 0, 0]);
        assert_eq!(lines.woken(1), [1, 0, 0], "the first is woken for it");
        assert_eq!(lines.woken(2), [1, 1, 0]);
        assert_eq!(lines.woken(usize::MAX), [1, 1, 1]);
        assert!(lines.line.is_empty());
    }

    #[test]
    fn woken_task_that_is_dropped_passes_it_on() {
        let mut lines = Lines::sleeping();
        assert_eq!(lines.woken(1), [1, 0, 0]);
        assert!(lines.line.leave(lines.keys[0].unwrap()).is_none());
        assert!(lines.line.leave(lines.keys[1].unwrap()).is_some());
        assert_eq!(lines.woken(1), [1, 0, 1]);
    }

    #[test]
    fn woken_task_that_finds_nothing_has_its_old_place() {
        let mut lines = Lines::sleeping();
        assert_eq!(lines.woken(1), [1, 0, 0]);
        lines.sleep(0);
        lines.sleep(1);
        assert_eq!(lines.woken(1), [2, 0, 0]);
        assert_eq!(lines.woken(2), [2, 1, 0]);
    }
}
