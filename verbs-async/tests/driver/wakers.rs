//! Wakers and buffers with foreign code, which may call the driver or panic.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use verbs_channel::Queue;
use verbs_harness::allocations::allocations;

use crate::driver::{Driver, Submission};
use crate::fixture::{Bench, WakeCounter, bounded};
use crate::hooks::{Moment, waker};
use crate::ring::{End, FakeDevice, FakeRing, QUEUES, Request, Ticket, poll};

/// Code that calls the driver when it runs.
#[derive(Clone)]
struct Back {
    device: Arc<FakeDevice>,
    driver: Weak<Driver<FakeRing>>,
    seen: Arc<Mutex<Vec<Moment>>>,
    gone: Arc<AtomicUsize>,
}

impl Back {
    fn new(bench: &Bench) -> Self {
        Self {
            device: Arc::clone(&bench.device),
            driver: Arc::downgrade(&bench.driver),
            seen: Arc::default(),
            gone: Arc::default(),
        }
    }

    /// Calls everything of a driver that takes its lock.
    fn comes(&self) {
        let Some(driver) = self.driver.upgrade() else {
            return;
        };
        let key = driver.start(1, self.device.request(1000, 1), usize::MAX);
        let mut cx = Context::from_waker(Waker::noop());
        drop(poll(&driver, &key, &mut cx));
        driver.abandon(key);
        driver.on_event();
    }

    /// A waker that does that when it is cloned, woken and dropped.
    fn waker(&self) -> Waker {
        let back = self.clone();
        waker(move |moment| {
            back.seen.lock().unwrap().push(moment);
            back.comes();
        })
    }

    /// The number of clones, wakes and drops of its wakers since the last call.
    fn seen(&self) -> [usize; 3] {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        [Moment::Clone, Moment::Wake, Moment::Drop]
            .map(|moment| seen.iter().filter(|seen| **seen == moment).count())
    }

    /// A request whose buffer does that when it is dropped.
    fn request(&self, id: usize) -> Request {
        let mut request = self.device.request(id, 0);
        let back = self.clone();
        request.buffer.hook = Some(Box::new(move || {
            back.gone.fetch_add(1, Ordering::Relaxed);
            back.comes();
        }));
        request
    }

    fn gone(&self) -> usize {
        self.gone.load(Ordering::Relaxed)
    }
}

/// A task that waits until the queues of the first channel are empty.
struct Drain<'a> {
    bench: &'a Bench,
    waker: &'a Waker,
    key: Option<usize>,
}

impl<'a> Drain<'a> {
    const fn new(bench: &'a Bench, waker: &'a Waker) -> Self {
        let key = None;
        Self { bench, waker, key }
    }

    fn poll(&mut self, queues: &'static [Queue]) -> Poll<()> {
        let mut cx = Context::from_waker(self.waker);
        let driver = &self.bench.driver;
        driver.poll_drained(0, queues, &mut self.key, &mut cx)
    }

    fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            self.bench.driver.cancel_drained(0, key);
        }
    }
}

