//! Wakers that do what wakers may.

use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Wake, Waker};

use crate::allocations::allocations;
use crate::driver::Driver;
use crate::ring::{Card, FakeRing, Outcome};
use crate::task::{Bell, Bench, bounded};

/// A waker that comes back to the driver when it is woken, and when it is dropped.
struct Comes {
    card: Arc<Card>,
    driver: Arc<Driver<FakeRing>>,
    back: Mutex<usize>,
}

impl Comes {
    fn waker(bench: &Bench) -> (Arc<Self>, Waker) {
        let comes = Arc::new(Self {
            card: Arc::clone(&bench.card),
            driver: Arc::clone(&bench.driver),
            back: Mutex::new(0),
        });
        (Arc::clone(&comes), Waker::from(comes))
    }

    fn back(&self) {
        *self.back.lock().unwrap() += 1;
        let key = self.driver.start(1, self.card.work(1000, 1));
        let mut cx = Context::from_waker(Waker::noop());
        drop(self.driver.poll::<Outcome>(&key, &mut cx));
        self.driver.abandon(key);
        self.driver.announced();
    }
}

impl Wake for Comes {
    fn wake(self: Arc<Self>) {
        self.back();
    }
}

impl Drop for Comes {
    fn drop(&mut self) {
        self.back();
    }
}

#[test]
fn a_waker_that_comes_back_finds_the_lock_free() {
    bounded(|| {
        let bench = Bench::new(1);
        let (comes, waker) = Comes::waker(&bench);
        let keys = [0, 1].map(|id| bench.start(id));
        for key in keys {
            assert!(bench.poll_with(key, &waker).is_pending());
        }
        bench.complete([0, 1]);
        assert_eq!(*comes.back.lock().unwrap(), 2);
        let mut cx = Context::from_waker(&waker);
        bench.start(2);
        assert!(
            bench
                .driver
                .poll_drained(0, [true, false], &mut cx)
                .is_pending()
        );
        bench.complete([2]);
        assert_eq!(*comes.back.lock().unwrap(), 3);
    });
}

#[test]
fn a_waker_that_comes_back_when_it_is_dropped_finds_the_lock_free() {
    bounded(|| {
        let bench = Bench::new(1);
        // The driver has the last of each: it replaces one, one is in flight, one in line.
        let keys = [0, 1].map(|id| bench.start(id));
        for key in keys.into_iter().chain(keys) {
            let (_, waker) = Comes::waker(&bench);
            assert!(bench.poll_with(key, &waker).is_pending());
        }
        keys.into_iter()
            .rev()
            .for_each(|key| bench.driver.abandon(key));
        bench.complete([0]);
        for _ in 0..2 {
            bench.start_on(0, bench.card.work(7, 1));
            let (_, waker) = Comes::waker(&bench);
            let mut cx = Context::from_waker(&waker);
            drop(waker.clone());
            assert!(
                bench
                    .driver
                    .poll_drained(0, [false, true], &mut cx)
                    .is_pending()
            );
        }
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            bench
                .driver
                .poll_drained(0, [false, true], &mut cx)
                .is_pending()
        );
    });
}

#[test]
fn the_last_waker_is_the_one_that_is_woken() {
    let bench = Bench::new(1);
    let key = bench.start(0);
    let bells = [(); 3].map(|()| Bell::new());
    for bell in &bells {
        assert!(bench.poll(key, bell).is_pending());
        assert!(bench.poll(key, bell).is_pending());
    }
    // Those that were replaced are not kept.
    assert_eq!(bells.each_ref().map(Arc::strong_count), [1, 1, 2]);
    bench.complete([0]);
    assert_eq!(bells.each_ref().map(|bell| bell.rings()), [0, 0, 1]);
    assert_eq!(bells.each_ref().map(Arc::strong_count), [1, 1, 1]);
}

#[test]
fn a_waker_that_panics_leaves_nobody_asleep() {
    struct Panics;
    /// What its panic leaves behind.
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
    let bells = [(); 2].map(|()| Bell::new());
    assert!(bench.poll(keys[0], &bells[0]).is_pending());
    let panics = Waker::from(Arc::new(Panics));
    assert!(bench.poll_with(keys[1], &panics).is_pending());
    assert!(bench.poll(keys[2], &bells[1]).is_pending());
    // All in one go, the one that panics first.
    for id in [1, 0, 2] {
        let _raised = bench.card.complete(id);
    }
    bench.driver.announced();
    assert_eq!(bells.map(|bell| bell.rings()), [1, 1]);
    assert!(keys.into_iter().all(|key| bench.end(key).is_some()));
}

#[test]
fn what_a_waker_does_allocates_nothing_once_the_driver_is_warm() {
    /// Has another operation slept for and woken.
    struct Works {
        card: Arc<Card>,
        driver: Arc<Driver<FakeRing>>,
    }
    impl Wake for Works {
        fn wake(self: Arc<Self>) {
            let key = self.driver.start(0, self.card.work(1, 1));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(self.driver.poll::<Outcome>(&key, &mut cx).is_pending());
            assert!(self.card.complete(1));
            self.driver.announced();
            assert!(self.driver.poll::<Outcome>(&key, &mut cx).is_ready());
        }
    }
    let bench = Bench::new(1);
    let waker = Waker::from(Arc::new(Works {
        card: Arc::clone(&bench.card),
        driver: Arc::clone(&bench.driver),
    }));
    let round = || {
        let key = bench.start(0);
        assert!(bench.poll_with(key, &waker).is_pending());
        bench.complete([0]);
        assert!(bench.poll_with(key, &waker).is_ready());
        bench.card.lock().posted.clear();
    };
    (0..3).for_each(|_| round());
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
