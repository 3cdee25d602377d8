//! The models of tasks that wait until something is given back.

use std::task::{Context, Waker};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::notify::Returns;
use crate::{Sleeper, check};

/// The users, and who waits for their end. The count has no order of its own, as that of an `Arc`.
struct Used {
    users: AtomicUsize,
    returns: Arc<Returns>,
}

impl Used {
    fn by(users: usize) -> Arc<Self> {
        Arc::new(Self {
            users: AtomicUsize::new(users),
            returns: Arc::new(Returns::default()),
        })
    }

    fn gives_back(this: &Arc<Self>) -> thread::JoinHandle<()> {
        let this = Arc::clone(this);
        thread::spawn(move || {
            this.users.fetch_sub(1, Ordering::Relaxed);
            this.returns.notify();
        })
    }

    /// Waits until nothing is in use, as a task does.
    fn wait(&self) {
        let mut watch = Returns::watch(&self.returns);
        while self.users.load(Ordering::Relaxed) > 0 {
            let task = std::sync::Arc::new(Sleeper(Notify::new()));
            let waker = Waker::from(std::sync::Arc::clone(&task));
            let context = Context::from_waker(&waker);
            while watch.poll_returned(&context).is_pending() {
                task.0.wait();
            }
        }
    }
}

#[test]
fn block_returned_as_a_task_begins_to_wait_is_not_missed() {
    check(|| {
        let used = Used::by(1);
        let gives = Used::gives_back(&used);
        used.wait();
        gives.join().unwrap();
    });
}

#[test]
fn task_waits_until_the_last_part_is_returned() {
    check(|| {
        let used = Used::by(2);
        let gives = [Used::gives_back(&used), Used::gives_back(&used)];
        used.wait();
        for thread in gives {
            thread.join().unwrap();
        }
    });
}

#[test]
fn all_that_wait_are_woken_though_one_of_them_is_dropped() {
    check(|| {
        let used = Used::by(1);
        let leaves = {
            let used = Arc::clone(&used);
            thread::spawn(move || {
                let mut watch = Returns::watch(&used.returns);
                let _polled = watch.poll_returned(&Context::from_waker(Waker::noop()));
            })
        };
        let gives = Used::gives_back(&used);
        used.wait();
        leaves.join().unwrap();
        gives.join().unwrap();
    });
}