#[test]
fn wakers_run_without_the_lock() {
    bounded(|| {
        let bench = Bench::new(1);
        let back = Back::new(&bench);
        let waker = back.waker();
        let sleeps = |key: Submission<Ticket>| assert!(bench.poll_with(key, &waker).is_pending());
        // In flight and in the backlog, and replaced there.
        let keys = [0, 1].map(|id| bench.start(id));
        keys.into_iter().for_each(sleeps);
        assert_eq!(back.seen(), [2, 0, 0]);
        keys.into_iter().for_each(sleeps);
        assert_eq!(back.seen(), [2, 0, 2]);
        // Woken, also after it was posted from the backlog.
        bench.complete([0, 1]);
        assert_eq!(back.seen(), [0, 2, 0]);
        // Not needed: it has completed.
        assert!(bench.poll_with(keys[1], &waker).is_ready());
        assert_eq!(back.seen(), [1, 0, 1]);
        assert!(bench.poll_with(keys[0], &waker).is_ready());
        assert_eq!(back.seen(), [0, 0, 0]);
        // It is dispatched before its waker is woken.
        let key = bench.start(2);
        sleeps(key);
        let _raised = bench.device.complete(2);
        assert!(bench.poll_with(key, &waker).is_ready());
        assert_eq!(back.seen(), [1, 0, 1]);
        // Abandoned in the backlog, after it was posted from there, and in flight.
        let keys = [3, 4, 5].map(|id| bench.start(id));
        keys.into_iter().for_each(sleeps);
        bench.complete([3]);
        assert_eq!(back.seen(), [3, 1, 0]);
        bench.driver.abandon(keys[2]);
        bench.driver.abandon(keys[1]);
        assert_eq!(back.seen(), [0, 0, 2]);
        bench.complete([4]);
        let key = bench.start(6);
        sleeps(key);
        bench.driver.abandon(key);
        assert_eq!(back.seen(), [1, 0, 1]);
        // It was woken for its outcome or its rejection, and is abandoned.
        bench.complete([6]);
        let keys = [7, 8].map(|id| bench.start(id));
        keys.into_iter().for_each(sleeps);
        bench.driver.with(None, |ring| ring.0.lock().take_down());
        keys.into_iter().for_each(|key| bench.driver.abandon(key));
        assert_eq!(back.seen(), [2, 2, 0]);
    });
}

#[test]
fn drain_wakers_run_without_the_lock() {
    bounded(|| {
        let bench = Bench::new(1);
        let back = Back::new(&bench);
        let waker = back.waker();
        let mut drain = Drain::new(&bench, &waker);
        bench.start(0);
        assert!(drain.poll(&QUEUES).is_pending());
        assert_eq!(back.seen(), [1, 0, 0]);
        assert!(drain.poll(&QUEUES).is_pending());
        assert_eq!(back.seen(), [1, 0, 1]);
        bench.complete([0]);
        assert_eq!(back.seen(), [0, 1, 0]);
        // Not needed, and neither is the previous one.
        bench.start(1);
        assert!(drain.poll(&QUEUES).is_pending());
        assert!(drain.poll(&[Queue::Receive]).is_ready());
        assert_eq!(back.seen(), [2, 0, 2]);
        bench.complete([1]);
        assert_eq!(back.seen(), [0, 0, 0]);
        // It does not wait any more.
        bench.start(2);
        assert!(drain.poll(&QUEUES).is_pending());
        drain.cancel();
        assert_eq!(back.seen(), [1, 0, 1]);
        bench.complete([2]);
        assert_eq!(back.seen(), [0, 0, 0]);
    });
}

#[test]
fn buffers_are_dropped_without_the_lock() {
    bounded(|| {
        let bench = Bench::new(1);
        let back = Back::new(&bench);
        let start = |id| bench.start_on(0, back.request(id));
        // Abandoned in the backlog; in flight, where another poll dispatches it; and after it has completed.
        let keys = [0, 1, 2].map(start);
        bench.driver.abandon(keys[1]);
        assert_eq!(back.gone(), 1);
        bench.driver.abandon(keys[0]);
        assert_eq!(back.gone(), 1, "the device has it");
        bench.complete([0]);
        assert_eq!(back.gone(), 2);
        assert!(bench.poll_with(keys[2], Waker::noop()).is_pending());
        bench.complete([2]);
        bench.driver.abandon(keys[2]);
        assert_eq!(back.gone(), 3);
        // Rejected.
        let keys = [3, 4].map(start);
        bench.driver.with(None, |ring| ring.0.lock().take_down());
        keys.into_iter().for_each(|key| bench.driver.abandon(key));
        assert_eq!(back.gone(), 5);
    });
}

#[test]
fn panicking_buffer_drop_stops_no_other() {
    let bench = Bench::new(4);
    let keys = [0, 1, 2].map(|id| {
        let mut request = bench.device.request(id, 0);
        let panics = || std::panic::resume_unwind(Box::new("a buffer's"));
        request.buffer.hook = (id == 0).then(|| -> Box<dyn FnOnce() + Send> { Box::new(panics) });
        bench.start_on(0, request)
    });
    let counter = WakeCounter::new();
    assert!(bench.poll(keys[2], &counter).is_pending());
    bench.driver.abandon(keys[0]);
    bench.driver.abandon(keys[1]);
    // The dropped buffers have no owner; the woken task has not dropped them.
    for id in [0, 1, 2] {
        let _raised = bench.device.complete(id);
    }
    bench.driver.on_event();
    assert_eq!((bench.device.gone(), counter.wakes()), (2, 1));
    assert_eq!(bench.end(keys[2]), Some((2, End::Success)));
}

