//! Awaited queues: which waiter gets a completion, and which completions are kept.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::verbs_channel::verbs_core::{PollSlot, WorkCompletion};
use verbs_async::{AsyncCq, CqPollState};
use verbs_harness::allocations::allocations;

use crate::bench::{Bench, Task, WakeCounter, bounded, done, now, system_calls};

/// The `wr_id`s of the completions that `poll` returns now.
fn any(cq: &AsyncCq, room: usize) -> Vec<u64> {
    let mut slots = [const { PollSlot::new() }; 8];
    let slots = &mut slots[..room];
    let found = now(cq.poll(slots)).unwrap();
    found.into_iter().map(WorkCompletion::wr_id).collect()
}

/// Whether `poll` has no completion now.
fn is_empty(cq: &AsyncCq) -> bool {
    let mut slots = [PollSlot::new()];
    let mut state = CqPollState::default();
    let mut cx = Context::from_waker(Waker::noop());
    cq.poll_completions(&mut cx, &mut state, &mut slots)
        .is_pending()
}

#[test]
fn many_completions_are_taken_in_one_poll() {
    let bench = Bench::new();
    let cq = bench.cq();
    let mut slots = [const { PollSlot::new() }; 100];
    let mut task = Task::new(cq.poll(&mut slots)).waits();
    done(0..100);
    bench.announce([cq.cq()]);
    assert_eq!(task.ends().unwrap().len(), 100);
    assert_eq!(task.was_woken(), 1);
}

#[test]
fn sleep_costs_one_arming_and_one_event_and_polling_costs_none() {
    let bench = Bench::new();
    let cq = bench.cq();
    for round in 1..=3 {
        let mut task = Task::new(cq.poll_wr_id(round)).waits().waits().waits();
        done([round]);
        bench.announce([cq.cq()]);
        assert!(task.ends().is_ok());
        let sleeps = usize::try_from(round).unwrap();
        assert_eq!(system_calls(), (sleeps, sleeps));
    }
    for id in 100..200 {
        done([id]);
        assert!(now(cq.poll_wr_id(id)).is_ok());
        done([id]);
        assert_eq!(any(&cq, 4), [id]);
    }
    assert_eq!(system_calls(), (3, 3));
}

#[test]
fn completion_between_poll_and_arming_is_found() {
    let bench = Bench::new();
    let cq = bench.cq();
    // It completes after an empty poll and before the arming: it raises no event.
    with(|library| library.poll_answer = Some(0));
    done([1]);
    assert_eq!(any(&cq, 4), [1]);
    assert_eq!(system_calls().0, 1);
}

#[test]
fn every_event_is_acknowledged_before_destroy() {
    {
        let bench = Bench::new();
        let cq = bench.cq();
        for id in 0..150 {
            let mut task = Task::new(cq.poll_wr_id(id)).waits();
            done([id]);
            bench.announce([cq.cq()]);
            assert!(task.ends().is_ok());
        }
        // And an untaken one.
        let _asleep = Task::new(cq.poll_wr_id(0)).waits();
        fake_libibverbs::announce(cq.cq());
    }
    assert_all_is_well();
}

