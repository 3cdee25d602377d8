//! A cache in several threads, and with code of the program that panics.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, lend};
use verbs_channel::Error;
use verbs_channel::registration_cache::CachedMemory;

use super::{LEN, PART, cache, cache_with, pages, register, touch};

use crate::fake_device::{bounded, pd};
use crate::pages::Pages;

/// Lets other threads go on while its region is evicted.
struct SlowToFree {
    _pages: Arc<Pages>,
}

impl Drop for SlowToFree {
    fn drop(&mut self) {
        for _ in 0..10 {
            thread::yield_now();
        }
    }
}

#[test]
fn threads_that_need_the_same_part_register_it_once_and_evict_one() {
    let pd = pd();
    let cache = cache(&pd, 3);
    let pages = pages(&Arc::default());
    let count = Arc::new(AtomicUsize::new(0));
    let memory = cache.memory(LEN, {
        let count = Arc::clone(&count);
        move |pd, part| {
            count.fetch_add(1, Ordering::Relaxed);
            thread::yield_now();
            let _pages = Arc::clone(&pages);
            pages.register_part(pd, part, SlowToFree { _pages })
        }
    });
    let (threads, rounds) = (4, if cfg!(miri) { 2 } else { 50 });
    let barrier = Barrier::new(threads);
    bounded(|| {
        thread::scope(|scope| {
            for _ in 0..threads {
                let (library, memory, barrier) = (lend(), &memory, &barrier);
                scope.spawn(move || {
                    library();
                    for round in 0..rounds {
                        barrier.wait();
                        touch(memory, round % 5);
                        barrier.wait();
                    }
                });
            }
        });
    });
    assert_eq!(count.load(Ordering::Relaxed), rounds);
    assert_eq!(cache.registered_regions(), rounds.min(3));
    drop((memory, cache, pd));
    assert_all_is_well();
}

#[test]
fn other_parts_are_found_while_one_is_registered_and_waited_for() {
    let pd = pd();
    let cache = cache(&pd, 100);
    let pages = pages(&Arc::default());
    let (begins, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let ends = Mutex::new(ends);
    let memory = cache.memory(LEN, move |pd, part| {
        if part.start == PART {
            begins.send(()).unwrap();
            ends.lock().unwrap().recv().unwrap();
        }
        register(&pages, pd, part)
    });
    touch(&memory, 0);
    bounded(|| {
        thread::scope(|scope| {
            let slow = || {
                let (library, memory) = (lend(), &memory);
                move || {
                    library();
                    touch(memory, 1);
                }
            };
            scope.spawn(slow());
            begun.recv().unwrap();
            // Waits for the first: it would begin otherwise.
            let second = scope.spawn(slow());
            [0, 2].iter().for_each(|part| touch(&memory, *part));
            assert!(!second.is_finished());
            end.send(()).unwrap();
        });
    });
    assert!(begun.try_recv().is_err());
}

#[test]
fn panic_of_the_registration_leaves_the_cache_as_it_was() {
    let cache = cache(&pd(), 1);
    let pages = pages(&Arc::default());
    let panics = Arc::new(AtomicUsize::new(1));
    let memory = cache.memory(LEN, move |pd, part| {
        assert!(panics.swap(0, Ordering::Relaxed) == 0, "once");
        register(&pages, pd, part)
    });
    let slice = || memory.slice(..8).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(slice)).is_err());
    assert_eq!(cache.registered_bytes(), 0);
    bounded(slice).unwrap();
    assert_eq!(cache.registered_bytes(), PART);
}

#[test]
fn panic_of_a_keepalive_that_is_evicted_leaves_room() {
    struct Panics {
        _pages: Arc<Pages>,
        panics: Arc<AtomicUsize>,
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(self.panics.swap(0, Ordering::Relaxed) == 0, "once");
        }
    }
    let cache = cache(&pd(), 1);
    let (pages, panics) = (pages(&Arc::default()), Arc::new(AtomicUsize::new(1)));
    let memory = cache.memory(LEN, move |pd, part| {
        let keepalive = Panics {
            _pages: Arc::clone(&pages),
            panics: Arc::clone(&panics),
        };
        pages.register_part(pd, part, keepalive)
    });
    touch(&memory, 0);
    let slice = || memory.slice(PART..PART + 1).map(drop);
    bounded(slice).unwrap();
    assert_eq!(cache.registered_bytes(), PART);
}

