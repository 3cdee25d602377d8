//! Counters, one thread at a time and many at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_immediate_of_an_earlier_generation_is_stale() {
    let counters = ImmediateCounters::new(1);
    let first = counters.begin().unwrap();
    assert!(counters.begin().is_none(), "all are in use");
    let stale = first.immediate();
    assert!(counters.record(stale));
    assert_eq!(first.count(), 1);
    drop(first);
    assert!(!counters.record(stale));
    let second = counters.begin().unwrap();
    assert_ne!(second.immediate(), stale);
    assert!(!counters.record(stale));
    assert_eq!(second.count(), 0);
    assert!(counters.record(second.immediate()));
    assert_eq!(second.count(), 1);
}

/// Panics when it is dropped.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the waker of the test");
    }
}

#[test]
fn a_waker_that_panics_when_it_is_dropped_loses_no_counter_and_no_other_waker() {
    let counters = ImmediateCounters::new(1);
    let counter = counters.begin().unwrap();
    let wakes = Arc::new(Wakes::default());
    // The futures are leaked: their wakers are dropped with the counter.
    for waker in [Waker::from(Arc::new(Bomb)), Waker::from(Arc::clone(&wakes))] {
        let mut reached = std::mem::ManuallyDrop::new(counter.reached(1));
        let polled = Pin::new(&mut *reached).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // The counter has the last one.
        drop(waker);
    }
    drop(counter);
    assert_eq!(Arc::strong_count(&wakes), 1);
    assert!(counters.begin().is_some(), "its index is lost");
}

#[test]
fn an_immediate_of_no_counter_is_stale() {
    let counters = ImmediateCounters::new(5);
    let counter = counters.begin().unwrap();
    for immediate in [1, 5, 7, 8, u32::MAX] {
        assert!(!counters.record(immediate), "{immediate}");
    }
    assert_eq!(counter.count(), 0);
}

#[test]
fn index_and_generation_share_the_immediate() {
    for (count, bits) in [
        (0, 2),
        (1, 2),
        (4, 2),
        (5, 3),
        (64, 6),
        (65, 7),
        (u16::MAX, 16),
    ] {
        if cfg!(miri) && count > 100 {
            continue; // It takes minutes there.
        }
        let counters = ImmediateCounters::new(count);
        assert_eq!(counters.shared.index_bits, bits, "{count}");
        let all: Vec<_> = std::iter::from_fn(|| counters.begin()).collect();
        assert_eq!(all.len(), usize::from(count.max(1)));
        let last = all.last().unwrap();
        assert!(counters.record(last.immediate()));
        assert_eq!(all.iter().filter(|counter| counter.count() > 0).count(), 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "65,535 counters take minutes")]
fn an_index_is_retired_after_its_last_generation() {
    let counters = ImmediateCounters::new(u16::MAX);
    let mut free = counters.shared.lock();
    free.indices.truncate(1);
    free.next[0] = u32::from(u16::MAX);
    drop(free);
    let last = counters.begin().unwrap();
    let immediate = last.immediate();
    assert!(counters.record(immediate));
    counters.recycle();
    drop(last);
    assert!(counters.begin().is_none());
    assert!(!counters.record(immediate));
    counters.recycle();
    assert_eq!(counters.begin().unwrap().immediate(), 0);
}

#[test]
fn a_task_is_woken_once_when_its_count_is_reached() {
    let counters = ImmediateCounters::new(2);
    let counter = counters.begin().unwrap();
    let wakes: [Arc<Wakes>; 3] = std::array::from_fn(|_| Arc::default());
    let mut waits = [2, 3, 2].map(|count| counter.reached(count));
    for (wait, wakes) in waits.iter_mut().zip(&wakes) {
        let waker = Waker::from(Arc::clone(wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut *wait).poll(&mut cx).is_pending());
        assert!(Pin::new(wait).poll(&mut cx).is_pending());
    }
    let [_, third, cancelled] = waits;
    drop(cancelled);
    let woken = || {
        wakes
            .each_ref()
            .map(|wakes| wakes.0.load(Ordering::Relaxed))
    };
    for expected in [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0]] {
        assert!(counters.record(counter.immediate()));
        assert_eq!(woken(), expected);
    }
    let mut third = third;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut third).poll(&mut cx).is_ready());
    assert!(Arc::strong_count(&wakes[0]) == 1, "no waker is kept");
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let counters = ImmediateCounters::new(1);
    let counter = counters.begin().unwrap();
    let soon = Instant::now() + Duration::from_millis(5);
    assert!(!counter.wait(1, Some(soon)));
    assert!(Instant::now() >= soon);
    assert!(counter.wait(0, None));
}