#[test]
fn poll_state_deregisters_before_it_waits_for_another_queue() {
    /// Polls a queue when it is dropped.
    struct PollsOnDrop(Mutex<Option<AsyncCq>>);
    impl Wake for PollsOnDrop {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for PollsOnDrop {
        fn drop(&mut self) {
            let cq = self.0.get_mut().unwrap().take();
            assert!(cq.is_some_and(|cq| is_empty(&cq)));
        }
    }
    bounded(|| {
        let bench = Bench::new();
        let (first, second) = (bench.cq(), bench.cq());
        let (mut state, mut slots) = (CqPollState::default(), [PollSlot::new()]);
        let waker = Waker::from(Arc::new(PollsOnDrop(Mutex::new(Some(second.clone())))));
        let mut cx = Context::from_waker(&waker);
        let waits = first.poll_completions(&mut cx, &mut state, &mut slots);
        assert!(waits.is_pending());
        drop(waker);
        let mut cx = Context::from_waker(Waker::noop());
        let waits = second.poll_completions(&mut cx, &mut state, &mut slots);
        assert!(waits.is_pending());
        done([1]);
        let found = second.poll_completions(&mut cx, &mut state, &mut slots);
        assert!(matches!(found, Poll::Ready(Ok(1))));
        // Without room there is nothing to wait for.
        let found = second.poll_completions(&mut cx, &mut state, &mut []);
        assert!(matches!(found, Poll::Ready(Ok(0))));
    });
}

#[test]
fn a_wait_allocates_nothing_once_the_queue_is_warm() {
    let bench = Bench::new();
    let cq = bench.cq();
    with(|library| {
        library.calls.reserve(10_000);
        library.rooms.reserve(10_000);
        library.armed.reserve(10_000);
    });
    let counter = Waker::from(WakeCounter::new());
    let round = |id| {
        let mut cx = Context::from_waker(&counter);
        let mut one = pin!(cq.poll_wr_id(id));
        let (mut state, mut slots) = (CqPollState::default(), [PollSlot::new()]);
        assert!(one.as_mut().poll(&mut cx).is_pending());
        let any = cq.poll_completions(&mut cx, &mut state, &mut slots);
        assert!(any.is_pending());
        done([id, 0]);
        bench.announce([cq.cq()]);
        assert!(one.as_mut().poll(&mut cx).is_ready());
        let any = cq.poll_completions(&mut cx, &mut state, &mut slots);
        assert!(any.is_ready());
    };
    (1..4).for_each(round);
    let before = allocations();
    (1..100).for_each(round);
    assert_eq!(allocations() - before, 0);
}

#[test]
fn cq_wakers_that_poll_in_place_do_not_recurse() {
    /// Polls its future in place when it is woken.
    struct InPlace {
        future: Mutex<Option<Waits>>,
        done: Arc<AtomicUsize>,
    }
    type Waits = Pin<Box<dyn Future<Output = verbs_async::Result<WorkCompletion>> + Send>>;
    impl Wake for InPlace {
        fn wake(self: Arc<Self>) {
            let future = self.future.lock().unwrap().take();
            let mut future = future.expect("it is woken once");
            now(future.as_mut()).unwrap();
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
    const COUNT: usize = if cfg!(miri) { 100 } else { 60_000 };
    let run = || {
        let bench = Bench::new();
        let cq = bench.cq();
        let finished = Arc::<AtomicUsize>::default();
        for wr_id in 0..COUNT {
            let mut future: Waits = Box::pin(cq.poll_wr_id(wr_id as u64));
            let waiter = Arc::new(InPlace {
                future: Mutex::default(),
                done: Arc::clone(&finished),
            });
            let waker = Waker::from(Arc::clone(&waiter));
            assert!(
                future
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            *waiter.future.lock().unwrap() = Some(future);
        }
        done(0..COUNT as u64);
        bench.announce([cq.cq()]);
        assert_eq!(finished.load(Ordering::Relaxed), COUNT);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn many_waiters_for_one_wr_id_have_constant_cost() {
    bounded(|| {
        let bench = Bench::new();
        let cq = bench.cq();
        let wait = || Some(Task::new(cq.poll_wr_id(5)).waits());
        // If each call or each removal searched all of them, this would take some 10^9 steps.
        let many = if cfg!(miri) { 40 } else { 30_000 };
        let mut tasks: Vec<_> = (0..many).map(|_| wait()).collect();
        // The last are removed first, then those in the middle.
        tasks.truncate(many.min(1000));
        let last = tasks.len() - 1;
        for at in (1..last).rev() {
            tasks[at] = None;
        }
        for at in [0, last] {
            done([5]);
            bench.announce([cq.cq()]);
            let mut task = tasks[at].take().unwrap();
            assert_eq!(task.was_woken(), 1);
            assert_eq!(task.ends().unwrap().wr_id(), 5);
        }
        // There is no waiter, and completions are kept.
        done([5]);
        bench.announce([cq.cq()]);
        assert_eq!(any(&cq, 1), [5]);
    });
}
