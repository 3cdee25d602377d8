//! Random steps in any order: no outcome is lost or duplicated, and no task sleeps forever.

use std::sync::Arc;
use std::task::Poll;

use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_oneof, proptest};

use crate::driver::Submission;
use crate::fixture::{Bench, WakeCounter};
use crate::ring::{End, Request, Ticket};

/// A step of a program. Numbers choose among the objects that exist.
#[derive(Clone, Debug)]
enum Step {
    Start {
        channel: usize,
        queue: usize,
        places: usize,
    },
    Poll(usize),
    Abandon(usize),
    Forget(usize),
    Complete(usize),
    /// An event that was raised is delivered.
    Announce,
}

fn step() -> impl Strategy<Value = Step> {
    let chosen = || any::<usize>();
    prop_oneof![
        4 => (0..2_usize, 0..2_usize, 1..4_usize)
            .prop_map(|(channel, queue, places)| Step::Start { channel, queue, places }),
        4 => chosen().prop_map(Step::Poll),
        1 => chosen().prop_map(Step::Abandon),
        1 => chosen().prop_map(Step::Forget),
        4 => chosen().prop_map(Step::Complete),
        2 => Just(Step::Announce),
    ]
}

/// An operation that a task holds.
struct Held {
    id: usize,
    key: Submission<Ticket>,
    counter: Arc<WakeCounter>,
    asleep: bool,
}

struct World {
    bench: Bench,
    held: Vec<Held>,
    // For each queue, the ids in the order in which they were begun, without those abandoned in the backlog.
    submission: Vec<(usize, usize, usize)>,
    started: usize,
    forgotten: usize,
    events: usize,
}

impl World {
    /// Queues of three places, of which `share` are their own, and `common` places in common.
    fn new(share: usize, common: usize) -> Self {
        Self {
            bench: Bench::with_shares(3, share, common),
            held: Vec::new(),
            submission: Vec::new(),
            started: 0,
            forgotten: 0,
            events: 0,
        }
    }

    fn apply(&mut self, step: &Step) {
        let chosen = |number: usize, of: usize| (of > 0).then(|| number % of);
        match *step {
            Step::Start {
                channel,
                queue,
                places,
            } => self.start(channel, queue, places),
            Step::Poll(number) => {
                if let Some(at) = chosen(number, self.held.len()) {
                    self.poll(at);
                }
            }
            Step::Abandon(number) => {
                if let Some(at) = chosen(number, self.held.len()) {
                    let held = self.held.swap_remove(at);
                    if !self.bench.posted().contains(&held.id) {
                        self.submission.retain(|(.., id)| *id != held.id);
                    }
                    self.bench.driver.abandon(held.key);
                }
            }
            Step::Forget(number) => {
                if let Some(at) = chosen(number, self.held.len()) {
                    let _leaked = self.held.swap_remove(at);
                    self.forgotten += 1;
                }
            }
            Step::Complete(number) => {
                let posted = self.bench.posted();
                let flying: Vec<_> = posted
                    .iter()
                    .filter(|id| self.bench.device.has(**id))
                    .collect();
                if let Some(at) = chosen(number, flying.len()) {
                    self.events += usize::from(self.bench.device.complete(*flying[at]));
                }
            }
            Step::Announce => {
                if self.events > 0 {
                    self.events -= 1;
                    self.bench.driver.on_event();
                }
            }
        }
        self.check();
    }

    fn start(&mut self, channel: usize, queue: usize, places: usize) {
        let id = self.started;
        self.started += 1;
        let request = self.bench.device.request(id, queue);
        let key = self.bench.start_on(channel, Request { places, ..request });
        self.submission.push((channel, queue, id));
        let counter = WakeCounter::new();
        let asleep = false;
        self.held.push(Held {
            id,
            key,
            counter,
            asleep,
        });
    }

    fn poll(&mut self, at: usize) {
        let held = &mut self.held[at];
        held.counter = WakeCounter::new();
        match self.bench.poll(held.key, &held.counter) {
            Poll::Ready(outcome) => {
                assert_eq!((outcome.id, outcome.end), (held.id, End::Success));
                self.held.swap_remove(at);
            }
            Poll::Pending => held.asleep = true,
        }
    }

    fn check(&self) {
        // Operations of one queue were posted in the order in which they were begun.
        let posted = self.bench.posted();
        for queue in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let of_queue = self.submission.iter().filter(|(c, q, _)| (*c, *q) == queue);
            let began: Vec<_> = of_queue.map(|(.., id)| *id).collect();
            let went: Vec<_> = posted
                .iter()
                .filter(|id| began.contains(id))
                .copied()
                .collect();
            assert_eq!(went, began[..went.len()], "not in the order they came");
        }
        // No task sleeps over its outcome, unless an event is on its way.
        for held in self
            .held
            .iter()
            .filter(|held| held.asleep && self.events == 0)
        {
            let ended = posted.contains(&held.id) && !self.bench.device.has(held.id);
            assert_eq!(
                held.counter.wakes(),
                usize::from(ended),
                "operation {}",
                held.id
            );
        }
    }

    /// The device completes everything, and delivers every event.
    fn settle(&mut self) {
        loop {
            self.apply(&Step::Complete(0));
            while self.events > 0 {
                self.apply(&Step::Announce);
            }
            let posted = self.bench.posted();
            if !posted.iter().any(|id| self.bench.device.has(*id)) {
                break;
            }
        }
        while !self.held.is_empty() {
            let before = self.held.len();
            self.poll(0);
            // One that never waited may still be in the backlog: there is room by now.
            if self.held.len() == before {
                self.settle();
            }
        }
    }
}

proptest! {
    #[test]
    fn no_outcome_is_lost_or_duplicated_and_no_task_sleeps_forever(
        steps in collection::vec(step(), 0..if cfg!(miri) { 20 } else { 120 }),
        (share, common) in prop_oneof![Just((3, 0)), Just((1, 2)), Just((1, 3)), Just((2, 1))],
    ) {
        let mut world = World::new(share, common);
        steps.iter().for_each(|step| world.apply(step));
        world.settle();
        if world.bench.device.unseen() == 0 {
            assert_eq!(world.bench.device.lock().common, common, "room is lost");
        }
        // Only buffers of leaked outcomes are missing.
        let gone = world.bench.device.gone();
        assert!(gone <= world.started && gone + world.forgotten >= world.started);
        world.bench.driver.on_event();
        drop(world.bench.driver);
        assert_eq!(world.bench.device.gone(), world.started);
    }
}
