//! One count: its generation, and the tasks that wait for it.

use std::sync::PoisonError;
use std::task::{Poll, Waker};

use super::atomic::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, discard, wake};

/// Set while a counter has it: without it nothing is counted.
const ACTIVE: u64 = 1 << 32;

/// Set while tasks wait.
const WAITING: u64 = 1 << 33;

/// One generation, in the bits above.
const GENERATION: u64 = 1 << 34;

/// A count, in one word with its generation: so none of an earlier generation is counted, whenever a
/// counter ends.
#[derive(Debug)]
pub(super) struct Count {
    word: AtomicU64,
    // The least count that a task waits for, from the time that `WAITING` is set.
    wakes_at: AtomicU32,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    list: Vec<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    key: u64,
    count: u32,
    waker: Waker,
}

impl Count {
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            wakes_at: AtomicU32::new(u32::MAX),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    /// Counts from 0 in this generation.
    pub(super) fn begin(&self, generation: u32) {
        let word = (u64::from(generation) * GENERATION) | ACTIVE;
        self.word.swap(word, Ordering::AcqRel);
    }

    /// Counts no more.
    pub(super) fn end(&self) {
        self.word.swap(0, Ordering::AcqRel);
        // Wakers of futures that were leaked.
        let left = std::mem::take(&mut self.lock().list);
        left.into_iter().for_each(|waiter| discard(waiter.waker));
    }

    /// The count. Data written before it was counted is visible to the caller.
    pub(super) fn get(&self) -> u32 {
        count_of(self.word.load(Ordering::Acquire))
    }

    /// Counts one, if this is the generation.
    #[inline]
    pub(super) fn record(&self, generation: u32) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & ACTIVE == 0 || word / GENERATION != u64::from(generation) {
                return false;
            }
            if count_of(word) == u32::MAX {
                return true;
            }
            // Release: what the caller has seen is visible to who sees the count. Acquire: so is what
            // others have seen before, and what a task that waits has set.
            let next = word + 1;
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    let count = count_of(next);
                    if next & WAITING != 0 && count >= self.wakes_at.load(Ordering::Relaxed) {
                        self.wake(count);
                    }
                    return true;
                }
                Err(other) => word = other,
            }
        }
    }

    /// Ready once `count` was reached. Until then, this waker is kept, to be woken; `key`
    /// identifies it.
    pub(super) fn poll(&self, count: u32, key: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        if self.get() >= count {
            return Poll::Ready(());
        }
        // Nothing is cloned or dropped under the lock: it may be anybody's code.
        let mut spare = Some(waker.clone());
        let mut waiters = self.lock();
        let Waiters { list, next } = &mut *waiters;
        let own = key.and_then(|key| list.iter_mut().find(|waiter| waiter.key == key));
        match (own, spare.take()) {
            (Some(own), Some(waker)) => spare = Some(std::mem::replace(&mut own.waker, waker)),
            (None, Some(waker)) => {
                *key = Some(*next);
                list.push(Waiter {
                    key: *next,
                    count,
                    waker,
                });
                *next += 1;
            }
            (_, None) => {}
        }
        self.set_wakes_at(list);
        // In the order of this word, each record is before this, and seen here; or after this, and sees
        // that a task waits, and for what.
        let word = self.word.fetch_or(WAITING, Ordering::AcqRel);
        drop(waiters);
        drop(spare);
        if count_of(word) >= count {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// The task with this key waits no more.
    pub(super) fn cancel(&self, key: u64) {
        let mut waiters = self.lock();
        let at = waiters.list.iter().position(|waiter| waiter.key == key);
        let waiter = at.map(|at| waiters.list.swap_remove(at));
        self.set_wakes_at(&waiters.list);
        drop(waiters);
        drop(waiter);
    }

    /// Wakes those that wait for this count, or less.
    #[cold]
    fn wake(&self, count: u32) {
        loop {
            let mut waiters = self.lock();
            let due = |waiter: &Waiter| waiter.count <= count;
            let at = waiters.list.iter().position(due);
            let waiter = at.map(|at| waiters.list.swap_remove(at));
            self.set_wakes_at(&waiters.list);
            drop(waiters);
            match waiter {
                Some(waiter) => wake(waiter.waker),
                None => return,
            }
        }
    }

    fn set_wakes_at(&self, list: &[Waiter]) {
        let least = list.iter().map(|waiter| waiter.count).min();
        // Ordered by the word: see `poll`.
        self.wakes_at
            .store(least.unwrap_or(u32::MAX), Ordering::Relaxed);
        if list.is_empty() {
            self.word.fetch_and(!WAITING, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn count_of(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}
