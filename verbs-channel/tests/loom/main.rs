//! Every interleaving of threads that take items of a pool, give them back, and close it.
//!
//! The pool's own file is compiled here with loom's atomics.
#![cfg(test)]
#![expect(
    unsafe_code,
    reason = "gives items back, and accesses what is one thread's"
)]

use std::ptr::NonNull;

use free_list::FreeList;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

#[path = "../../src/buffer/free_list.rs"]
#[expect(dead_code, reason = "the models do not use all of it")]
mod free_list;

/// The atomics that the list imports: loom's.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
}

/// A list, and the memory that its items stand for.
struct Pool {
    list: FreeList<usize>,
    memory: Vec<UnsafeCell<u32>>,
}

impl Pool {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            list: FreeList::new(0..count),
            memory: (0..count).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// Writes to an item's memory: loom reports it if another thread may do so too.
    fn write(&self, item: usize) {
        self.memory[item].with_mut(|place| {
            // SAFETY: the item is this thread's, or loom fails before this.
            unsafe { *place += 1 };
        });
    }

    /// Whether this was the last item, of a closed list.
    fn give_back(&self, item: usize) -> bool {
        // SAFETY: the models keep the list, and give back what they took.
        unsafe { FreeList::push(NonNull::from(&self.list), item) }
    }

    /// What the last one does: it frees all.
    fn free(&self) {
        for item in 0..self.memory.len() {
            self.write(item);
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn an_item_has_one_owner() {
    check(|| {
        let pool = Pool::new(2);
        let users = [(); 2].map(|()| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..2 {
                    let item = pool.list.pop().expect("there is one for each thread");
                    pool.write(item);
                    assert!(!pool.give_back(item));
                }
            })
        });
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(pool.list.len(), 2);
    });
}

#[test]
fn an_item_that_is_on_top_again_is_not_mistaken() {
    check(|| {
        let pool = Pool::new(3);
        let other = Arc::clone(&pool);
        // Takes two, and gives the first back: it is on top, above another one than before.
        let other = thread::spawn(move || {
            let first = other.list.pop();
            let second = other.list.pop();
            if let Some(first) = first {
                other.give_back(first);
            }
            second
        });
        let mine = [pool.list.pop(), pool.list.pop()];
        let kept = other.join().unwrap();
        let mut taken: Vec<usize> = mine.into_iter().chain([kept]).flatten().collect();
        for &item in &taken {
            pool.write(item);
        }
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!((taken.len(), pool.list.len()), (count, 3 - count));
    });
}

#[test]
fn a_closed_list_is_freed_once_and_last() {
    check(|| {
        let pool = Pool::new(3);
        let users = [(); 2].map(|()| {
            let item = pool.list.pop().expect("three are free");
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.write(item);
                let is_last = pool.give_back(item);
                if is_last {
                    pool.free();
                }
                is_last
            })
        });
        let is_last = pool.list.close();
        if is_last {
            pool.free();
        }
        let ends = users.map(|user| user.join().unwrap());
        let frees = ends.into_iter().chain([is_last]).filter(|&is_last| is_last);
        assert_eq!(frees.count(), 1);
    });
}
