//! A model of a group: each operation ends once, no task sleeps over an outcome, no buffer in flight is free.

use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::task::Poll;

use fake_libibverbs::{Posted, assert_all_is_well, forget_requests, with};
use proptest::prelude::any;
use proptest::proptest;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Channel, PoolBuffer};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_core::verbs_sys::{
    IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status,
};

use crate::bench::{Bench, Task, announce, bounded, join, later};
use steps::{Ended, Kind, Step, in_flight, steps};

mod steps;

/// An operation, and its state in the model.
struct Op {
    channel: usize,
    queue: Queue,
    addrs: Vec<u64>,
    /// Its future, until it is dropped.
    held: Option<Held>,
    /// How often it had been woken before it went to sleep.
    asleep: Option<usize>,
    /// Its requests that were posted.
    wr_ids: Vec<u64>,
    end: Option<End>,
    /// It was taken out of its backlog.
    left: bool,
    /// Its queue pair could not be destroyed.
    is_stuck: bool,
}

type Held = Task<Pin<Box<dyn Future<Output = Ended>>>>;

/// How the device completes it.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Success,
    Failure,
    /// Its queue pair was destroyed before.
    Late,
}

impl Op {
    fn places(&self) -> usize {
        self.addrs.len()
    }

    fn is_posted(&self) -> bool {
        self.wr_ids.len() == self.places()
    }

    fn is_with_the_device(&self) -> bool {
        self.is_posted() && self.end.is_none()
    }

    fn wakes(&self) -> usize {
        self.held.as_ref().map_or(0, Task::was_woken)
    }
}

const CHANNELS: u32 = 3;
const BLOCKS: usize = 40;

struct World {
    ops: BTreeMap<u32, Op>,
    channels: Vec<Option<AsyncChannel>>,
    group: AsyncGroup,
    pool: BufferPool,
    begun: u32,
    // The number of armings that were used, and an event that is not delivered yet.
    armings: usize,
    event: bool,
    // The next arming has to fail.
    refused: bool,
    // Destroying a queue pair has to fail, and has failed.
    sticky: bool,
    stuck: bool,
    // The channels that had a queue pair.
    there: Vec<bool>,
    // The credits of a channel while nothing is in flight.
    idle: [u32; 2],
    // A poll has failed.
    unsure: bool,
    bench: Bench,
}

impl World {
    fn new(in_flight: u32) -> Self {
        forget_requests();
        with(|library| {
            library.done.clear();
            library.posted.clear();
            library.refuse.clear();
            library.refuse_post = None;
            library.poll_answer = None;
        });
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let pool = BufferPool::new(&pd, 8, BLOCKS).unwrap();
        let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(2);
        let builder = builder.in_flight(in_flight);
        let group = AsyncGroup::new(builder, CHANNELS, &bench.events).unwrap();
        let mut world = Self {
            ops: BTreeMap::new(),
            channels: Vec::new(),
            group,
            pool,
            begun: 0,
            armings: with(|library| library.armed.len()),
            event: false,
            refused: false,
            sticky: false,
            stuck: false,
            there: Vec::new(),
            idle: [3, 2],
            unsure: false,
            bench,
        };
        world.apply(&Step::Join);
        let first = world.channels[0].as_ref().unwrap();
        world.idle = [Queue::Send, Queue::Receive].map(|queue| first.credits(queue));
        world
    }

    fn apply(&mut self, step: &Step) {
        let chosen = |number: usize, of: usize| (of > 0).then(|| number % of);
        match *step {
            Step::Join => {
                let there = self.channels.iter().flatten();
                let open = there.filter(|channel| channel.endpoint().is_some());
                // The places of closed ones may be taken while the queue cannot be polled.
                let is_full = open.count() + usize::from(self.stuck) >= CHANNELS as usize;
                if !is_full && !self.unsure {
                    self.channels.push(Some(join(&self.group)));
                }
            }
            Step::Leave(number) => {
                if let Some(at) = chosen(number, self.channels.len()) {
                    self.channels[at] = None;
                }
            }
            Step::Begin(number, kind) => {
                if let Some(at) = chosen(number, self.channels.len()) {
                    self.begin(at, kind);
                }
            }
            Step::Poll(number) => {
                let held = self.held();
                if let Some(at) = chosen(number, held.len()) {
                    self.poll(held[at]);
                }
            }
            Step::Abandon(number) => {
                let held = self.held();
                if let Some(at) = chosen(number, held.len()) {
                    let op = self.op(held[at]);
                    op.held = None;
                    op.asleep = None;
                    // Dropping it may post others, but not itself.
                    op.left = !op.is_posted();
                }
            }
            Step::Complete(first, count) => {
                let flying = self.flying();
                if let Some(at) = chosen(first, flying.len()) {
                    let some = flying.iter().cycle().skip(at).take(count.min(flying.len()));
                    self.end(some.map(|id| (*id, true)));
                }
            }
            Step::Fail(number) => {
                let flying = self.flying();
                if let Some(at) = chosen(number, flying.len()) {
                    self.end([(flying[at], false)]);
                }
            }
            Step::Announce => {
                if mem::take(&mut self.event) {
                    announce(&self.bench);
                }
            }
            // A batch posted in part to a stuck queue pair would abort the process.
            Step::RefusePost(..) if self.sticky => {}
            Step::RefusePost(at, named) => {
                with(|library| library.refuse_post = Some((at, libc::ENOMEM, named)));
            }
            Step::RefuseArming => {
                let refused = ("ibv_req_notify_cq", libc::EIO);
                with(|library| library.refuse.push(refused));
                self.refused = true;
            }
            Step::RefusePoll => {
                self.unsure = true;
                with(|library| library.poll_answer = Some(-2));
            }
            Step::Stick => {
                self.sticky = true;
                with(|library| {
                    library.refuse_post = None;
                    library.refuse.push(("ibv_destroy_qp", libc::EBUSY));
                });
            }
            Step::Stray(wr_id) => self.complete([(wr_id, IBV_WC_SUCCESS, 0)]),
        }
        self.learn();
        self.check();
    }

