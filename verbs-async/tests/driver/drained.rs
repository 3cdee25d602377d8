//! Tasks that wait until the queues of a channel are empty.

use std::task::{Context, Waker};
use verbs_channel::Queue;

use crate::driver::QUEUES;
use crate::ring::End;
use crate::task::{Bell, Bench};

#[test]
fn drain_waiter_is_woken_when_the_queues_are_empty() {
    let bench = Bench::new(1);
    let bell = Bell::new();
    let waker = Waker::from(std::sync::Arc::clone(&bell));
    let mut cx = Context::from_waker(&waker);
    let mut drained = |queues: &'static [Queue]| bench.driver.poll_drained(0, queues, &mut cx);
    assert!(drained(&QUEUES).is_ready(), "nothing has submission");
    assert_eq!(bench.device.lock().armings, 0, "nobody waits");
    bench.start(0);
    let waits = bench.start(1);
    bench.start_on(0, bench.device.request(2, 1));
    // Another channel's work is not waited for.
    bench.start_on(1, bench.device.request(3, 0));
    assert!(drained(&[Queue::Send]).is_pending());
    bench.complete([0]);
    assert_eq!(bell.rings(), 0, "the next from the line is in flight");
    bench.driver.abandon(waits);
    assert_eq!(bell.rings(), 0, "what is abandoned is in flight still");
    bench.complete([1]);
    assert_eq!(bell.rings(), 1);
    assert!(drained(&[Queue::Send]).is_ready());
    assert!(drained(&QUEUES).is_pending());
    bench.complete([2]);
    assert_eq!(bell.rings(), 2);
    assert!(drained(&QUEUES).is_ready());
}

#[test]
fn drain_waiter_needs_no_other_waiter() {
    let bench = Bench::new(1);
    let bell = Bell::new();
    bench.start(0);
    assert!(!bench.is_drained(&bell));
    bench.complete([0]);
    assert_eq!(bell.rings(), 1);
    // Even if it ended before that.
    bench.start(1);
    assert!(!bench.is_drained(&bell));
    bench.complete([1]);
    bench.start(2);
    assert!(!bench.device.complete(2) || bench.device.unseen() == 1);
    assert!(bench.is_drained(&bell));
}

#[test]
fn backlog_emptied_by_abandon_or_rejection_is_drained() {
    let bench = Bench::new(1);
    let bell = Bell::new();
    bench.start(0);
    let waits = bench.start(1);
    assert!(!bench.is_drained(&bell));
    bench.driver.abandon(waits);
    bench.complete([0]);
    assert_eq!(bell.rings(), 1);
    assert!(bench.is_drained(&bell));

    bench.start(0);
    bench.start(1);
    assert!(!bench.is_drained(&bell));
    bench.driver.with(None, |ring| ring.0.lock().give_up());
    assert_eq!(bell.rings(), 2);
    assert!(bench.is_drained(&bell));
    // What is refused at once was never there.
    let refused = bench.start(2);
    assert!(bench.is_drained(&bell));
    assert_eq!(bench.end(refused), Some((2, End::Rejected)));
}

#[test]
fn drain_waiter_wakes_completed_waiters() {
    let bench = Bench::new(2);
    let bells = [(); 2].map(|()| Bell::new());
    let keys = [0, 1].map(|id| bench.start(id));
    assert!(bench.poll(keys[0], &bells[0]).is_pending());
    assert!(bench.device.complete(0), "nobody hears of it yet");
    assert!(!bench.is_drained(&bells[1]));
    assert_eq!(bells.each_ref().map(|bell| bell.rings()), [1, 0]);
    // And is told itself if somebody else waits still, elsewhere.
    let elsewhere = bench.start_on(1, bench.device.request(2, 0));
    assert!(bench.poll(elsewhere, &bells[0]).is_pending());
    assert!(!bench.device.complete(1), "one event stands for both");
    bench.driver.on_event();
    assert_eq!(bells.each_ref().map(|bell| bell.rings()), [1, 1]);
    assert!(bench.is_drained(&bells[1]));
}

#[test]
fn backlog_rejected_after_a_failure_is_drained() {
    let bench = Bench::new(1);
    let bell = Bell::new();
    bench.start(0);
    let waits = bench.start(1);
    assert!(!bench.is_drained(&bell));
    // The device says so, and nobody else.
    bench.device.lock().give_up();
    bench.driver.on_event();
    assert_eq!(bell.rings(), 1);
    assert!(bench.is_drained(&bell));
    assert_eq!(bench.end(waits), Some((1, End::Rejected)));
    // Whoever was told waits no more: nothing is armed for it.
    let armings = bench.device.lock().armings;
    bench.driver.on_event();
    assert_eq!(bench.device.lock().armings, armings);
}
