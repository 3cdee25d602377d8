//! Every interleaving of threads that take items of a pool, wait for them and give them back; and of threads that
//! record immediates, and wait for a count of them.
//!
//! The crate's own files are compiled here with loom's atomics.
#![cfg(test)]
#![expect(unsafe_code, reason = "accesses what is one thread's")]

use std::ptr::NonNull;
use std::task::{Context, Poll, Wake, Waker};

use free_list::{Free, FreeList};
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
    pub(super) use super::ArrayQueue;
    pub(super) use loom::sync::atomic::{
        AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};

    pub(super) fn wake(waker: std::task::Waker) {
        waker.wake();
    }

    pub(super) fn discard(waker: std::task::Waker) {
        drop(waker);
    }
}

/// The queue of free items, with a lock: that of crossbeam is tested there.
#[derive(Debug)]
struct ArrayQueue<T>(loom::sync::Mutex<std::collections::VecDeque<T>>);

impl<T> ArrayQueue<T> {
    fn new(capacity: usize) -> Self {
        Self(loom::sync::Mutex::new(
            std::collections::VecDeque::with_capacity(capacity),
        ))
    }

    fn push(&self, item: T) -> Result<(), T> {
        self.0.lock().unwrap().push_back(item);
        Ok(())
    }

    fn pop(&self) -> Option<T> {
        self.0.lock().unwrap().pop_front()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn capacity(&self) -> usize {
        self.0.lock().unwrap().capacity()
    }
}

/// A list of items in boxes.
struct Pool(FreeList<UnsafeCell<u32>>);

type Item = Free<UnsafeCell<u32>>;

impl Pool {
    fn new(count: usize) -> Arc<Self> {
        let item = |_| Free(NonNull::from(Box::leak(Box::new(UnsafeCell::new(0)))));
        Arc::new(Self(FreeList::new((0..count).map(item))))
    }

    fn pop(&self) -> Option<Item> {
        self.0.pop()
    }

    /// Writes to the item, which loom reports if another thread may do so too, and gives it back.
    fn use_and_push(&self, item: Item) {
        // SAFETY: the item is freed with the pool only.
        let cell = unsafe { item.0.as_ref() };
        cell.with_mut(|place| {
            // SAFETY: the item is this thread's, or loom fails before this.
            unsafe { *place += 1 };
        });
        self.0.push(item);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for Free(item) in self.0.drain() {
            // SAFETY: it was a box, and is back.
            drop(unsafe { Box::from_raw(item.as_ptr()) });
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    check_with(3, model);
}

/// Checks each interleaving with at most this number of preemptions.
fn check_with(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
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
                    let item = pool.pop().expect("there is one for each thread");
                    pool.use_and_push(item);
                }
            })
        });
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(pool.0.len(), 2);
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
    fn pop_when_free(&self) -> Item {
        let sleeper = std::sync::Arc::new(Sleeper(Notify::new()));
        let waker = Waker::from(std::sync::Arc::clone(&sleeper));
        let (mut place, context) = (None, Context::from_waker(&waker));
        loop {
            match self.0.poll_pop(&mut place, &context) {
                Poll::Ready(item) => return item,
                Poll::Pending => sleeper.0.wait(),
            }
        }
    }

    /// Polls once for an item, and then not again.
    fn pop_or_stop(&self) {
        let (mut place, context) = (None, Context::from_waker(Waker::noop()));
        if let Poll::Ready(item) = self.0.poll_pop(&mut place, &context) {
            return self.use_and_push(item);
        }
        thread::yield_now();
        self.0.stop_waiting(place.expect("it waits"));
    }
}

#[test]
fn each_task_that_waits_gets_an_item() {
    check(|| {
        let pool = Pool::new(1);
        let other = Arc::clone(&pool);
        let other = thread::spawn(move || {
            let item = other.pop_when_free();
            other.use_and_push(item);
        });
        let item = pool.pop_when_free();
        pool.use_and_push(item);
        other.join().unwrap();
        assert_eq!(pool.0.len(), 1);
    });
}

#[test]
fn a_thread_that_does_not_wait_delays_no_task_that_does() {
    check(|| {
        let pool = Pool::new(1);
        let waits = Arc::clone(&pool);
        let waits = thread::spawn(move || {
            let item = waits.pop_when_free();
            waits.use_and_push(item);
        });
        for _ in 0..2 {
            if let Some(item) = pool.pop() {
                pool.use_and_push(item);
            }
        }
        waits.join().unwrap();
        assert_eq!(pool.0.len(), 1);
    });
}

#[test]
fn item_for_a_task_that_stops_waiting_goes_to_the_next_task() {
    check(|| {
        let pool = Pool::new(1);
        let item = pool.pop().expect("one is free");
        let stops = Arc::clone(&pool);
        let stops = thread::spawn(move || stops.pop_or_stop());
        let waits = Arc::clone(&pool);
        let waits = thread::spawn(move || {
            let item = waits.pop_when_free();
            waits.use_and_push(item);
        });
        pool.use_and_push(item);
        stops.join().unwrap();
        waits.join().unwrap();
        assert_eq!(pool.0.len(), 1);
    });
}
