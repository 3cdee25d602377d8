//! The models of lines: tasks join one and leave it while other threads wake them.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Waker;

use loom::thread;

use crate::races::{Delivery, Model, Task, WakeFlag, explore, explore_both};
use crate::task::deferred::{Deferred, Defers, wake_after_unlock};
use crate::task::sync::{Arc, Mutex, MutexGuard};
use crate::wait_queue::Line;

/// Channels that share the room for one operation, which one of them has.
fn short(channels: usize) -> Model {
    let model = Model::with_shares(channels, 8, 0, 1);
    model.start_on(0, 1).abandon();
    model
}

#[test]
fn queue_that_joins_the_line_as_room_comes_back_is_posted_and_woken() {
    explore_both(|delivery| {
        let model = short(2);
        let device = model.completes(&[1], delivery);
        let mut second = model.start_on(1, 2);
        second.poll();
        device.join().unwrap();
        assert!(model.device.has(2), "it was left in line");
        model.complete(&[2], delivery);
        Task::have_ended([&mut second]);
    });
}

#[test]
fn queues_that_join_the_line_together_are_posted_one_after_the_other() {
    explore_both(|delivery| {
        let model = short(3);
        let joins = {
            let model = model.clone();
            thread::spawn(move || {
                let mut second = model.start_on(1, 2);
                second.poll();
                second
            })
        };
        let mut third = model.start_on(2, 3);
        third.poll();
        model.complete(&[1], delivery);
        let mut second = joins.join().unwrap();
        let (next, last) = match model.device.has(2) {
            true => (2, 3),
            false => (3, 2),
        };
        assert!(model.device.has(next) && !model.device.has(last));
        model.complete(&[next], delivery);
        assert!(model.device.has(last), "it was left in line");
        model.complete(&[last], delivery);
        Task::have_ended([&mut second, &mut third]);
    });
}

#[test]
fn first_in_line_that_is_dropped_as_room_comes_back_lets_the_next_be_posted() {
    explore_both(|delivery| {
        let model = short(3);
        let second = model.start_on(1, 2);
        let mut third = model.start_on(2, 3);
        let device = model.completes(&[1], delivery);
        let leaves = thread::spawn(move || second.abandon());
        third.poll();
        leaves.join().unwrap();
        device.join().unwrap();
        // It may have been posted before it was dropped.
        if model.device.has(2) {
            model.complete(&[2], delivery);
        }
        assert!(model.device.has(3), "it was left in line");
        model.complete(&[3], delivery);
        Task::have_ended([&mut third]);
    });
}

#[test]
fn first_in_line_that_is_dropped_leaves_its_room_to_the_next() {
    explore(|| {
        let model = Model::with_shares(3, 8, 0, 2);
        model.start_on(0, 1).abandon();
        // It needs both places: the next needs one.
        let second = model.start_batch_on(1, 2, 2);
        let mut third = model.start_on(2, 3);
        let leaves = thread::spawn(move || second.abandon());
        third.poll();
        leaves.join().unwrap();
        assert!(model.device.has(3), "it was left in line");
        model.complete(&[3], Delivery::AtOnce);
        Task::have_ended([&mut third]);
    });
}

/// Places, and the line of tasks that wait for one: as a datagram endpoint has them.
struct Room {
    state: Mutex<State>,
}

struct State {
    free: usize,
    line: Line,
    deferred: Deferred<Infallible>,
}

impl Defers for State {
    type Garbage = Infallible;
    type Owner = Infallible;

    fn deferred(&mut self) -> &mut Deferred<Infallible> {
        &mut self.deferred
    }

    fn is_due(&self) -> bool {
        self.deferred.is_due()
    }

    fn owner(&self) -> Option<Infallible> {
        None
    }

    fn continue_elsewhere(owner: Infallible) -> bool {
        match owner {}
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
        let state = Mutex::new(State {
            free: 0,
            line: Line::default(),
            deferred: Deferred::new(),
        });
        Arc::new(Self { state })
    }

    /// Gives back a place.
    fn give(&self) {
        let mut state = self.state.lock();
        state.free += 1;
        self.unlock(state);
    }

    fn gives(this: &Arc<Self>) -> thread::JoinHandle<()> {
        let room = Arc::clone(this);
        thread::spawn(move || room.give())
    }

    fn unlock<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let State {
            free,
            line,
            deferred,
        } = &mut *state;
        deferred.extend(line.wake(*free));
        wake_after_unlock(&self.state, state);
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
        self.room.unlock(state);
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
            self.room.unlock(state);
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
