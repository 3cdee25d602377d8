//! How operations end: each once, for its own task, or abandoned.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use verbs_harness::allocations::allocations;

use crate::fixture::{Bench, WakeCounter, bounded};
use crate::hooks::{Moment, waker};
use crate::ring::{Buffer, End};

#[test]
fn outcome_goes_to_its_own_op_and_wakes_no_other() {
    let bench = Bench::new(8);
    let keys: Vec<_> = (0..8).map(|id| bench.start(id)).collect();
    let counters = [(); 8].map(|()| WakeCounter::new());
    for (key, counter) in keys.iter().zip(&counters) {
        assert!(bench.poll(*key, counter).is_pending());
    }
    for id in [3, 7, 0, 5] {
        bench.complete([id]);
        assert_eq!(counters[id].wakes(), 1);
        assert_eq!(bench.end(keys[id]), Some((id, End::Success)));
    }
    assert_eq!(
        counters.map(|counter| counter.wakes()),
        [1, 0, 0, 1, 0, 1, 0, 1]
    );
}

#[test]
fn reused_slot_gives_no_outcome_to_another_op() {
    let bench = Bench::new(1);
    // Each reuses slot 0, and no outcome is taken until the end.
    let keys: Vec<_> = (0..5)
        .map(|id| {
            let key = bench.start(id);
            let waits = bench.start(100 + id);
            bench.driver.abandon(waits);
            bench.complete([id]);
            bench.driver.on_event();
            key
        })
        .collect();
    for (id, key) in keys.into_iter().enumerate().rev() {
        assert_eq!(bench.end(key), Some((id, End::Success)));
    }
}

#[test]
fn op_abandoned_in_flight_keeps_its_buffer_until_its_completion() {
    let bench = Bench::new(4);
    let keys = [0, 1, 2].map(|id| bench.start(id));
    keys.into_iter().for_each(|key| bench.driver.abandon(key));
    assert_eq!(bench.device.gone(), 0, "the device has it");
    // No operation is polled: only events drive.
    bench.complete([1]);
    assert_eq!(bench.device.gone(), 1);
    bench.complete([0, 2]);
    assert_eq!(bench.device.gone(), 3);
}

#[test]
fn op_abandoned_after_its_completion_frees_its_buffer() {
    let bench = Bench::new(4);
    let keys = [0, 1].map(|id| bench.start(id));
    // Dispatched by another operation's poll, or by none.
    assert!(!bench.device.complete(0));
    assert!(bench.end(keys[1]).is_none());
    bench.driver.abandon(keys[0]);
    assert_eq!(bench.device.gone(), 1);
    let unseen = bench.start(2);
    assert!(bench.device.complete(2));
    bench.driver.abandon(unseen);
    assert_eq!(bench.device.gone(), 2);
}

#[test]
fn failed_arming_aborts_all_ops_in_flight() {
    let bench = Bench::new(1);
    bench.device.lock().arming_fails = true;
    let keys = [0, 1].map(|id| bench.start(id));
    assert_eq!(bench.end(keys[0]), Some((0, End::Aborted)));
    assert_eq!(bench.end(keys[1]), Some((1, End::Rejected)));
}

#[test]
fn closing_queue_pairs_are_dropped_without_the_lock() {
    bounded(|| {
        let bench = std::sync::Arc::new(Bench::new(4));
        let (dropped, order) = std::sync::mpsc::channel();
        // Each uses the driver, as what ends the operations in flight does.
        let closing = [0, 1].map(|id| {
            let (bench, dropped) = (std::sync::Arc::downgrade(&bench), dropped.clone());
            let drops = move || {
                bench.upgrade().unwrap().driver.with(Some(0), |_| ());
                dropped.send(id).unwrap();
            };
            let mut buffer = Buffer::default();
            buffer.hook = Some(Box::new(drops));
            buffer
        });
        bench
            .driver
            .with_ring(|ring| ring.0.lock().closing.extend(closing));
        assert!(order.try_recv().is_err());
        bench.driver.settle();
        assert_eq!(order.try_iter().count(), 2);
    });
}

