//! The models of destroyed queue pairs: tasks wait for them, and may be polled by several threads.

use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use loom::thread;

use crate::destroying::{Destroyed, Waiting};
use crate::task::sync::{Arc, Mutex};
use crate::{WakeFlag, explore};

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

    /// Whether it is destroyed. The task is woken later if not, while it waits.
    fn poll(
        &self,
        waits: &mut Waiting<'_, usize>,
        at: usize,
        flag: &std::sync::Arc<WakeFlag>,
    ) -> bool {
        let waker = Waker::from(std::sync::Arc::clone(flag));
        let ready = || {
            let is_destroyed = *self.is_destroyed[at].lock();
            (is_destroyed && !self.waiting.is_pending(Some(&at))).then_some(())
        };
        let polled = waits.poll(&Context::from_waker(&waker), ready);
        polled.is_ready()
    }
}

#[test]
fn task_that_waits_for_a_queue_pair_is_woken_when_it_is_destroyed() {
    explore(|| {
        let model = Model::new();
        let helper = Model::destroys(&model, 0);
        let flag = std::sync::Arc::<WakeFlag>::default();
        let mut waits = model.waiting.waits_for(Some(0));
        let was_ready = model.poll(&mut waits, 0, &flag);
        helper.join().unwrap();
        assert!(
            was_ready || flag.0.load(Ordering::Relaxed),
            "it waits forever"
        );
        assert!(model.poll(&mut waits, 0, &flag) && !model.waiting.is_pending(None));
        drop(waits);
        assert_eq!(std::sync::Arc::strong_count(&flag), 1, "a waker is left");
    });
}

#[test]
fn tasks_that_wait_for_different_queue_pairs_are_both_woken() {
    explore(|| {
        let model = Model::new();
        let helpers = [0, 1].map(|at| Model::destroys(&model, at));
        let flags: [std::sync::Arc<WakeFlag>; 2] = Default::default();
        let mut waits = [0, 1].map(|at| model.waiting.waits_for(Some(at)));
        let was_ready = [0, 1].map(|at| model.poll(&mut waits[at], at, &flags[at]));
        for helper in helpers {
            helper.join().unwrap();
        }
        for (at, flag) in flags.iter().enumerate() {
            let was_woken = flag.0.load(Ordering::Relaxed);
            assert!(was_ready[at] || was_woken, "task {at} waits forever");
        }
    });
}

#[test]
fn only_tasks_that_wait_for_it_or_for_any_are_woken() {
    explore(|| {
        let model = Model::new();
        [0, 1].into_iter().for_each(|at| model.waiting.start(at));
        let waits_for = [Some(0), Some(1), None];
        let mut waits = waits_for.map(|channel| model.waiting.waits_for(channel));
        let flags: [std::sync::Arc<WakeFlag>; 3] = Default::default();
        let mut poll_all = || {
            for ((flag, channel), waits) in flags.iter().zip(waits_for).zip(&mut waits) {
                let waker = Waker::from(std::sync::Arc::clone(flag));
                let ready = || (!model.waiting.is_pending(channel.as_ref())).then_some(());
                let cx = Context::from_waker(&waker);
                let _polled = waits.poll(&cx, ready);
            }
        };
        let woken = || {
            flags
                .each_ref()
                .map(|flag| flag.0.swap(false, Ordering::Relaxed))
        };
        poll_all();
        poll_all();
        model.waiting.finish(&1);
        assert_eq!(woken(), [false, true, true]);
        poll_all();
        model.waiting.finish(&0);
        assert_eq!(woken(), [true, false, true]);
    });
}

/// Channels that have not joined have one id.
#[test]
fn all_with_one_id_are_destroyed_when_the_last_of_them_is() {
    explore(|| {
        let model = Model::new();
        [0, 0].into_iter().for_each(|at| model.waiting.start(at));
        for is_left in [true, false] {
            model.waiting.finish(&0);
            assert_eq!(model.waiting.is_pending(None), is_left);
        }
    });
}