    fn op(&mut self, id: u32) -> &mut Op {
        self.ops.get_mut(&id).unwrap()
    }

    fn held(&self) -> Vec<u32> {
        let held = self.ops.iter().filter(|(_, op)| op.held.is_some());
        held.map(|(id, _)| *id).collect()
    }

    /// Operations that the device has not completed, also those of destroyed queue pairs.
    fn flying(&self) -> Vec<u32> {
        let flying = self.ops.iter().filter(|(_, op)| op.is_with_the_device());
        flying.map(|(id, _)| *id).collect()
    }

    fn has_queue_pair(&self, channel: usize) -> bool {
        let channel = self.channels[channel].as_ref();
        channel.is_some_and(|channel| channel.endpoint().is_some())
    }

    fn block(&self) -> Option<(u64, PoolBuffer)> {
        let block = self.pool.take()?;
        let addr = block.as_ptr().addr() as u64;
        for op in self.ops.values().filter(|op| op.addrs.contains(&addr)) {
            let is_free = !op.is_with_the_device() || !self.has_queue_pair(op.channel);
            assert!(is_free && !op.is_stuck, "it is in flight");
        }
        Some((addr, block))
    }

    fn begin(&mut self, channel: usize, kind: Kind) {
        let count = kind.places();
        let blocks: Vec<_> = std::iter::from_fn(|| self.block()).take(count).collect();
        if blocks.len() < count {
            return;
        }
        let (addrs, blocks): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        let Some(at) = &self.channels[channel] else {
            return;
        };
        let future = kind.begin(at, blocks);
        let queue = match kind {
            Kind::Receive => Queue::Receive,
            _ => Queue::Send,
        };
        let op = Op {
            channel,
            queue,
            addrs,
            held: Some(Task::new(future)),
            asleep: None,
            wr_ids: Vec::new(),
            end: None,
            left: false,
            is_stuck: false,
        };
        self.begun += 1;
        self.ops.insert(self.begun, op);
    }

    /// Records new posts and failed armings.
    fn learn(&mut self) {
        let destroyed = later(self.group.closed());
        let is_to_come = |verb| with(|library| library.refuse.iter().any(|(of, _)| *of == verb));
        if self.refused && !is_to_come("ibv_req_notify_cq") {
            // It raises no event.
            (self.refused, self.armings) = (false, self.armings + 1);
        }
        let channels = 0..self.channels.len();
        let there: Vec<_> = channels.map(|at| self.has_queue_pair(at)).collect();
        let before = mem::replace(&mut self.there, there);
        if self.sticky && !self.stuck && !is_to_come("ibv_destroy_qp") {
            self.stuck = true;
            let gone = |at: &usize| before[*at] && !self.there[*at];
            let gone: Vec<_> = (0..before.len()).filter(gone).collect();
            // If there are several, any of them may have failed.
            if let [stays] = gone[..] {
                let ops = self.ops.values_mut().filter(|op| op.channel == stays);
                ops.for_each(|op| op.is_stuck = op.is_with_the_device());
            }
        }
        assert_eq!(destroyed.is_err(), self.stuck);
        for requests in with(|library| mem::take(&mut library.posted)) {
            for Posted { wr_id, list, .. } in requests {
                // The last that was given this block has it.
                let mut ops = self.ops.values_mut().rev();
                let op = ops.find(|op| op.addrs.contains(&list[0].0)).unwrap();
                assert!(!op.left, "it was abandoned");
                op.wr_ids.push(wr_id);
                assert!(op.wr_ids.len() <= op.places(), "it was posted twice");
            }
        }
    }

    /// The device completes these operations, successfully or not.
    fn end(&mut self, ids: impl IntoIterator<Item = (u32, bool)>) {
        for (id, is_well) in ids {
            let has_queue_pair = self.has_queue_pair(self.ops[&id].channel);
            let op = self.op(id);
            op.end = Some(match (has_queue_pair, is_well) {
                (false, _) => End::Late,
                (true, true) => End::Success,
                (true, false) => End::Failure,
            });
            let (last, others) = op.wr_ids.split_last().unwrap();
            let (last, mut done) = (*last, Vec::new());
            if is_well {
                done.push((last, IBV_WC_SUCCESS, id));
            } else {
                let mut status = IBV_WC_REM_ACCESS_ERR;
                for wr_id in others.iter().chain([&last]) {
                    done.push((*wr_id, mem::replace(&mut status, IBV_WC_WR_FLUSH_ERR), id));
                }
            }
            self.complete(done);
        }
    }

