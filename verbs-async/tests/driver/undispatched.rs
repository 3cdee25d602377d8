//! Operations whose completions were polled and not dispatched yet. Taking such an outcome makes room for others, as
//! dispatching does.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::driver::Submission;
use crate::fixture::{Bench, WakeCounter};
use crate::ring::{End, Outcome, Request, Ticket};
use crate::task::wake;

/// The ways to take an outcome.
const TAKES: [fn(&Bench, Submission<Ticket>); 3] = [
    |bench, key| {
        let outcome = bench.driver.poll_outcome(&key);
        assert_eq!(outcome.unwrap().end, End::Success);
    },
    |bench, key| {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = bench.driver.wait(&key, &mut cx);
        assert!(matches!(polled, Poll::Ready(outcome) if outcome.end == End::Success));
    },
    |bench, key| bench.driver.abandon(key),
];

/// Completes this operation, which is polled by another one. It is not dispatched: first, that thread has something
/// else to do, such as to release its own lock.
fn is_polled(bench: &Bench, id: usize) {
    let other = bench.start_on(1, bench.device.request(99, 0));
    let _raised = bench.device.complete(id);
    let held = wake::hold();
    assert!(bench.driver.take::<Outcome>(&other).is_none());
    assert_eq!(bench.device.unseen(), 0);
    drop(held);
}

#[test]
fn room_of_an_op_is_the_next_ones_however_its_outcome_is_taken() {
    for take in TAKES {
        let bench = Bench::new(1);
        let first = bench.start(0);
        let next = bench.start(1);
        is_polled(&bench, 0);
        take(&bench, first);
        assert_eq!(bench.posted(), [0, 99, 1], "it is left in the backlog");
        bench.complete([1]);
        assert_eq!(bench.end(next), Some((1, End::Success)));
    }
}

#[test]
fn common_room_of_an_op_is_the_next_channels_however_its_outcome_is_taken() {
    for take in TAKES {
        let bench = Bench::with_shares(8, 1, 1);
        bench.start(0);
        let first = bench.start(1);
        // They are short of common room; and the second has its own place.
        let request = bench.device.request(2, 1);
        let places = 2;
        bench.start_on(1, Request { places, ..request });
        is_polled(&bench, 1);
        take(&bench, first);
        assert_eq!(bench.posted(), [0, 1, 99, 2], "it is left in the line");
    }
}

#[test]
fn channel_is_drained_when_the_outcome_of_its_last_op_is_taken() {
    for take in TAKES {
        let bench = Bench::new(1);
        let counter = WakeCounter::new();
        let last = bench.start(0);
        assert!(!bench.is_drained(&counter));
        is_polled(&bench, 0);
        take(&bench, last);
        assert_eq!(counter.wakes(), 1);
    }
}

#[test]
fn op_whose_outcome_is_taken_leaves_no_waker_and_counts_as_no_waiter() {
    for take in TAKES {
        let bench = Bench::new(1);
        let counter = WakeCounter::new();
        let key = bench.start(0);
        assert!(bench.poll(key, &counter).is_pending());
        is_polled(&bench, 0);
        take(&bench, key);
        assert_eq!((Arc::strong_count(&counter), counter.wakes()), (1, 0));
        let armings = bench.device.lock().armings;
        bench.driver.on_event();
        assert_eq!(bench.device.lock().armings, armings, "for no task");
    }
}
