//! Every interleaving of threads that take items of a pool, wait for them and give them back; and of threads that
//! record immediates, and wait for a count of them.
//!
//! The crate's own files are compiled here with loom's atomics.
#![cfg(test)]
#![expect(unsafe_code, reason = "accesses what is one thread's")]

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
    pub(super) use super::{ArrayQueue, AtomicCell};
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
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

/// A cell, with a lock.
#[derive(Debug)]
struct AtomicCell<T>(loom::sync::Mutex<T>);

impl<T: Copy> AtomicCell<T> {
    fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    fn load(&self) -> T {
        *self.0.lock().unwrap()
    }

    fn swap(&self, value: T) -> T {
        std::mem::replace(&mut *self.0.lock().unwrap(), value)
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
                    pool.list.push(item);
                }
            })
        });
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(pool.list.len(), 2);
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
    fn pop_or_stop(&self) {
        let (mut place, context) = (None, Context::from_waker(Waker::noop()));
        if let Poll::Ready(item) = self.list.poll_pop(&mut place, &context) {
            self.write(item);
            return self.list.push(item);
        }
        thread::yield_now();
        self.list.stop_waiting(place.expect("it waits"));
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
            other.list.push(item);
        });
        let item = pool.pop_when_free();
        pool.write(item);
        pool.list.push(item);
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
            waits.list.push(item);
        });
        for _ in 0..2 {
            if let Some(item) = pool.list.pop() {
                pool.write(item);
                pool.list.push(item);
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
        let stops = thread::spawn(move || stops.pop_or_stop());
        let waits = Arc::clone(&pool);
        let waits = thread::spawn(move || {
            let item = waits.pop_when_free();
            waits.write(item);
            waits.list.push(item);
        });
        pool.write(item);
        pool.list.push(item);
        stops.join().unwrap();
        waits.join().unwrap();
        assert_eq!(pool.list.len(), 1);
    });
}
