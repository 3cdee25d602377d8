//! The models of races.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use verbs_channel::Queue;

use loom::thread;

use crate::driver::{Driver, Submission};
use crate::ring::{FakeDevice, FakeRing, Outcome, QUEUES, Request, Ticket, poll};
use crate::task::sync::Arc;

/// Explores every schedule with at most this many preemptions: more find nothing new, and take hours.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// A ring and its driver.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) driver: Arc<Driver<FakeRing>>,
}

/// An operation and the task that awaits it.
pub(crate) struct Task {
    model: Model,
    id: usize,
    key: Submission<Ticket>,
    outcome: Option<Outcome>,
    flag: std::sync::Arc<WakeFlag>,
    asleep: bool,
}

/// Not one of loom's: it is read only after all threads have ended.
#[derive(Default)]
pub(crate) struct WakeFlag(pub(crate) AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// When the events that completions raise are delivered.
#[derive(Clone, Copy)]
pub(crate) enum Delivery {
    AtOnce,
    InTheEnd,
}

impl Model {
    fn new(places: usize) -> Self {
        Self::with_shares(1, places, usize::MAX / 2, 0)
    }

    /// See [`FakeDevice::with_shares`].
    pub(crate) fn with_shares(channels: usize, places: usize, share: usize, common: usize) -> Self {
        let device = FakeDevice::with_shares(channels, places, share, common);
        let driver = Arc::new(Driver::new(FakeRing(Arc::clone(&device))));
        Self { device, driver }
    }

    fn start(&self, id: usize) -> Task {
        self.start_on(0, id)
    }

    /// Starts an operation on a channel.
    pub(crate) fn start_on(&self, channel: usize, id: usize) -> Task {
        self.start_batch_on(channel, id, 1)
    }

    /// The same for an operation that takes `places` places.
    pub(crate) fn start_batch_on(&self, channel: usize, id: usize, places: usize) -> Task {
        let request = Request {
            places,
            ..self.device.request(id, 0)
        };
        Task {
            model: self.clone(),
            id,
            key: self.driver.start(channel, request, usize::MAX),
            outcome: None,
            flag: std::sync::Arc::default(),
            asleep: false,
        }
    }

    /// The device completes these.
    pub(crate) fn complete(&self, ids: &[usize], delivery: Delivery) {
        let mut events = 0;
        for id in ids {
            events += usize::from(self.device.complete(*id));
            if matches!(delivery, Delivery::AtOnce) {
                (0..std::mem::take(&mut events)).for_each(|_| self.driver.on_event());
            }
        }
        (0..events).for_each(|_| self.driver.on_event());
    }

    /// As a thread.
    pub(crate) fn completes(
        &self,
        ids: &'static [usize],
        delivery: Delivery,
    ) -> thread::JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || model.complete(ids, delivery))
    }
}

impl Task {
    pub(crate) fn poll(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        // This poll answers earlier wake-ups.
        self.flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(std::sync::Arc::clone(&self.flag));
        let mut cx = Context::from_waker(&waker);
        let driver = &self.model.driver;
        match poll(driver, &self.key, &mut cx) {
            Poll::Ready(outcome) => {
                assert_eq!(outcome.id, self.id, "the outcome of another operation");
                self.outcome = Some(outcome);
                self.asleep = false;
            }
            Poll::Pending => self.asleep = true,
        }
    }

    /// Polls this many times, and then not again.
    fn polls(mut self, times: usize) -> thread::JoinHandle<Self> {
        thread::spawn(move || {
            (0..times).for_each(|_| self.poll());
            self
        })
    }

    /// Asserts in the end that these operations have completed, and that sleeping tasks were woken.
    pub(crate) fn have_ended<const N: usize>(tasks: [&mut Self; N]) {
        // For all of them first: polling one may wake another.
        for task in &tasks {
            let woken = task.flag.0.load(Ordering::Relaxed);
            assert!(
                !task.asleep || woken,
                "operation {} sleeps forever",
                task.id
            );
        }
        for task in tasks {
            task.poll();
            assert!(task.outcome.is_some(), "operation {} is lost", task.id);
        }
    }

