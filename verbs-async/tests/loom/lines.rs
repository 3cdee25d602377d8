//! The models of lines: tasks join one and leave it while other threads wake them.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Waker;

use loom::thread;

use crate::task::deferred::{Deferred, Defers, Lock, Owner};
use crate::task::sync::Arc;
use crate::wait_queue::WaitQueue;
use crate::{WakeFlag, explore};

/// Places, and the line of tasks that wait for one: as a datagram endpoint has them.
struct Room {
    state: Lock<State>,
}

struct State {
    free: usize,
    line: WaitQueue,
    deferred: Deferred<Infallible>,
}

impl Defers for State {
    type Garbage = Infallible;

    fn deferred(&mut self) -> &mut Deferred<Infallible> {
        &mut self.deferred
    }

    fn before_unlock(&mut self) {
        let Self {
            free,
            line,
            deferred,
        } = self;
        deferred.extend(line.wake(*free));
    }

    fn is_due(&self) -> bool {
        self.deferred.is_due()
    }

    fn defer_due(&mut self) {}

    fn owner(&self) -> Option<std::sync::Arc<dyn Owner>> {
        None
    }
}

/// A task that takes one place.
struct Taker {
    room: Arc<Room>,
    key: Option<u64>,
    has_place: bool,
    is_asleep: bool,
    flag: std::sync::Arc<WakeFlag>,
}

impl Room {
    fn full() -> Arc<Self> {
        let state = Lock::new(State {
            free: 0,
            line: WaitQueue::default(),
            deferred: Deferred::new(),
        });
        Arc::new(Self { state })
    }

    /// Gives back a place.
    fn give(&self) {
        self.state.lock().free += 1;
    }

    fn gives(this: &Arc<Self>) -> thread::JoinHandle<()> {
        let room = Arc::clone(this);
        thread::spawn(move || room.give())
    }

    fn taker(this: &Arc<Self>) -> Taker {
        Taker {
            room: Arc::clone(this),
            key: None,
            has_place: false,
            is_asleep: false,
            flag: std::sync::Arc::default(),
        }
    }
}

impl Taker {
    fn poll(&mut self) {
        // A place where other threads run: so there are schedules in which the wake-up was earlier.
        drop(self.room.state.lock());
        // This poll answers earlier wake-ups.
        self.flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(std::sync::Arc::clone(&self.flag));
        let mut state = self.room.state.lock();
        self.has_place = state.free > 0;
        self.is_asleep = !self.has_place;
        let replaced = if self.has_place {
            state.free -= 1;
            self.key.take().and_then(|key| state.line.leave(key))
        } else {
            state.line.sleep(&mut self.key, waker)
        };
        drop(state);
        drop(replaced);
    }

    /// The task has a place, or was woken to take one.
    fn is_awake(&self) -> bool {
        !self.is_asleep || self.flag.0.load(Ordering::Relaxed)
    }

    /// Takes a place in the end, for which it was woken.
    fn ends(mut self) {
        assert!(self.is_awake(), "a task sleeps forever");
        if !self.has_place {
            self.poll();
        }
        assert!(self.has_place, "a place is lost");
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut state = self.room.state.lock();
            let waker = state.line.leave(key);
            drop(state);
            drop(waker);
        }
    }
}

#[test]
fn task_that_joins_as_a_place_comes_back_is_woken() {
    explore(|| {
        let room = Room::full();
        let gives = [Room::gives(&room), Room::gives(&room)];
        let mut first = Room::taker(&room);
        let joins = thread::spawn({
            let mut second = Room::taker(&room);
            move || {
                second.poll();
                second
            }
        });
        first.poll();
        let second = joins.join().unwrap();
        for thread in gives {
            thread.join().unwrap();
        }
        first.ends();
        second.ends();
    });
}

#[test]
fn task_that_is_dropped_as_it_is_woken_passes_it_on() {
    explore(|| {
        let room = Room::full();
        let mut first = Room::taker(&room);
        first.poll();
        let gives = Room::gives(&room);
        let leaves = thread::spawn(move || drop(first));
        let mut second = Room::taker(&room);
        second.poll();
        leaves.join().unwrap();
        gives.join().unwrap();
        second.ends();
    });
}

#[test]
fn task_whose_place_was_taken_is_woken_for_the_next() {
    explore(|| {
        let room = Room::full();
        let mut first = Room::taker(&room);
        first.poll();
        let gives = Room::gives(&room);
        let takes = thread::spawn({
            let mut second = Room::taker(&room);
            move || {
                second.poll();
                second
            }
        });
        if !first.has_place {
            first.poll();
        }
        gives.join().unwrap();
        let second = takes.join().unwrap();
        room.give();
        first.ends();
        second.ends();
    });
}