#[test]
fn panicking_waker_drop_loses_no_outcome() {
    let bench = Bench::new(1);
    let panics = waker(|moment| {
        if moment == Moment::Drop {
            std::panic::resume_unwind(Box::new("a drop's"));
        }
    });
    let panics = ManuallyDrop::new(panics);
    let poll = |key| bench.poll_with(key, &panics);
    let keys = [0, 1].map(|id| bench.start(id));
    for key in keys.into_iter().chain(keys) {
        assert!(poll(key).is_pending());
    }
    let mut drain = Drain::new(&bench, &panics);
    assert!(drain.poll(&[Queue::Send]).is_pending());
    assert!(drain.poll(&QUEUES).is_pending());
    bench.driver.abandon(keys[0]);
    bench.complete([0, 1]);
    // Not needed, each of them.
    assert!(poll(keys[1]).is_ready());
    assert!(drain.poll(&QUEUES).is_ready());
    bench.start(2);
    assert!(drain.poll(&QUEUES).is_pending());
    assert!(drain.poll(&[Queue::Receive]).is_ready());
    assert!(drain.poll(&QUEUES).is_pending());
    drain.cancel();
}

#[test]
fn panicking_waker_clone_leaves_no_task_asleep() {
    let bench = Bench::new(2);
    let keys = [0, 1].map(|id| bench.start(id));
    let counter = WakeCounter::new();
    assert!(bench.poll(keys[0], &counter).is_pending());
    assert!(bench.device.complete(0), "its event has not been handled");
    let panics = waker(|moment| {
        if moment == Moment::Clone {
            std::panic::resume_unwind(Box::new("a clone's"));
        }
    });
    let poll = AssertUnwindSafe(|| bench.poll_with(keys[1], &panics));
    assert!(catch_unwind(poll).is_err());
    assert_eq!(
        counter.wakes(),
        1,
        "it has dispatched the other's completion"
    );
    bench.complete([1]);
    assert!(keys.into_iter().all(|key| bench.end(key).is_some()));
}

#[test]
fn the_last_waker_is_the_one_that_is_woken() {
    let bench = Bench::new(1);
    let key = bench.start(0);
    let counters = [(); 3].map(|()| WakeCounter::new());
    for counter in &counters {
        assert!(bench.poll(key, counter).is_pending());
        assert!(bench.poll(key, counter).is_pending());
    }
    // Replaced wakers are not kept.
    assert_eq!(counters.each_ref().map(Arc::strong_count), [1, 1, 2]);
    bench.complete([0]);
    assert_eq!(
        counters.each_ref().map(|counter| counter.wakes()),
        [0, 0, 1]
    );
    assert_eq!(counters.each_ref().map(Arc::strong_count), [1, 1, 1]);
}

#[test]
fn all_sleeping_tasks_are_woken() {
    for count in [15, 16, 17, 32, 100] {
        let bench = Bench::new(count);
        let keys: Vec<_> = (0..count).map(|id| bench.start(id)).collect();
        let counters: Vec<_> = keys.iter().map(|_key| WakeCounter::new()).collect();
        for (key, counter) in keys.iter().zip(&counters) {
            assert!(bench.poll(*key, counter).is_pending());
        }
        for id in 0..count {
            let _raised = bench.device.complete(id);
        }
        bench.driver.on_event();
        assert!(
            counters.iter().all(|counter| counter.wakes() == 1),
            "of {count}"
        );
        assert!(keys.into_iter().all(|key| bench.end(key).is_some()));
    }
}