/// Registers part 1 in another thread, which does not end before the test has.
fn while_part_1_is_registered(timeout: Duration, test: impl FnOnce(&CachedMemory)) {
    let pd = pd();
    let cache = cache_with(&pd, 100, 1024, Some(timeout));
    let pages = pages(&Arc::default());
    let (begins, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let memory = cache.memory(LEN, move |pd, part| {
        if part.start == PART {
            begins.send(()).unwrap();
            ends.lock().unwrap().recv().unwrap_err();
        }
        register(&pages, pd, part)
    });
    bounded(|| {
        thread::scope(|scope| {
            let (library, memory) = (lend(), &memory);
            scope.spawn(move || {
                library();
                touch(memory, 1);
            });
            begun.recv().unwrap();
            test(memory);
            drop(end);
        });
    });
}

#[test]
fn a_slice_waits_for_another_threads_registration_until_the_timeout() {
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        while_part_1_is_registered(timeout, |memory| {
            let start = Instant::now();
            let error = memory.slice(PART..PART + 8).map(drop).unwrap_err();
            assert!(start.elapsed() >= timeout);
            assert!(matches!(error, Error::CacheTimedOut { after } if after == timeout));
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
            touch(memory, 0);
        });
    }
}

#[test]
fn a_slice_waits_for_room_that_another_thread_makes_until_the_timeout() {
    struct Waits(Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(()).unwrap();
            self.0.lock().unwrap().recv().unwrap_err();
        }
    }

    let pd = pd();
    let timeout = Duration::from_millis(30);
    let cache = cache_with(&pd, 1, 1024, Some(timeout));
    let pages = pages(&Arc::default());
    let (begins, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let first = Mutex::new(Some((Mutex::new(ends), begins)));
    let memory = cache.memory(LEN, move |pd, part| {
        let first = first.lock().unwrap().take();
        let waits = first.map(|(ends, begins)| Waits(ends, begins));
        pages.register_part(pd, part, (waits, Arc::clone(&pages)))
    });
    touch(&memory, 0);
    bounded(|| {
        thread::scope(|scope| {
            let (library, evicts) = (lend(), &memory);
            scope.spawn(move || {
                library();
                touch(evicts, 1);
            });
            begun.recv().unwrap();
            let error = memory.slice(2 * PART..3 * PART).map(drop).unwrap_err();
            assert!(matches!(error, Error::CacheTimedOut { after } if after == timeout));
            drop(end);
        });
    });
    touch(&memory, 2);
}

#[test]
fn a_registration_that_would_wait_for_itself_is_an_error_at_once() {
    let pd = pd();
    let cache = cache(&pd, 100);
    let pages = pages(&Arc::default());
    let own = Arc::new(Mutex::new(None::<CachedMemory>));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let memory = cache.memory(LEN, {
        let (own, seen) = (Arc::clone(&own), Arc::clone(&seen));
        move |pd, part| {
            let memory = own.lock().unwrap().clone();
            if let Some(memory) = memory.filter(|_| part.start == 0) {
                // Another part is registered; this one would be waited for.
                touch(&memory, 1);
                seen.lock()
                    .unwrap()
                    .extend(memory.slice(..8).map(drop).err());
            }
            register(&pages, pd, part)
        }
    });
    *own.lock().unwrap() = Some(memory.clone());
    bounded(|| touch(&memory, 0));
    own.lock().unwrap().take();
    let seen = seen.lock().unwrap();
    assert!(matches!(seen[..], [Error::CacheRecursion]), "{seen:?}");
    // It waits again for others.
    while_part_1_is_registered(Duration::ZERO, |memory| touch(memory, 0));
}

#[test]
fn registrations_that_would_wait_for_each_other_are_errors() {
    let pd = pd();
    let cache = cache(&pd, 100);
    let pages = pages(&Arc::default());
    let own = Arc::new(Mutex::new(None::<CachedMemory>));
    let (both, errors) = (Barrier::new(2), Arc::new(AtomicUsize::new(0)));
    let memory = cache.memory(LEN, {
        let (own, errors) = (Arc::clone(&own), Arc::clone(&errors));
        move |pd, part| {
            let memory = own.lock().unwrap().clone().unwrap();
            both.wait();
            let other = PART - part.start;
            let error = memory.slice(other..other + 8).map(drop).err();
            assert!(matches!(error, Some(Error::CacheRecursion)), "{error:?}");
            errors.fetch_add(1, Ordering::Relaxed);
            both.wait();
            register(&pages, pd, part)
        }
    });
    *own.lock().unwrap() = Some(memory.clone());
    bounded(|| {
        thread::scope(|scope| {
            for part in [0, 1] {
                let (library, memory) = (lend(), &memory);
                scope.spawn(move || {
                    library();
                    touch(memory, part);
                });
            }
        });
    });
    own.lock().unwrap().take();
    assert_eq!(errors.load(Ordering::Relaxed), 2);
}
