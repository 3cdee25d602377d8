//! Awaited queues under random steps: no completion is lost, duplicated or out of order, and no
//! task sleeps over one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fake_libibverbs::with;
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_oneof, proptest};
use verbs_async::verbs_channel::verbs_core::{PollSlot, WorkCompletion};
use verbs_async::{AsyncCq, CqPollState, Result};
use verbs_core::verbs_sys::{IBV_WC_RECV, IBV_WC_SUCCESS, ibv_wc};

use crate::bench::{Bench, WakeCounter, bounded};

/// A step of a program. Numbers choose among the objects that exist.
#[derive(Clone, Debug)]
enum Step {
    Complete { wr_id: u64 },
    WaitForAny,
    WaitForOne { wr_id: u64 },
    Poll(usize),
    Drop(usize),
    Announce,
}

fn step() -> impl Strategy<Value = Step> {
    let chosen = || any::<usize>();
    prop_oneof![
        5 => (0..3_u64).prop_map(|wr_id| Step::Complete { wr_id }),
        1 => Just(Step::WaitForAny),
        3 => (0..3_u64).prop_map(|wr_id| Step::WaitForOne { wr_id }),
        3 => chosen().prop_map(Step::Poll),
        2 => chosen().prop_map(Step::Drop),
        3 => Just(Step::Announce),
    ]
}

/// A waiter that has been polled.
struct Waiter {
    what: What,
    counter: Arc<WakeCounter>,
}

enum What {
    Any(CqPollState),
    One(u64, Pin<Box<dyn Future<Output = Result<WorkCompletion>>>>),
}

impl What {
    const fn wr_id(&self) -> Option<u64> {
        match self {
            Self::Any(_) => None,
            Self::One(wr_id, _) => Some(*wr_id),
        }
    }
}

struct World {
    bench: Bench,
    cq: AsyncCq,
    waiters: Vec<Waiter>,
    // Completed work requests that no waiter has taken, by their number.
    open: Vec<(u32, u64)>,
    done: u32,
    // The arming of the last event, and whether that event is on its way.
    announced: usize,
    event: bool,
}

impl World {
    fn new() -> Self {
        let bench = Bench::new();
        Self {
            cq: bench.cq(),
            bench,
            waiters: Vec::new(),
            open: Vec::new(),
            done: 0,
            // All cases share the library.
            announced: with(|library| {
                library.done.clear();
                library.armed.len()
            }),
            event: false,
        }
    }

    fn apply(&mut self, step: &Step) {
        let chosen = |number: usize, of: usize| (of > 0).then(|| number % of);
        match *step {
            Step::Complete { wr_id } => self.complete(wr_id),
            Step::WaitForAny => self.wait(What::Any(CqPollState::default())),
            Step::WaitForOne { wr_id } => {
                self.wait(What::One(wr_id, Box::pin(self.cq.poll_wr_id(wr_id))));
            }
            Step::Poll(number) => {
                if let Some(at) = chosen(number, self.waiters.len()) {
                    let waiter = self.waiters.swap_remove(at);
                    self.wait(waiter.what);
                }
            }
            Step::Drop(number) => {
                if let Some(at) = chosen(number, self.waiters.len()) {
                    drop(self.waiters.swap_remove(at));
                }
            }
            Step::Announce => {
                if std::mem::take(&mut self.event) {
                    self.bench.announce([self.cq.cq()]);
                }
            }
        }
        self.check();
    }

    fn complete(&mut self, wr_id: u64) {
        let wc = ibv_wc {
            wr_id,
            status: IBV_WC_SUCCESS,
            opcode: IBV_WC_RECV,
            byte_len: self.done,
            ..Default::default()
        };
        let armed = with(|library| {
            library.done.push_back(wc);
            library.armed.len()
        });
        self.open.push((self.done, wr_id));
        self.done += 1;
        self.event |= armed > self.announced;
        self.announced = armed;
    }

    /// Polls a waiter, which waits on unless it gets a completion.
    fn wait(&mut self, mut what: What) {
        let counter = WakeCounter::new();
        let waker = Waker::from(Arc::clone(&counter));
        let mut cx = Context::from_waker(&waker);
        let mut slots = [const { PollSlot::new() }; 3];
        let found = match &mut what {
            What::Any(state) => self
                .cq
                .poll_completions(&mut cx, state, &mut slots)
                .map(|found| {
                    let found = PollSlot::completions(&slots[..found.unwrap()]);
                    found.iter().map(number).collect::<Vec<_>>()
                }),
            What::One(wr_id, one) => one.as_mut().poll(&mut cx).map(|found| {
                let found = found.unwrap();
                assert_eq!(found.wr_id(), *wr_id);
                vec![number(&found)]
            }),
        };
        match found {
            Poll::Ready(found) => {
                assert!(!found.is_empty() && found.is_sorted(), "{found:?}");
                for number in found {
                    let at = self.open.iter().position(|(open, _)| *open == number);
                    let _removed = self.open.remove(at.expect("none comes twice"));
                }
            }
            // It yielded to other tasks.
            Poll::Pending if counter.wakes() > 0 => self.wait(what),
            Poll::Pending => self.waiters.push(Waiter { what, counter }),
        }
    }

    /// Asserts that no waiter sleeps over its completion, unless an event is on its way.
    fn check(&self) {
        if self.event {
            return;
        }
        let of = |wr_id: Option<u64>| {
            let waiters = self.waiters.iter();
            let waiters = waiters.filter(move |waiter| waiter.what.wr_id() == wr_id);
            let asleep = waiters.clone().filter(|waiter| waiter.counter.wakes() == 0);
            (waiters.count(), asleep.count())
        };
        let mut for_any = 0;
        for wr_id in 0..3 {
            let open = self.open.iter().filter(|(_, open)| *open == wr_id).count();
            let (all, asleep) = of(Some(wr_id));
            assert!(open.min(all) <= all - asleep, "asleep over {wr_id}");
            for_any += open.saturating_sub(all);
        }
        assert!(for_any == 0 || of(None).1 == 0, "asleep over any");
    }
}

/// Its number among all completed requests.
fn number(completion: &WorkCompletion) -> u32 {
    completion.result().unwrap().byte_len()
}

proptest! {
    #[test]
    fn no_completion_is_lost_or_duplicated_and_no_task_sleeps_forever(
        steps in collection::vec(step(), 0..if cfg!(miri) { 15 } else { 60 })
    ) {
        bounded(|| {
            let mut world = World::new();
            steps.iter().for_each(|step| world.apply(step));
            // The remaining waiters take everything.
            world.waiters.clear();
            while !world.open.is_empty() {
                world.wait(What::Any(CqPollState::default()));
                assert!(world.waiters.is_empty(), "{:?} are lost", world.open);
            }
        });
    }
}
