//! Every interleaving of threads that take items of a pool, wait for them, give them back, and close
//! it; and of threads that record immediates, and wait for a count of them.
//!
//! The crate's own files are compiled here with loom's atomics.
#![cfg(test)]
#![expect(
    unsafe_code,
    reason = "gives items back, and accesses what is one thread's"
)]

use std::ptr::NonNull;
use std::task::{Context, Poll, Wake, Waker};

use free_list::FreeList;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Arc, Notify};
use loom::thread;

#[path = "../../src/immediates/count.rs"]
mod count;
mod counts;

#[path = "../../src/buffer/free_list.rs"]
#[expect(dead_code, reason = "the models do not use all of it")]
mod free_list;

#[path = "../../src/buffer/notify.rs"]
mod notify;

#[path = "../../src/buffer/wait_queue.rs"]
mod wait_queue;
mod watches;

/// The atomics and the lock that the list and the counts import: loom's.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};

    pub(super) fn wake(waker: std::task::Waker) {
        waker.wake();
    }

    pub(super) fn discard(waker: std::task::Waker) {
        drop(waker);
    }
}

/// A list, and the memory that its items stand for.
struct Pool {
    list: FreeList<usize>,
    memory: Vec<UnsafeCell<u32>>,
}

impl Pool {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            list: FreeList::new(0..count),
            memory: (0..count).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// Writes to an item's memory: loom reports it if another thread may do so too.
    fn write(&self, item: usize) {
        self.memory[item].with_mut(|place| {
            // SAFETY: the item is this thread's, or loom fails before this.
            unsafe { *place += 1 };
        });
    }

    /// Whether this was the last item, of a closed list.
    fn give_back(&self, item: usize) -> bool {
        // SAFETY: the models keep the list, and give back what they took.
        unsafe { FreeList::push(NonNull::from(&self.list), item) }
    }

    /// Whether all items are back.
    fn close(&self) -> bool {
        // SAFETY: the models keep the list, and close it once.
        unsafe { FreeList::close(NonNull::from(&self.list)) }
    }

    /// Frees everything, as the last owner does.
    fn free(&self) {
        for item in 0..self.memory.len() {
            self.write(item);
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn an_item_has_one_owner() {
    check(|| {
        let pool = Pool::new(2);
        let users = [(); 2].map(|()| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..2 {
                    let item = pool.list.pop().expect("there is one for each thread");
                    pool.write(item);
                    assert!(!pool.give_back(item));
                }
            })
        });
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(pool.list.len(), 2);
    });
}

#[test]
fn pop_notices_that_the_top_was_taken_and_given_back() {
    check(|| {
        let pool = Pool::new(3);
        let other = Arc::clone(&pool);
        // Takes two, and gives the first back: it is on top, above another one than before.
        let other = thread::spawn(move || {
            let first = other.list.pop();
            let second = other.list.pop();
            if let Some(first) = first {
                other.give_back(first);
            }
            second
        });
        let mine = [pool.list.pop(), pool.list.pop()];
        let kept = other.join().unwrap();
        let mut taken: Vec<usize> = mine.into_iter().chain([kept]).flatten().collect();
        for &item in &taken {
            pool.write(item);
        }
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!((taken.len(), pool.list.len()), (count, 3 - count));
    });
}

#[test]
fn a_closed_list_is_freed_once_and_last() {
    check(|| {
        let pool = Pool::new(3);
        let users = [(); 2].map(|()| {
            let item = pool.list.pop().expect("three are free");
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.write(item);
                let is_last = pool.give_back(item);
                if is_last {
                    pool.free();
                }
                is_last
            })
        });
        let is_last = pool.close();
        if is_last {
            pool.free();
        }
        let ends = users.map(|user| user.join().unwrap());
        let frees = ends.into_iter().chain([is_last]).filter(|&is_last| is_last);
        assert_eq!(frees.count(), 1);
    });
}

/// A task that sleeps until it is woken: loom reports it if it never is.
struct Sleeper(Notify);

impl Wake for Sleeper {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

impl Pool {
    /// Waits for an item.
    fn pop_when_free(&self) -> usize {
        let sleeper = std::sync::Arc::new(Sleeper(Notify::new()));
        let waker = Waker::from(std::sync::Arc::clone(&sleeper));
        let (mut place, context) = (None, Context::from_waker(&waker));
        loop {
            match self.list.poll_pop(&mut place, &context) {
                Poll::Ready(item) => return item,
                Poll::Pending => sleeper.0.wait(),
            }
        }
    }

    /// Polls once for an item, and then not again.
    fn pop_or_stop(&self) -> Option<usize> {
        let (mut place, context) = (None, Context::from_waker(Waker::noop()));
        if let Poll::Ready(item) = self.list.poll_pop(&mut place, &context) {
            return Some(item);
        }
        thread::yield_now();
        self.list.stop_waiting(place.expect("it waits"))
    }
}

#[test]
fn each_task_that_waits_gets_an_item() {
    check(|| {
        let pool = Pool::new(1);
        let other = Arc::clone(&pool);
        let other = thread::spawn(move || {
            let item = other.pop_when_free();
            other.write(item);
            other.give_back(item);
        });
        let item = pool.pop_when_free();
        pool.write(item);
        pool.give_back(item);
        other.join().unwrap();
        assert_eq!(pool.list.len(), 1);
    });
}

#[test]
fn a_thread_that_does_not_wait_delays_no_task_that_does() {
    check(|| {
        let pool = Pool::new(1);
        let waits = Arc::clone(&pool);
        let waits = thread::spawn(move || {
            let item = waits.pop_when_free();
            waits.write(item);
            waits.give_back(item);
        });
        for _ in 0..2 {
            if let Some(item) = pool.list.pop() {
                pool.write(item);
                pool.give_back(item);
            }
        }
        waits.join().unwrap();
        assert_eq!(pool.list.len(), 1);
    });
}

#[test]
fn item_for_a_task_that_stops_waiting_goes_to_the_next_task() {
    check(|| {
        let pool = Pool::new(1);
        let item = pool.list.pop().expect("one is free");
        let stops = Arc::clone(&pool);
        let stops = thread::spawn(move || {
            if let Some(item) = stops.pop_or_stop() {
                stops.write(item);
                stops.give_back(item);
            }
        });
        let waits = Arc::clone(&pool);
        let waits = thread::spawn(move || {
            let item = waits.pop_when_free();
            waits.write(item);
            waits.give_back(item);
        });
        pool.write(item);
        pool.give_back(item);
        stops.join().unwrap();
        waits.join().unwrap();
        assert_eq!(pool.list.len(), 1);
    });
}

#[test]
fn a_task_that_was_given_the_last_item_can_free_the_list() {
    check(|| {
        let pool = Pool::new(1);
        let item = pool.list.pop().expect("one is free");
        let user = Arc::clone(&pool);
        let user = thread::spawn(move || {
            let item = user.pop_when_free();
            let closed_first = user.close();
            assert!(!closed_first, "the item is taken");
            assert!(user.give_back(item), "it is the last");
            user.free();
        });
        pool.give_back(item);
        user.join().unwrap();
    });
}