#[test]
fn closing_inside_a_wake_up_does_not_recurse() {
    const COUNT: usize = if cfg!(miri) { 100 } else { 60_000 };
    let run = || {
        let bench = std::sync::Arc::new(Bench::new(4));
        let dropped = std::sync::Arc::<AtomicUsize>::default();
        let weak = std::sync::Arc::downgrade(&bench);
        let seen = std::sync::Arc::clone(&dropped);
        // Takes channels down. As without helper threads, what is closing uses the driver in its drop.
        let waker = waker(move |moment| {
            let Some(bench) = weak.upgrade().filter(|_| moment == Moment::Wake) else {
                return;
            };
            let closing = (0..COUNT).map(|_| {
                let (bench, dropped) =
                    (std::sync::Weak::clone(&weak), std::sync::Arc::clone(&seen));
                let drops = move || {
                    bench.upgrade().unwrap().driver.with(Some(0), |_| ());
                    dropped.fetch_add(1, Ordering::Relaxed);
                };
                let mut buffer = Buffer::default();
                buffer.hook = Some(Box::new(drops));
                buffer
            });
            bench
                .driver
                .with_ring(|ring| ring.0.lock().closing.extend(closing));
            bench.driver.settle();
            // The waker may wait for that.
            assert_eq!(seen.load(Ordering::Relaxed), COUNT);
        });
        let key = bench.start(0);
        assert!(bench.poll_with(key, &waker).is_pending());
        bench.complete([0]);
        assert_eq!(dropped.load(Ordering::Relaxed), COUNT);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn busy_poll_ends_with_the_completion_or_its_timeout() {
    bounded(|| {
        let bench = Bench::new(4);
        bench.driver.set_busy_poll(Duration::from_secs(3600));
        let done = bench.start(0);
        let device = std::sync::Arc::clone(&bench.device);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            assert!(
                !device.complete(0),
                "it is not asleep, and has armed nothing"
            );
        });
        assert_eq!(bench.end(done), Some((0, End::Success)));
        late.join().unwrap();
        assert_eq!(bench.device.lock().armings, 0);

        let window = Duration::from_millis(5);
        bench.driver.set_busy_poll(window);
        let (waits, counter) = (bench.start(1), WakeCounter::new());
        let start = Instant::now();
        assert!(bench.poll(waits, &counter).is_pending());
        assert!(start.elapsed() >= window);
        assert_eq!(bench.device.lock().armings, 1);
        bench.complete([1]);
        assert_eq!(counter.wakes(), 1);
    });
}

#[test]
fn busy_poll_lets_other_threads_lock_and_complete() {
    bounded(|| {
        let bench = std::sync::Arc::new(Bench::new(4));
        let (key, sleeps, counter) = (bench.start(0), bench.start(9), WakeCounter::new());
        assert!(bench.poll(sleeps, &counter).is_pending());
        bench.driver.set_busy_poll(Duration::from_secs(3600));
        let looked = bench.device.lock().polls;
        let (other, others_counter) = (
            std::sync::Arc::clone(&bench),
            std::sync::Arc::clone(&counter),
        );
        let starts = std::thread::spawn(move || {
            let until = |is_so: &dyn Fn() -> bool| {
                while !is_so() {
                    std::thread::yield_now();
                }
            };
            until(&|| other.device.lock().polls > looked + 2);
            let keys = [1, 2].map(|id| other.start(id));
            keys.into_iter().for_each(|key| other.driver.abandon(key));
            // Dispatched by the task that polls, which wakes the other.
            let _raised = other.device.complete(9);
            let _raised = other.device.complete(2);
            until(&|| others_counter.wakes() == 1 && other.device.gone() == 1);
            let _raised = other.device.complete(0);
        });
        assert_eq!(bench.end(key), Some((0, End::Success)));
        starts.join().unwrap();
    });
}