    /// Abandons the operation.
    pub(crate) fn abandon(self) {
        assert!(self.outcome.is_none());
        self.model.driver.abandon(self.key);
    }
}

/// Runs a model once for each way to deliver events.
pub(crate) fn explore_both(model: impl Fn(Delivery) + Send + Sync + Copy + 'static) {
    explore(move || model(Delivery::AtOnce));
    explore(move || model(Delivery::InTheEnd));
}

#[test]
fn two_tasks_that_wait_on_one_queue_are_both_woken() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (first, second) = (model.start(1), model.start(2));
        let device = model.completes(&[1, 2], delivery);
        let second = second.polls(2);
        let mut first = first;
        first.poll();
        device.join().unwrap();
        let mut second = second.join().unwrap();
        Task::have_ended([&mut first, &mut second]);
        assert_eq!(model.device.unseen(), 0);
    });
}

#[test]
fn completions_out_of_order_wake_tasks_polled_once() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (first, second) = (model.start(1), model.start(2));
        let device = model.completes(&[2, 1], delivery);
        let second = second.polls(1);
        let mut first = first;
        first.poll();
        device.join().unwrap();
        let mut second = second.join().unwrap();
        Task::have_ended([&mut first, &mut second]);
    });
}

#[test]
fn op_begun_during_completions_is_woken() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let mut first = model.start(1);
        first.poll();
        let late = {
            let model = model.clone();
            thread::spawn(move || {
                let mut second = model.start(2);
                second.poll();
                model.complete(&[2], delivery);
                second
            })
        };
        model.complete(&[1], delivery);
        let mut second = late.join().unwrap();
        Task::have_ended([&mut first, &mut second]);
    });
}

#[test]
fn op_is_woken_although_the_op_that_drove_is_dropped() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (mut first, mut second) = (model.start(1), model.start(2));
        let device = model.completes(&[1, 2], delivery);
        let dropped = thread::spawn(move || {
            first.poll();
            if first.outcome.is_none() {
                first.abandon();
            }
        });
        second.poll();
        dropped.join().unwrap();
        device.join().unwrap();
        Task::have_ended([&mut second]);
        drop(second);
        assert_eq!(model.device.gone(), 2, "a buffer did not come back");
    });
}

#[test]
fn op_is_woken_although_the_op_that_drove_is_leaked() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (mut first, mut second) = (model.start(1), model.start(2));
        let device = model.completes(&[1, 2], delivery);
        let leaked = thread::spawn(move || {
            first.poll();
            // This leaks the operation: a task has no destructor.
            drop(first);
        });
        second.poll();
        leaked.join().unwrap();
        device.join().unwrap();
        Task::have_ended([&mut second]);
    });
}

#[test]
fn abandoned_op_frees_its_buffer_without_waiters() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (first, second) = (model.start(1), model.start(2));
        let device = model.completes(&[1, 2], delivery);
        let other = thread::spawn(move || second.abandon());
        first.abandon();
        other.join().unwrap();
        device.join().unwrap();
        assert_eq!(model.device.gone(), 2, "a buffer did not come back");
    });
}

#[test]
fn queued_op_is_posted_and_woken_if_the_previous_is_dropped() {
    for end in [
        Task::poll_and_keep,
        Task::poll_and_leak,
        Task::poll_and_abandon,
    ] {
        explore(move || {
            let model = Model::new(1);
            let first = model.start(1);
            let mut second = model.start(2);
            let device = {
                let model = model.clone();
                thread::spawn(move || {
                    model.complete(&[1], Delivery::AtOnce);
                    // It was posted by the thread that dispatched the first one, which has happened by now.
                    assert!(model.device.has(2), "it was left in line");
                    model.complete(&[2], Delivery::AtOnce);
                })
            };
            let before = thread::spawn(move || end(first));
            second.poll();
            device.join().unwrap();
            let before = before.join().unwrap();
            match before {
                Some(mut first) => Task::have_ended([&mut first, &mut second]),
                None => Task::have_ended([&mut second]),
            }
        });
    }
}