#[test]
fn wakers_that_poll_in_place_do_not_recurse() {
    /// Polls its operation in place when it is woken, and then abandons another, which has completed.
    struct InPlace {
        driver: Arc<Driver<FakeRing>>,
        keys: [Submission<Ticket>; 2],
        done: Arc<AtomicUsize>,
    }
    impl Wake for InPlace {
        fn wake(self: Arc<Self>) {
            let [own, other] = self.keys;
            let mut cx = Context::from_waker(Waker::noop());
            if poll(&self.driver, &own, &mut cx).is_ready() {
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            self.driver.abandon(other);
        }
    }
    const COUNT: usize = if cfg!(miri) { 100 } else { 60_000 };
    let run = || {
        let bench = Bench::new(2 * COUNT);
        let done = Arc::<AtomicUsize>::default();
        for id in 0..COUNT {
            let keys = [2 * id, 2 * id + 1].map(|id| bench.start(id));
            let waker = Waker::from(Arc::new(InPlace {
                driver: Arc::clone(&bench.driver),
                keys,
                done: Arc::clone(&done),
            }));
            assert!(bench.poll_with(keys[0], &waker).is_pending());
        }
        bench.driver.with(None, |ring| ring.0.lock().take_down());
        assert_eq!(done.load(Ordering::Relaxed), COUNT);
        assert_eq!(bench.device.gone(), 2 * COUNT);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn buffers_that_abandon_others_on_drop_do_not_recurse() {
    const COUNT: usize = if cfg!(miri) { 100 } else { 60_000 };
    let run = || {
        let bench = Bench::new(COUNT);
        // Each abandons the next, which has completed, when its own buffer is dropped.
        let mut next = None;
        let mut first = None;
        for id in 0..COUNT {
            let mut request = bench.device.request(id, 0);
            if let Some(next) = next.take() {
                let driver = Arc::downgrade(&bench.driver);
                request.buffer.hook = Some(Box::new(move || {
                    if let Some(driver) = driver.upgrade() {
                        driver.abandon(next);
                    }
                }));
            }
            let key = bench.start_on(0, request);
            first = Some(key);
            next = Some(key);
        }
        bench.driver.abandon(first.unwrap());
        bench.driver.with(None, |ring| ring.0.lock().take_down());
        bench.driver.on_event();
        assert_eq!(bench.device.gone(), COUNT);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn panicking_waker_leaves_no_task_asleep() {
    struct Panics;
    /// The payload of its panic.
    struct Bomb;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new(Bomb));
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "it panics once more");
        }
    }
    let bench = Bench::new(4);
    let keys = [0, 1, 2].map(|id| bench.start(id));
    let counters = [(); 2].map(|()| WakeCounter::new());
    assert!(bench.poll(keys[0], &counters[0]).is_pending());
    let panics = Waker::from(Arc::new(Panics));
    assert!(bench.poll_with(keys[1], &panics).is_pending());
    assert!(bench.poll(keys[2], &counters[1]).is_pending());
    // All at once; the one that panics is the first.
    for id in [1, 0, 2] {
        let _raised = bench.device.complete(id);
    }
    bench.driver.on_event();
    assert_eq!(counters.map(|counter| counter.wakes()), [1, 1]);
    assert!(keys.into_iter().all(|key| bench.end(key).is_some()));
}

#[test]
fn waking_allocates_nothing_once_the_driver_is_warm() {
    /// Sleeps for another operation, and is woken.
    struct Works {
        device: Arc<FakeDevice>,
        driver: Arc<Driver<FakeRing>>,
    }
    impl Wake for Works {
        fn wake(self: Arc<Self>) {
            let key = self.driver.start(0, self.device.request(1, 1), usize::MAX);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(poll(&self.driver, &key, &mut cx).is_pending());
            assert!(self.device.complete(1));
            self.driver.on_event();
            assert!(poll(&self.driver, &key, &mut cx).is_ready());
        }
    }
    let bench = Bench::new(1);
    let waker = Waker::from(Arc::new(Works {
        device: Arc::clone(&bench.device),
        driver: Arc::clone(&bench.driver),
    }));
    let round = || {
        let key = bench.start(0);
        assert!(bench.poll_with(key, &waker).is_pending());
        bench.complete([0]);
        assert!(bench.poll_with(key, &waker).is_ready());
        bench.device.lock().posted.clear();
    };
    (0..3).for_each(|_| round());
    let before = allocations();
    (0..if cfg!(miri) { 5 } else { 100 }).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