#[test]
fn the_queue_is_armed_once_for_a_sleep_and_not_while_completions_come() {
    let bench = Bench::new(4);
    for round in 1..=3 {
        let (key, counter) = (bench.start(round), WakeCounter::new());
        // However often it is polled, and whichever other tasks wait.
        let other = bench.start(100 + round);
        for _ in 0..5 {
            assert!(bench.poll(key, &counter).is_pending());
            assert!(bench.end(other).is_none());
        }
        assert_eq!(bench.device.lock().armings, round);
        assert!(bench.device.complete(100 + round));
        assert!(!bench.device.complete(round), "one event stands for both");
        bench.driver.on_event();
        assert_eq!(counter.wakes(), 1);
        assert!(bench.end(key).is_some() && bench.end(other).is_some());
    }
    // A completion that is there when it is polled costs no arming.
    for id in 10..20 {
        let key = bench.start(id);
        assert!(!bench.device.complete(id));
        assert!(bench.end(key).is_some());
    }
    assert_eq!(bench.device.lock().armings, 3);
}

#[test]
fn an_operation_allocates_nothing_once_the_driver_is_warm() {
    let bench = Bench::new(2);
    let counter = Waker::from(WakeCounter::new());
    // In flight, in the backlog, woken, abandoned in flight and in the backlog.
    let round = || {
        let keys = std::array::from_fn::<_, 6, _>(|id| {
            let key = bench.start(id);
            assert!(bench.poll_with(key, &counter).is_pending());
            key
        });
        bench.driver.abandon(keys[0]);
        bench.driver.abandon(keys[4]);
        for id in [0, 1, 2, 3, 5] {
            let _raised = bench.device.complete(id);
            bench.driver.on_event();
        }
        for key in [1, 2, 3, 5] {
            assert!(bench.poll_with(keys[key], &counter).is_ready());
        }
        bench.device.lock().posted.clear();
    };
    (0..3).for_each(|_| round());
    let before = allocations();
    (0..if cfg!(miri) { 5 } else { 100 }).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}

#[test]
fn polling_an_op_wakes_completed_waiters() {
    let bench = Bench::new(4);
    let keys = [0, 1, 2, 3].map(|id| bench.start(id));
    let counters = [(); 3].map(|()| WakeCounter::new());
    for (key, counter) in keys.iter().zip(&counters) {
        assert!(bench.poll(*key, counter).is_pending());
    }
    assert!(
        bench.device.complete(0),
        "it raises an event, which has not been handled"
    );
    for id in 1..4 {
        assert!(!bench.device.complete(id));
    }
    assert_eq!(bench.end(keys[3]), Some((3, End::Success)));
    assert_eq!(counters.map(|counter| counter.wakes()), [1; 3]);
}

#[test]
fn polling_a_queued_op_wakes_completed_waiters() {
    let bench = Bench::new(1);
    let counters = [(); 2].map(|()| WakeCounter::new());
    let keys = [0, 1].map(|id| bench.start(id));
    assert!(bench.poll(keys[0], &counters[0]).is_pending());
    assert!(bench.device.complete(0), "its event has not been handled");
    assert!(bench.poll(keys[1], &counters[1]).is_pending());
    assert_eq!(counters.each_ref().map(|counter| counter.wakes()), [1, 0]);
    // It was posted, and the event that is on its way covers both.
    assert!(!bench.device.complete(1));
    bench.driver.on_event();
    assert_eq!(counters.each_ref().map(|counter| counter.wakes()), [1, 1]);
}

