//! Every interleaving of threads that record immediates, wait for a count, and end it.

use std::task::{Poll, Waker};

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::count::Count;
use crate::{Sleeper, check_with};

/// A count, and the bytes that a device writes before each immediate.
struct World {
    count: Count,
    bytes: [UnsafeCell<u32>; 2],
}

impl World {
    fn new() -> Arc<Self> {
        let count = Count::new();
        count.begin(7);
        let bytes = [0; 2].map(UnsafeCell::new);
        Arc::new(Self { count, bytes })
    }

    /// Writes a part, and records it.
    fn write(&self, part: usize) {
        self.bytes[part].with_mut(|bytes| {
            // SAFETY: the part is this thread's until it is recorded, or loom fails before this.
            unsafe { *bytes = 1 };
        });
        assert!(self.count.record(7));
    }

    fn read(&self, part: usize) -> u32 {
        // SAFETY: the part was recorded, or loom fails before this.
        self.bytes[part].with(|bytes| unsafe { *bytes })
    }

    /// Waits as a task does.
    fn wait(&self, count: u32) {
        let task = std::sync::Arc::new(Sleeper(Notify::new()));
        let waker = Waker::from(std::sync::Arc::clone(&task));
        let mut key = None;
        while self.count.poll(count, &mut key, &waker).is_pending() {
            task.0.wait();
        }
        if let Some(key) = key {
            self.count.cancel(key);
        }
    }
}

#[test]
fn a_task_that_waits_is_woken_and_sees_what_was_written() {
    check_with(2, || {
        let world = World::new();
        let writers = [0, 1].map(|part| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(part))
        });
        world.wait(2);
        assert_eq!([0, 1].map(|part| world.read(part)), [1, 1]);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn a_wait_that_is_cancelled_leaves_the_others_awake() {
    check_with(2, || {
        let world = World::new();
        let writer = Arc::clone(&world);
        let writer = thread::spawn(move || writer.write(0));
        let mut key = None;
        let polled = world.count.poll(1, &mut key, Waker::noop());
        assert!(polled.is_ready() || key.is_some());
        let mut later = None;
        assert!(world.count.poll(2, &mut later, Waker::noop()).is_pending());
        if let Some(key) = key {
            world.count.cancel(key);
        }
        world.wait(1);
        assert_eq!(world.read(0), 1);
        writer.join().unwrap();
    });
}

#[test]
fn an_immediate_of_a_generation_that_ends_never_counts_for_the_next() {
    check_with(2, || {
        let world = World::new();
        let late = Arc::clone(&world);
        let late = thread::spawn(move || {
            let _counted_or_stale = late.count.record(7);
        });
        world.count.end();
        world.count.begin(8);
        assert_eq!(world.count.get(), 0);
        assert!(world.count.record(8));
        late.join().unwrap();
        assert_eq!(world.count.get(), 1);
        assert_eq!(
            world.count.poll(1, &mut None, Waker::noop()),
            Poll::Ready(())
        );
    });
}
