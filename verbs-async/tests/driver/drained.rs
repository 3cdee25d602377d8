//! Tasks that wait until the queues of a channel are empty.

use std::task::{Context, Waker};
use verbs_channel::Queue;

use crate::fixture::{Bench, WakeCounter};
use crate::ring::{End, QUEUES};

#[test]
fn drain_waiter_is_woken_when_the_queues_are_empty() {
    let bench = Bench::new(1);
    let counter = WakeCounter::new();
    let waker = Waker::from(std::sync::Arc::clone(&counter));
    let mut cx = Context::from_waker(&waker);
    let mut key = None;
    let mut drained =
        |queues: &'static [Queue]| bench.driver.poll_drained(0, queues, &mut key, &mut cx);
    assert!(drained(&QUEUES).is_ready(), "nothing has submission");
    assert_eq!(bench.device.lock().armings, 0, "no task waits");
    bench.start(0);
    let waits = bench.start(1);
    bench.start_on(0, bench.device.request(2, 1));
    // It does not wait for operations of another channel.
    bench.start_on(1, bench.device.request(3, 0));
    assert!(drained(&[Queue::Send]).is_pending());
    bench.complete([0]);
    assert_eq!(counter.wakes(), 0, "the next from the line is in flight");
    bench.driver.abandon(waits);
    assert_eq!(counter.wakes(), 0, "what is abandoned is in flight still");
    bench.complete([1]);
    assert_eq!(counter.wakes(), 1);
    assert!(drained(&[Queue::Send]).is_ready());
    assert!(drained(&QUEUES).is_pending());
    bench.complete([2]);
    assert_eq!(counter.wakes(), 2);
    assert!(drained(&QUEUES).is_ready());
}

#[test]
fn drain_waiter_needs_no_other_waiter() {
    let bench = Bench::new(1);
    let counter = WakeCounter::new();
    bench.start(0);
    assert!(!bench.is_drained(&counter));
    bench.complete([0]);
    assert_eq!(counter.wakes(), 1);
    // Even if it ended before that.
    bench.start(1);
    assert!(!bench.is_drained(&counter));
    bench.complete([1]);
    bench.start(2);
    assert!(!bench.device.complete(2) || bench.device.unseen() == 1);
    assert!(bench.is_drained(&counter));
}

#[test]
fn backlog_emptied_by_abandon_or_rejection_is_drained() {
    let bench = Bench::new(1);
    let counter = WakeCounter::new();
    bench.start(0);
    let waits = bench.start(1);
    assert!(!bench.is_drained(&counter));
    bench.driver.abandon(waits);
    bench.complete([0]);
    assert_eq!(counter.wakes(), 1);
    assert!(bench.is_drained(&counter));

    bench.start(0);
    bench.start(1);
    assert!(!bench.is_drained(&counter));
    bench.driver.with(None, |ring| ring.0.lock().take_down());
    assert_eq!(counter.wakes(), 2);
    assert!(bench.is_drained(&counter));
    // An operation that is rejected at once never was in the queue.
    let refused = bench.start(2);
    assert!(bench.is_drained(&counter));
    assert_eq!(bench.end(refused), Some((2, End::Rejected)));
}

#[test]
fn drain_waiter_wakes_completed_waiters() {
    let bench = Bench::new(2);
    let counters = [(); 2].map(|()| WakeCounter::new());
    let keys = [0, 1].map(|id| bench.start(id));
    assert!(bench.poll(keys[0], &counters[0]).is_pending());
    assert!(bench.device.complete(0), "its event has not been handled");
    assert!(!bench.is_drained(&counters[1]));
    assert_eq!(counters.each_ref().map(|counter| counter.wakes()), [1, 0]);
    // It is woken itself if another task still waits on another channel.
    let elsewhere = bench.start_on(1, bench.device.request(2, 0));
    assert!(bench.poll(elsewhere, &counters[0]).is_pending());
    assert!(!bench.device.complete(1), "one event stands for both");
    bench.driver.on_event();
    assert_eq!(counters.each_ref().map(|counter| counter.wakes()), [1, 1]);
    assert!(bench.is_drained(&counters[1]));
}

#[test]
fn backlog_rejected_after_a_failure_is_drained() {
    let bench = Bench::new(1);
    let counter = WakeCounter::new();
    bench.start(0);
    let waits = bench.start(1);
    assert!(!bench.is_drained(&counter));
    // Only the device has noticed it.
    bench.device.lock().take_down();
    bench.driver.on_event();
    assert_eq!(counter.wakes(), 1);
    assert!(bench.is_drained(&counter));
    assert_eq!(bench.end(waits), Some((1, End::Rejected)));
    // A woken waiter does not wait any more: the queue is not armed for it.
    let armings = bench.device.lock().armings;
    bench.driver.on_event();
    assert_eq!(bench.device.lock().armings, armings);
}

#[test]
fn each_task_keeps_only_its_last_waker() {
    let bench = Bench::new(1);
    let counters = [(); 4].map(|()| WakeCounter::new());
    bench.start(0);
    let mut keys = [None; 2];
    let mut poll = |task: usize, counter: usize| {
        let waker = Waker::from(std::sync::Arc::clone(&counters[counter]));
        let mut cx = Context::from_waker(&waker);
        let driver = &bench.driver;
        let drained = driver.poll_drained(0, &QUEUES, &mut keys[task], &mut cx);
        drained.is_ready()
    };
    for (task, counter) in [(0, 0), (0, 1), (1, 1), (0, 2), (1, 3)] {
        assert!(!poll(task, counter));
    }
    bench.complete([0]);
    let woken = counters.each_ref().map(|counter| counter.wakes());
    assert_eq!(woken, [0, 0, 1, 1]);
    assert!(poll(0, 0) && poll(1, 1));
    let kept = counters.each_ref().map(std::sync::Arc::strong_count);
    assert_eq!(kept, [1; 4]);
}
