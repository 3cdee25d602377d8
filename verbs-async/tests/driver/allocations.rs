//! What operations cost in memory once the driver is warm: nothing.
#![expect(unsafe_code, reason = "counts what an allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::Waker;

use crate::task::{Bell, Bench};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts what each thread asks for.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: it is the system's, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller's; it came from the system's.
        unsafe { System.dealloc(ptr, layout) };
    }
}

#[test]
fn an_operation_allocates_nothing_once_the_driver_is_warm() {
    let bench = Bench::new(2);
    let bell = Waker::from(Bell::new());
    // In flight, in line, woken, abandoned in flight and in line.
    let round = || {
        let mut keys = [0; 6];
        for (id, key) in keys.iter_mut().enumerate() {
            *key = bench.start(id);
            assert!(bench.poll_with(*key, &bell).is_pending());
        }
        bench.driver.abandon(keys[0]);
        bench.driver.abandon(keys[4]);
        for id in [0, 1, 2, 3, 5] {
            let _raised = bench.card.complete(id);
            bench.driver.announced();
        }
        for key in [1, 2, 3, 5] {
            assert!(bench.poll_with(keys[key], &bell).is_ready());
        }
        bench.card.lock().posted.clear();
    };
    (0..3).for_each(|_| round());
    let before = COUNT.get();
    (0..100).for_each(|_| round());
    assert_eq!(COUNT.get() - before, 0);
}
