//! Backlogs: operations that wait for room in their queue.

use crate::driver::Submission;
use crate::fixture::{Bench, WakeCounter};
use crate::ring::{End, Request, Ticket};

/// A queue with room for one, taken by 0, and this many in its backlog.
fn backlog_of(behind: usize) -> (Bench, Vec<Submission<Ticket>>) {
    let bench = Bench::new(1);
    let keys = (0..=behind).map(|id| bench.start(id)).collect();
    (bench, keys)
}

/// The device completes everything that is posted. Returns the order.
fn run(bench: &Bench) -> Vec<usize> {
    while let Some(id) = bench.posted().into_iter().find(|id| bench.device.has(*id)) {
        bench.complete([id]);
    }
    bench.posted()
}

#[test]
fn backlog_is_first_come_first_served() {
    let (bench, keys) = backlog_of(4);
    assert_eq!(bench.posted(), [0]);
    assert_eq!(run(&bench), [0, 1, 2, 3, 4]);
    for (id, key) in keys.into_iter().enumerate() {
        assert_eq!(bench.end(key), Some((id, End::Success)));
    }
}

#[test]
fn later_op_does_not_overtake_the_backlog() {
    let bench = Bench::new(2);
    bench.start(0);
    bench.start(1);
    bench.start_batch(2, 2);
    // There is room for one, but not for the head of the backlog.
    bench.complete([0]);
    bench.start(3);
    assert_eq!(bench.posted(), [0, 1]);
    bench.complete([1]);
    assert_eq!(bench.posted(), [0, 1, 2]);
    assert_eq!(run(&bench), [0, 1, 2, 3]);
}

#[test]
fn backlog_blocks_no_other_queue_and_no_other_channel() {
    let (bench, _) = backlog_of(1);
    bench.start_on(0, bench.device.request(10, 1));
    bench.start_on(1, bench.device.request(11, 0));
    bench.start_on(1, bench.device.request(12, 1));
    assert_eq!(bench.posted(), [0, 10, 11, 12]);
    // A completion there makes no room here either.
    bench.complete([10, 11, 12]);
    assert_eq!(bench.posted(), [0, 10, 11, 12]);
}

#[test]
fn backlog_advances_with_its_own_queue_only() {
    let bench = Bench::new(1);
    for (id, (channel, queue)) in [(0, 0), (0, 1), (1, 0), (1, 1)]
        .repeat(2)
        .into_iter()
        .enumerate()
    {
        bench.start_on(channel, bench.device.request(id, queue));
    }
    assert_eq!(bench.posted(), [0, 1, 2, 3]);
    bench.complete([2, 0, 3, 1]);
    assert_eq!(bench.posted(), [0, 1, 2, 3, 6, 4, 7, 5]);
}

#[test]
fn abandoned_queued_op_leaves_no_gap() {
    for leaves in [
        vec![1],
        vec![2],
        vec![3],
        vec![1, 2],
        vec![3, 2],
        vec![2, 1],
        vec![2, 3, 1],
    ] {
        let (bench, keys) = backlog_of(3);
        for id in &leaves {
            bench.driver.abandon(keys[*id]);
        }
        assert_eq!(
            bench.device.gone(),
            leaves.len(),
            "its buffer is its own again"
        );
        // A new operation is behind the remaining ones.
        bench.start(4);
        let stayed: Vec<_> = (0..=4).filter(|id| !leaves.contains(id)).collect();
        assert_eq!(run(&bench), stayed, "{leaves:?} left");
    }
}

#[test]
fn abandoned_head_lets_the_next_be_posted() {
    let bench = Bench::new(2);
    bench.start(0);
    let batch = bench.start_batch(1, 2);
    bench.start(2);
    assert_eq!(bench.posted(), [0]);
    bench.driver.abandon(batch);
    assert_eq!(bench.posted(), [0, 2]);
}

#[test]
fn queued_op_is_posted_without_a_poll_and_woken_once() {
    let (bench, keys) = backlog_of(1);
    let counter = WakeCounter::new();
    assert!(bench.poll(keys[1], &counter).is_pending());
    bench.complete([0]);
    assert_eq!((bench.posted(), counter.wakes()), (vec![0, 1], 0));
    bench.complete([1]);
    assert_eq!(counter.wakes(), 1);
    assert!(bench.poll(keys[1], &counter).is_ready());
}

#[test]
fn queued_op_finds_room_that_was_freed_unnoticed() {
    let bench = Bench::new(1);
    bench.start(0);
    // No task has waited, so the queue was not armed.
    assert!(!bench.device.complete(0));
    bench.start(1);
    assert_eq!(bench.posted(), [0, 1]);
}

#[test]
fn ring_that_goes_down_rejects_its_backlog() {
    let (bench, keys) = backlog_of(3);
    let other = bench.start_on(1, bench.device.request(9, 1));
    let counters = [(); 4].map(|()| WakeCounter::new());
    for (key, counter) in keys.iter().zip(&counters) {
        assert!(bench.poll(*key, counter).is_pending());
    }
    bench.driver.with(None, |ring| ring.0.lock().take_down());
    assert_eq!(counters.each_ref().map(|counter| counter.wakes()), [1; 4]);
    for (id, key) in keys.into_iter().enumerate() {
        let end = if id == 0 { End::Aborted } else { End::Rejected };
        assert_eq!(bench.end(key), Some((id, end)));
    }
    assert_eq!(bench.end(other), Some((9, End::Aborted)));
    assert_eq!(bench.device.gone(), 5);
}

#[test]
fn room_freed_by_a_ring_change_goes_to_the_backlog() {
    let (bench, _) = backlog_of(2);
    bench
        .driver
        .with(None, |ring| ring.0.lock().free[0][0] += 1);
    assert_eq!(bench.posted(), [0, 1]);
    // The change is known to be of one channel: only its backlog is served.
    let other = [4, 5].map(|id| bench.start_on(1, bench.device.request(id, 0)));
    bench.driver.with(Some(0), |ring| {
        let free = &mut ring.0.lock().free;
        free[0][0] += 1;
        free[1][0] += 1;
    });
    assert_eq!(bench.posted(), [0, 1, 4, 2]);
    bench.driver.with(Some(1), |_ring| ());
    assert_eq!(bench.posted(), [0, 1, 4, 2, 5]);
    assert!(other.into_iter().all(|key| bench.end(key).is_none()));
}

#[test]
fn batch_at_the_head_is_not_starved() {
    let bench = Bench::new(4);
    for id in 0..4 {
        bench.start(id);
    }
    bench.start_batch(100, 4);
    for id in 0..3 {
        bench.complete([id]);
        let request = bench.device.request(200 + id, 0);
        bench.start_on(
            0,
            Request {
                places: 1,
                ..request
            },
        );
    }
    bench.complete([3]);
    assert_eq!(bench.posted(), [0, 1, 2, 3, 100]);
}
