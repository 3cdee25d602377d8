//! The bound of the backlog, and the tasks that wait for room in it.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use verbs_channel::Queue;

use crate::driver::Submission;
use crate::fixture::{Bench, WakeCounter, bounded};
use crate::hooks::waker;
use crate::ring::{End, Ticket};

/// The longest backlog in these tests.
const BACKLOG: usize = 4;

/// Begins an operation in the first queue of the first channel.
fn start(bench: &Bench, id: usize) -> Submission<Ticket> {
    let request = bench.device.request(id, 0);
    bench.driver.start(0, request, BACKLOG)
}

/// A task that waits for room in that queue.
#[derive(Default)]
struct Waits {
    key: Option<usize>,
    counter: Arc<WakeCounter>,
}

impl Waits {
    fn poll(&mut self, bench: &Bench) -> Poll<()> {
        self.poll_with(bench, &Waker::from(Arc::clone(&self.counter)))
    }

    fn poll_with(&mut self, bench: &Bench, waker: &Waker) -> Poll<()> {
        let mut cx = Context::from_waker(waker);
        bench
            .driver
            .poll_room(0, Queue::Send, BACKLOG, &mut self.key, &mut cx)
    }

    fn abandon(&self, bench: &Bench) {
        if let Some(key) = self.key {
            bench.driver.cancel_room(0, Queue::Send, key);
        }
    }
}

#[test]
fn op_beyond_the_backlog_is_rejected_with_its_buffer() {
    let bench = Bench::new(1);
    let keys: Vec<_> = (0..6).map(|id| start(&bench, id)).collect();
    assert_eq!(bench.end(keys[5]), Some((5, End::Rejected)));
    assert_eq!(bench.device.gone(), 1);
    // The other queue has room of its own.
    let other = bench.driver.start(0, bench.device.request(6, 1), BACKLOG);
    assert_eq!(bench.posted(), [0, 6]);
    // One place is not half of the backlog.
    bench.complete([0]);
    assert_eq!(bench.end(keys[0]), Some((0, End::Success)));
    assert_eq!(bench.posted(), [0, 6, 1]);
    let last = [7, 8].map(|id| start(&bench, id));
    assert_eq!(bench.end(last[1]), Some((8, End::Rejected)));
    for id in [1, 2, 3, 4, 7, 6] {
        bench.complete([id]);
        bench.driver.on_event();
    }
    let left = keys[1..5].iter().chain([&other, &last[0]]);
    assert!(left.copied().all(|key| bench.end(key).is_some()));
}

#[test]
fn room_waiters_are_woken_when_half_of_the_backlog_is_posted() {
    let bench = Bench::new(1);
    let mut waits = [(); 3].map(|()| Waits::default());
    assert!(waits[0].poll(&bench).is_ready());
    let keys: Vec<_> = (0..5).map(|id| start(&bench, id)).collect();
    for waiter in &mut waits {
        // Twice, as a task may.
        assert!(waiter.poll(&bench).is_pending());
        assert!(waiter.poll(&bench).is_pending());
    }
    waits[2].abandon(&bench);
    bench.complete([0]);
    assert_eq!(
        waits.each_ref().map(|waiter| waiter.counter.wakes()),
        [0; 3]
    );
    bench.complete([1]);
    assert_eq!(
        waits.each_ref().map(|waiter| waiter.counter.wakes()),
        [1, 1, 0]
    );
    bench.complete([2]);
    assert_eq!(waits[0].counter.wakes(), 1, "it is woken once");
    assert!(waits[0].poll(&bench).is_ready());
    // The other task finds it full again.
    let more: Vec<_> = (5..8).map(|id| start(&bench, id)).collect();
    assert!(waits[1].poll(&bench).is_pending());
    waits[0].abandon(&bench);
    bench.driver.abandon(more[0]);
    bench.driver.abandon(more[1]);
    assert_eq!(waits[1].counter.wakes(), 2, "what is abandoned makes room");
    waits[1].abandon(&bench);
    drop(keys);
}

#[test]
fn room_waiter_is_woken_when_the_channel_goes_down() {
    let bench = Bench::new(1);
    for id in 0..5 {
        start(&bench, id);
    }
    let mut waits = Waits::default();
    assert!(waits.poll(&bench).is_pending());
    bench.driver.with(Some(0), |ring| ring.0.lock().take_down());
    assert_eq!(waits.counter.wakes(), 1);
    assert!(waits.poll(&bench).is_ready());
}

#[test]
fn waker_of_a_room_waiter_runs_without_the_lock() {
    bounded(|| {
        let bench = Bench::new(1);
        let driver = Arc::downgrade(&bench.driver);
        let comes = waker(move |_| {
            if let Some(driver) = driver.upgrade() {
                driver.on_event();
            }
        });
        let keys: Vec<_> = (0..5).map(|id| start(&bench, id)).collect();
        let mut waits = [(); 2].map(|()| Waits::default());
        for waiter in &mut waits {
            assert!(waiter.poll_with(&bench, &comes).is_pending());
            assert!(waiter.poll_with(&bench, &comes).is_pending());
        }
        waits[0].abandon(&bench);
        bench.complete([0, 1, 2]);
        assert!(waits[1].poll_with(&bench, &comes).is_ready());
        waits[1].abandon(&bench);
        drop(keys);
    });
}