#[test]
fn known_completion_costs_no_poll_no_arming_and_no_time() {
    bounded(|| {
        let bench = Bench::new(1);
        // One that was posted from the backlog, and one that was rejected.
        let keys = [0, 1].map(|id| bench.start(id));
        let counter = WakeCounter::new();
        assert!(bench.poll(keys[1], &counter).is_pending());
        bench.complete([0, 1]);
        bench.device.lock().take_down();
        let refused = bench.start(2);
        let looked = |bench: &Bench| {
            let device = bench.device.lock();
            (device.polls, device.armings)
        };
        let before = looked(&bench);
        bench.driver.set_busy_poll(Duration::from_secs(3600));
        assert_eq!(bench.end(keys[1]), Some((1, End::Success)));
        assert_eq!(bench.end(refused), Some((2, End::Rejected)));
        assert_eq!(looked(&bench), before);
    });
}

#[test]
fn queue_is_not_armed_without_waiters() {
    let bench = Bench::new(8);
    let keys: Vec<_> = (0..8).map(|id| bench.start(id)).collect();
    let counter = WakeCounter::new();
    // One task awaits one after the other, of many in flight.
    for (round, key) in keys.iter().enumerate() {
        assert!(bench.poll(*key, &counter).is_pending());
        assert_eq!(bench.device.lock().armings, round + 1);
        bench.complete([round]);
        assert_eq!(counter.wakes(), round + 1);
        assert_eq!(bench.device.lock().armings, round + 1, "no task sleeps");
        assert_eq!(bench.end(*key), Some((round, End::Success)));
    }
    // The queue is not polled for it either.
    let polls = bench.device.lock().polls;
    bench.driver.on_event();
    assert_eq!(bench.device.lock().polls, polls);
}

#[test]
fn queue_is_not_armed_if_the_op_completes_before_its_sleep() {
    let bench = Bench::new(1);
    let key = bench.start(0);
    // Between its two polls: its waker is cloned before the second.
    let device = std::sync::Arc::clone(&bench.device);
    let ends = waker(move |moment| {
        if moment == Moment::Clone {
            assert!(!device.complete(0), "nothing is armed");
        }
    });
    assert!(bench.poll_with(key, &ends).is_ready());
    assert_eq!(bench.device.lock().armings, 0);
    // The same holds for one that was posted from the backlog and has completed unnoticed.
    let keys = [1, 2].map(|id| bench.start(id));
    bench.complete([1]);
    let armings = bench.device.lock().armings;
    assert!(!bench.device.complete(2), "no task waits");
    assert_eq!(bench.end(keys[1]), Some((2, End::Success)));
    assert_eq!(bench.device.lock().armings, armings);
}

#[test]
fn completion_just_before_arming_is_found() {
    let bench = Bench::new(4);
    let keys = [0, 1, 2].map(|id| bench.start(id));
    bench.device.lock().before_arming = Some(0);
    assert_eq!(bench.end(keys[0]), Some((0, End::Success)));
    // Another operation's completion as well, and one of an abandoned operation.
    bench.driver.on_event();
    let counters = [(); 2].map(|()| WakeCounter::new());
    assert!(bench.poll(keys[1], &counters[0]).is_pending());
    bench.device.lock().before_arming = Some(1);
    bench.driver.on_event();
    assert_eq!(counters[0].wakes(), 1);
    bench.device.lock().before_arming = Some(2);
    bench.driver.abandon(keys[2]);
    bench.driver.on_event();
    assert_eq!(bench.device.gone(), 2);
}

#[test]
fn queue_is_armed_again_for_other_waiters() {
    let bench = Bench::new(8);
    let keys = [0, 1].map(|id| bench.start(id));
    let counters = [(); 2].map(|()| WakeCounter::new());
    for (key, counter) in keys.iter().zip(&counters) {
        assert!(bench.poll(*key, counter).is_pending());
    }
    bench.complete([0]);
    bench.complete([1]);
    assert_eq!(counters.map(|counter| counter.wakes()), [1, 1]);
    assert_eq!(bench.device.lock().armings, 2);
}
