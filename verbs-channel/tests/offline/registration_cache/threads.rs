//! A cache in several threads, and with code of the program that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use fake_libibverbs::{assert_all_is_well, lend};
use verbs_channel::{CachedMemory, RegistrationCache};

use super::{LEN, PART, cache, memory, pages, register, touch};

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
    let cache = cache(&pd, 3).build();
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
    let cache = cache(&pd, 100).build();
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
    let cache = cache(&pd(), 1).build();
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
    let cache = cache(&pd(), 1).build();
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
    assert!(catch_unwind(AssertUnwindSafe(slice)).is_err());
    assert_eq!(cache.registered_bytes(), 0);
    bounded(slice).unwrap();
    assert_eq!(cache.registered_bytes(), PART);
}

#[test]
fn caches_and_their_memory_go_to_other_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<RegistrationCache>();
    is_shared::<CachedMemory>();
    let cache = cache(&pd(), 1).build();
    let memory = memory(&cache);
    touch(&memory, 0);
    let text = format!("{cache:?} {memory:?}");
    assert!(text.contains("registered_bytes: 64"), "{text}");
}
