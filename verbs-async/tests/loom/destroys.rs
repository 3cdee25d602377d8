//! The models of destroyed queue pairs: tasks wait for them, and may be polled by several threads.

use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use loom::thread;

use crate::destroyed::Destroyed;
use crate::races::{WakeFlag, explore};
use crate::sync::{Arc, Mutex};

/// Which queue pairs helper threads have destroyed.
struct Model {
    is_destroyed: [Mutex<bool>; 2],
    waiting: Destroyed<usize>,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_destroyed: [Mutex::new(false), Mutex::new(false)],
            waiting: Destroyed::new(),
        })
    }

    /// A helper thread, which destroys one of them.
    fn destroys(model: &Arc<Self>, at: usize) -> thread::JoinHandle<()> {
        let model = Arc::clone(model);
        model.waiting.start(at);
        thread::spawn(move || {
            *model.is_destroyed[at].lock() = true;
            model.waiting.finish(&at);
        })
    }

    /// Whether it is destroyed. The task is woken later if not.
    fn poll(&self, at: usize, flag: &std::sync::Arc<WakeFlag>) -> bool {
        let waker = Waker::from(std::sync::Arc::clone(flag));
        let ready = || {
            let is_destroyed = *self.is_destroyed[at].lock();
            (is_destroyed && !self.waiting.is_pending(Some(&at))).then_some(())
        };
        let polled = self.waiting.poll(&Context::from_waker(&waker), ready);
        polled.is_ready()
    }
}

#[test]
fn task_that_waits_for_a_queue_pair_is_woken_when_it_is_destroyed() {
    explore(|| {
        let model = Model::new();
        let helper = Model::destroys(&model, 0);
        let flag = std::sync::Arc::<WakeFlag>::default();
        let was_ready = model.poll(0, &flag);
        helper.join().unwrap();
        assert!(
            was_ready || flag.0.load(Ordering::Relaxed),
            "it waits forever"
        );
        assert!(model.poll(0, &flag) && !model.waiting.is_pending(None));
    });
}

#[test]
fn tasks_that_wait_for_different_queue_pairs_are_both_woken() {
    explore(|| {
        let model = Model::new();
        let helpers = [0, 1].map(|at| Model::destroys(&model, at));
        let flags: [std::sync::Arc<WakeFlag>; 2] = Default::default();
        // A task that was woken for the other is polled again.
        let mut was_ready = [0, 1].map(|at| model.poll(at, &flags[at]));
        for (at, flag) in flags.iter().enumerate() {
            if !was_ready[at] && flag.0.swap(false, Ordering::Relaxed) {
                was_ready[at] = model.poll(at, flag);
            }
        }
        for helper in helpers {
            helper.join().unwrap();
        }
        for (at, flag) in flags.iter().enumerate() {
            let was_woken = flag.0.load(Ordering::Relaxed);
            assert!(was_ready[at] || was_woken, "task {at} waits forever");
        }
    });
}