impl Task {
    fn poll_and_keep(mut self) -> Option<Self> {
        self.poll();
        Some(self)
    }

    fn poll_and_leak(mut self) -> Option<Self> {
        self.poll();
        None
    }

    fn poll_and_abandon(mut self) -> Option<Self> {
        self.poll();
        if self.outcome.is_none() {
            self.abandon();
        }
        None
    }
}

#[test]
fn op_polled_by_code_that_uses_the_ring_makes_room_whoever_takes_its_outcome() {
    for end in [Task::poll_and_keep, Task::poll_and_abandon] {
        explore(move || {
            let model = Model::new(1);
            let first = model.start(1);
            let mut second = model.start(2);
            second.poll();
            let uses = {
                let model = model.clone();
                thread::spawn(move || {
                    let raised = model.device.complete(1);
                    // As when a channel joins.
                    model.driver.with_ring(|ring| ring.0.lock().poll());
                    model.driver.joined();
                    if raised {
                        model.driver.on_event();
                    }
                })
            };
            drop(end(first));
            uses.join().unwrap();
            assert!(model.device.has(2), "it was left in line");
            model.complete(&[2], Delivery::AtOnce);
            Task::have_ended([&mut second]);
        });
    }
}

#[test]
fn abandoning_a_queued_op_races_with_its_post() {
    explore_both(|delivery| {
        let model = Model::new(1);
        let first = model.start(1);
        let second = model.start(2);
        let mut third = model.start(3);
        let device = model.completes(&[1], delivery);
        let leaves = thread::spawn(move || second.abandon());
        third.poll();
        leaves.join().unwrap();
        device.join().unwrap();
        drop(first);
        // The second may have been posted before it was abandoned: then the third waits for it.
        if model.device.has(2) {
            model.complete(&[2], delivery);
        }
        model.complete(&[3], delivery);
        Task::have_ended([&mut third]);
    });
}

#[test]
fn drain_waiter_is_woken() {
    explore_both(|delivery| {
        let model = Model::new(2);
        let (first, second) = (model.start(1), model.start(2));
        let device = model.completes(&[1, 2], delivery);
        let dropped = thread::spawn(move || first.abandon());
        let flag = std::sync::Arc::<WakeFlag>::default();
        let waker = Waker::from(std::sync::Arc::clone(&flag));
        let mut cx = Context::from_waker(&waker);
        let mut key = None;
        let drained = model.driver.poll_drained(0, &QUEUES, &mut key, &mut cx);
        dropped.join().unwrap();
        device.join().unwrap();
        let woken = flag.0.load(Ordering::Relaxed);
        assert!(
            drained.is_ready() || woken,
            "the drain waiter sleeps forever"
        );
        assert!(
            model
                .driver
                .poll_drained(0, &[Queue::Send], &mut key, &mut cx)
                .is_ready()
        );
        assert!(key.is_none(), "it waits no more");
        drop(second);
    });
}

#[test]
fn failed_arming_wakes_all_waiters() {
    explore(|| {
        let model = Model::new(1);
        model.device.lock().arming_fails = true;
        let first = model.start(1);
        let second = first_polled_elsewhere(first, &model);
        let (mut first, mut second) = second;
        Task::have_ended([&mut first, &mut second]);
    });
}

/// Polls an operation on another thread while a second one is queued behind it and polled.
fn first_polled_elsewhere(first: Task, model: &Model) -> (Task, Task) {
    let first = first.polls(1);
    let mut second = model.start(2);
    second.poll();
    (first.join().unwrap(), second)
}
