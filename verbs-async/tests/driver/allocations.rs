//! Counts what each thread asks the allocator for.
#![expect(unsafe_code, reason = "stands before the system's allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// How often this thread has asked so far.
pub(crate) fn allocations() -> usize {
    COUNT.get()
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
