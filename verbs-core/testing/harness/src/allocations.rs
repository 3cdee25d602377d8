//! Counts what is asked of the allocator, by each thread and by all, in a program that has
//! [`Counting`] for its `#[global_allocator]`.
#![expect(unsafe_code, reason = "stands before the system's allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts.
pub struct Counting;

static ALL: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// How often this thread has asked so far.
pub fn allocations() -> usize {
    assert_counted();
    OWN.get()
}

/// How often all threads have asked so far.
pub fn allocations_of_all() -> usize {
    assert_counted();
    ALL.load(Ordering::Relaxed)
}

/// Every program allocates before its first test.
fn assert_counted() {
    let is_counted = ALL.load(Ordering::Relaxed) > 0;
    assert!(is_counted, "`Counting` is not this program's allocator");
}

fn count() {
    OWN.with(|count| count.set(count.get() + 1));
    ALL.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}
