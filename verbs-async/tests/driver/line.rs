//! The line for the room that all channels share.

use std::sync::Arc;

use crate::driver::{Driver, Submission};
use crate::fixture::{Bench, WakeCounter};
use crate::ring::{End, FakeDevice, FakeRing, Request, Ticket};

/// Channels with queues of 8, one place of which is their own, and this much room in common.
fn bench(channels: usize, common: usize) -> Bench {
    let device = FakeDevice::with_shares(channels, 8, 1, common);
    let driver = Arc::new(Driver::new(FakeRing(Arc::clone(&device))));
    Bench { device, driver }
}

impl Bench {
    fn send(&self, channel: usize, id: usize) -> Submission<Ticket> {
        self.start_on(channel, self.device.request(id, 0))
    }

    fn send_batch(&self, channel: usize, id: usize, places: usize) -> Submission<Ticket> {
        let request = self.device.request(id, 0);
        self.start_on(channel, Request { places, ..request })
    }
}

#[test]
fn operations_that_find_no_common_room_are_posted_in_the_order_they_came() {
    let bench = bench(4, 1);
    // The first has its own place and the common one.
    bench.send(0, 0);
    bench.send(0, 1);
    // The others have their own, and wait for it.
    for channel in [3, 1, 2] {
        bench.send(channel, channel * 10);
    }
    let waiting: Vec<_> = [3, 1, 2]
        .map(|channel| bench.send(channel, channel * 10 + 1))
        .into();
    assert_eq!(bench.posted(), [0, 1, 30, 10, 20]);
    for id in [1, 31, 11, 21] {
        bench.complete([id]);
    }
    assert_eq!(bench.posted(), [0, 1, 30, 10, 20, 31, 11, 21]);
    for (key, id) in waiting.into_iter().zip([31, 11, 21]) {
        assert_eq!(bench.end(key), Some((id, End::Success)));
    }
    assert_eq!(bench.device.lock().common, 1);
}

#[test]
fn a_long_backlog_delays_the_others_by_one_operation() {
    let bench = bench(3, 1);
    bench.send(0, 0);
    for id in 1..6 {
        bench.send(0, id);
    }
    bench.send(1, 10);
    bench.send(1, 11);
    bench.send(1, 12);
    assert_eq!(bench.posted(), [0, 1, 10]);
    // The first channel was in line before the second.
    bench.complete([1]);
    bench.complete([2]);
    bench.complete([11]);
    bench.complete([3]);
    assert_eq!(bench.posted(), [0, 1, 10, 2, 11, 3, 12]);
}

#[test]
fn none_overtakes_the_line_but_in_its_own_share() {
    let bench = bench(3, 4);
    bench.send_batch(0, 0, 4);
    bench.send(1, 10);
    // Needs four, of which one is its own.
    bench.send_batch(2, 20, 4);
    assert_eq!(bench.posted(), [0, 10]);
    // One is in common, and it is for the batch.
    bench.send(1, 11);
    assert_eq!(bench.posted(), [0, 10]);
    // Places returned to its own share are its own.
    bench.complete([10]);
    assert_eq!(bench.posted(), [0, 10, 11]);
    bench.send(1, 12);
    bench.complete([0]);
    assert_eq!(bench.posted(), [0, 10, 11, 20, 12]);
    // The line is empty: what comes finds the room that is left.
    bench.complete([20, 12]);
    bench.send(2, 21);
    bench.send(2, 22);
    assert_eq!(bench.posted(), [0, 10, 11, 20, 12, 21, 22]);
}

#[test]
fn the_first_that_leaves_lets_the_next_be_posted() {
    let bench = bench(3, 3);
    bench.send_batch(0, 0, 3);
    let batch = bench.send_batch(1, 10, 3);
    bench.send(2, 20);
    bench.send(2, 21);
    assert_eq!(bench.posted(), [0, 20]);
    bench.driver.abandon(batch);
    assert_eq!(bench.posted(), [0, 20, 21]);
    // None is in line, so none is held back.
    bench.complete([0, 20, 21]);
    bench.send(0, 1);
    bench.send(0, 2);
    assert_eq!(bench.posted(), [0, 20, 21, 1, 2]);
}

#[test]
fn a_head_that_waits_for_its_own_queue_holds_up_none() {
    let bench = bench(2, 7);
    // Its queue is full.
    bench.send_batch(0, 0, 5);
    bench.send_batch(0, 1, 3);
    bench.send(1, 10);
    // The first waits for its queue, and this for common room.
    bench.send(0, 2);
    bench.send(1, 11);
    assert_eq!(bench.posted(), [0, 1, 10]);
    // Now it waits for common room, too: behind the other.
    bench.complete([1]);
    assert_eq!(bench.posted(), [0, 1, 10, 11, 2]);
}

#[test]
fn a_task_in_line_is_woken_once_when_its_operation_has_completed() {
    let bench = bench(2, 1);
    bench.send(0, 0);
    bench.send(0, 1);
    bench.send(1, 10);
    let key = bench.send(1, 11);
    let counter = WakeCounter::new();
    assert!(bench.poll(key, &counter).is_pending());
    // It is another channel's.
    bench.complete([1]);
    assert_eq!((bench.posted(), counter.wakes()), (vec![0, 1, 10, 11], 0));
    bench.complete([11]);
    assert_eq!(counter.wakes(), 1);
    assert!(bench.poll(key, &counter).is_ready());
}

#[test]
fn a_line_ends_when_the_ring_goes_down() {
    let bench = bench(2, 0);
    bench.send(0, 0);
    let keys = [bench.send(0, 1), bench.send(0, 2)];
    bench.driver.with(None, |ring| ring.0.lock().take_down());
    for (key, id) in keys.into_iter().zip([1, 2]) {
        assert_eq!(bench.end(key), Some((id, End::Rejected)));
    }
}
