//! Operations allocate nothing, once their channel is warm: counted in all threads of a process that
//! does nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_async::AsyncChannel;
use verbs_async::verbs_channel::BufferPool;
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;

use crate::ends::{WAYS, Way, block, given, narrow_pair, run};
use crate::harness::begin;
use crate::harness::child::{Child, role};

/// The system's allocator, which counts.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    OWN.with(|count| count.set(count.get() + 1));
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What some rounds of everything allocate, after some others.
async fn counted_by(way: Way, count: fn() -> usize) -> usize {
    let (group, left, right) = narrow_pair(way, 16);
    let pool = BufferPool::new(group.pd(), 8, 200).unwrap();
    let target = given(group.pd(), &[0; 8]);
    for _ in 0..5 {
        round(&pool, &left, &right, target.remote()).await;
    }
    let before = count();
    for _ in 0..5 {
        round(&pool, &left, &right, target.remote()).await;
    }
    count() - before
}

async fn round(
    pool: &BufferPool,
    left: &AsyncChannel,
    right: &AsyncChannel,
    target: RemoteMemoryRegion,
) {
    // Slept for.
    for _ in 0..20 {
        let receiving = right.receive(block(pool, &[0; 8]));
        let sending = left.send(block(pool, &[1; 8]));
        receiving.await.0.unwrap();
        sending.await.0.unwrap();
    }
    // More than there are places, so that some stand in line.
    let receives: [_; 60] = std::array::from_fn(|_| right.receive(block(pool, &[0; 8])));
    let sends: [_; 60] = std::array::from_fn(|_| left.send(block(pool, &[1; 8])));
    // Given up: in line, and in flight.
    drop(left.write(block(pool, &[1; 8]), target));
    drop(right.write(block(pool, &[1; 8]), target));
    for operation in sends.into_iter().chain(receives) {
        operation.await.0.unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_operation_allocates() {
    if let Some((way, mut line)) = role() {
        let way = named(&way);
        let allocations = match way {
            // Its reactor makes a list of whom to wake each time that it has slept: in a thread of
            // its own, if nobody else is in its `block_on`.
            Way::AsyncIo => pollster::block_on(counted_by(way, || OWN.get())),
            _ => run(way, counted_by(way, || ALLOCATIONS.load(Ordering::Relaxed))),
        };
        return line.say(&allocations.to_string());
    }
    let test = begin!();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![1_u8]));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);
    for way in WAYS {
        let mut child = Child::start(&test, &format!("{way:?}"));
        let allocations: usize = child.line.hear().parse().unwrap();
        assert_eq!(allocations, 0, "{way:?}");
    }
}

fn named(way: &str) -> Way {
    let found = WAYS.into_iter().find(|each| format!("{each:?}") == way);
    found.expect("a way")
}