    fn complete(&mut self, done: impl IntoIterator<Item = (u64, ibv_wc_status, u32)>) {
        let done = done.into_iter().map(|(wr_id, status, byte_len)| ibv_wc {
            wr_id,
            status,
            byte_len,
            ..Default::default()
        });
        with(|library| library.done.extend(done));
        let armings = with(|library| library.armed.len());
        self.event |= mem::replace(&mut self.armings, armings) < armings;
    }

    fn poll(&mut self, id: u32) {
        let op = self.op(id);
        let task = op.held.as_mut().unwrap();
        let Poll::Ready((result, addrs)) = task.poll() else {
            return op.asleep = Some(task.woken_before());
        };
        self.learn();
        let has_queue_pair = self.has_queue_pair(self.ops[&id].channel);
        let (is_unsure, is_leaky) = (self.unsure, self.stuck);
        let op = self.op(id);
        (op.held, op.asleep) = (None, None);
        if op.is_stuck {
            assert_eq!(addrs, [], "it is in flight");
            return;
        }
        if !is_leaky || !addrs.is_empty() {
            assert_eq!(addrs, op.addrs, "another's buffer");
        }
        match (&result, op.end) {
            (Ok(len), Some(End::Success)) => assert!(len.is_none_or(|len| len == id)),
            (Err(_), Some(End::Failure | End::Late)) => {}
            (Err(_), None) => assert!(!has_queue_pair || !op.is_posted(), "it is in flight"),
            // A queue that cannot be polled does not report it.
            (Err(_), Some(End::Success)) if is_unsure => {}
            (Ok(_), _) => panic!("{id} has not succeeded"),
            (Err(error), _) => panic!("{id} has succeeded: {error:?}"),
        }
        op.left = !op.is_posted();
    }

    fn check(&self) {
        let mut has_line = vec![[false; 2]; self.channels.len()];
        for (id, op) in &self.ops {
            let channel = self.channels[op.channel].as_ref();
            let is_down = channel.is_none_or(AsyncChannel::is_down);
            let has_queue_pair = self.has_queue_pair(op.channel);
            let is_in_line = op.held.is_some() && !op.is_posted() && !op.left && !is_down;
            if let Some(channel) = channel
                && is_in_line
                && !mem::replace(&mut has_line[op.channel][op.queue as usize], true)
            {
                // The first; it may have been rejected since it was last polled.
                let sleeps = op.asleep == Some(op.wakes());
                let has_places = channel.credits(op.queue) as usize >= op.places();
                assert!(!sleeps || !has_places, "{id} could be posted");
            }
            let has_ended = match op.end {
                Some(_) => !self.event,
                None => !has_queue_pair || (!op.is_posted() && is_down),
            };
            if let Some(before) = op.asleep
                && has_ended
            {
                assert!(op.wakes() > before, "{id} sleeps over its end");
            }
        }
    }

    /// The device completes everything, and all futures are polled.
    fn settle(&mut self) {
        (self.refused, self.sticky) = (false, self.stuck);
        with(|library| {
            library.refuse.clear();
            library.refuse_post = None;
        });
        for _ in 0..BLOCKS {
            self.apply(&Step::Announce);
            while !self.flying().is_empty() {
                self.apply(&Step::Complete(0, BLOCKS));
                self.apply(&Step::Announce);
            }
            for id in self.held() {
                self.poll(id);
                self.learn();
                self.check();
            }
        }
        assert!(self.held().is_empty(), "they never end");
        for channel in self.channels.iter().flatten() {
            let idle = [Queue::Send, Queue::Receive].map(|queue| channel.credits(queue));
            // Room is free only once the queue has been polled for it.
            assert!(self.stuck || self.unsure || idle == self.idle);
        }
        // Buffers of abandoned operations are returned, too, after a poll.
        assert!(self.stuck || self.pool.available() == BLOCKS);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.channels.clear();
        let _ended = later(self.group.closed());
    }
}

proptest! {
    #[test]
    fn buffers_of_a_stuck_queue_pair_are_leaked(
        mut steps in steps(),
        at in any::<usize>(),
        in_flight in in_flight(),
    ) {
        steps.insert(at % (steps.len() + 1), Step::Stick);
        bounded(|| {
            let mut world = World::new(in_flight);
            steps.iter().for_each(|step| world.apply(step));
            world.settle();
        });
    }

    #[test]
    fn each_op_ends_once_with_its_own_buffer_and_no_task_sleeps_forever(
        steps in steps(),
        in_flight in in_flight(),
    ) {
        bounded(|| {
            let mut world = World::new(in_flight);
            steps.iter().for_each(|step| world.apply(step));
            world.settle();
            drop(world);
            assert_all_is_well();
        });
    }
}
