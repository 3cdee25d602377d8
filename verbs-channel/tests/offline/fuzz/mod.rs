//! Random safe programs on a device with faults: owned and borrowed buffers, drops, leaks and panics.
//! Nothing hangs. Each buffer is returned once, when the device does not access it any more. Each
//! operation ends once. The bytes are those that were sent and received. Without faults, nothing fails.

#![expect(
    clippy::mem_forget,
    reason = "the device must not write to memory of leaked values"
)]
#![expect(unsafe_code, reason = "posts requests whose memory a program keeps")]

mod messages;
mod outcomes;
mod scopes;

use std::mem;
use std::time::Duration;

use fake_libibverbs::faulty::{
    FaultyDevice, Random, fault, no_more_faults, programs, received, stray_completion,
};
use fake_libibverbs::{assert_all_is_well, is_posted, touch_posted, with};
use verbs_channel::verbs_core::{MemoryRegion, ProtectionDomain};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, CreateChannel as _, DownReason, Error, Incoming,
    Outgoing, OwnedBuffer, OwnedChain, OwnedRequest, PollStrategy, Queue, Rejected, Ticket,
    Transfer, TransportError,
};

use crate::fake_device::{bounded, pd};
use scopes::{remote, spare_queue_pairs};

#[test]
fn safe_programs_on_a_device_with_faults() {
    programs(250, |seed| bounded(|| run(seed)));
}

/// One program.
fn run(seed: u64) {
    with(|library| library.contents = Some(received));
    let mut world = World::new(Random(seed));
    for _ in 0..world.random.below(if cfg!(miri) { 40 } else { 120 }) {
        world.step();
        with(|library| assert_eq!(library.wrong, [""; 0]));
    }
    world.end();
}

/// An operation on owned buffers whose result has not been taken.
struct Operation {
    ticket: Ticket,
    wr_ids: Vec<u64>,
    /// Address, length and first byte of each of its buffers, and whether the device writes to it.
    buffers: Vec<(Facts, bool)>,
    /// Its memory, if that is not the channel's: of an unpolled operation.
    memory: Option<MemoryRegion<Vec<u8>>>,
}

type Facts = (usize, usize, u8);

struct World {
    random: Random,
    device: FaultyDevice,
    pd: ProtectionDomain,
    pool: BufferPool,
    group: ChannelGroup,
    ids: Vec<ChannelId>,
    operations: Vec<Operation>,
    marks: u8,
    leaks: bool,
    // How many completions the queue has room for, and how much of that is common.
    capacity: usize,
    common: u32,
    // Credits of a channel while nothing is in flight.
    credits: [u32; 2],
}

const SHORT: Duration = Duration::from_millis(1);
const QUEUES: [Queue; 2] = [Queue::Send, Queue::Receive];

impl World {
    fn new(mut random: Random) -> Self {
        let pd = pd();
        let after = random.below(3);
        let strategy = match random.below(3) {
            0 => PollStrategy::Spin,
            1 => PollStrategy::Notify {
                after: u32::try_from(after).unwrap(),
            },
            _ => PollStrategy::default(),
        };
        let builder = pd.create_channel().max_send_wr(3).max_recv_wr(2);
        // Each of three channels has room for five.
        let in_flight = [15, 6, 9, 13][random.below(4)];
        let builder = builder
            .in_flight(in_flight)
            .timeout(SHORT)
            .drain_timeout(SHORT)
            .strategy(strategy);
        let mut group = builder.group(3).unwrap();
        let common = group.engine_mut().common_room();
        let mut device = FaultyDevice::default();
        device.is_healthy = random.one_in(3);
        let mut world = Self {
            random,
            device,
            pool: BufferPool::new(&pd, 24, 4).unwrap(),
            group,
            pd,
            ids: Vec::new(),
            operations: Vec::new(),
            marks: 0,
            leaks: false,
            capacity: in_flight as usize,
            common,
            credits: [0; 2],
        };
        (0..2).for_each(|_| world.join());
        let channel = world.group.channel(world.ids[0]).unwrap();
        world.credits = QUEUES.map(|queue| channel.credits(queue));
        world
    }

    fn join(&mut self) {
        let Ok(member) = self.group.prepare() else {
            return;
        };
        let endpoint = member.endpoint();
        let Ok(member) = member.handshake(&endpoint) else {
            return;
        };
        if let Ok(id) = self.group.join(member) {
            self.ids.push(id);
        }
    }

    fn id(&mut self) -> Option<ChannelId> {
        let count = self.ids.len();
        (count > 0).then(|| self.ids[self.random.below(count)])
    }

    fn mark(&mut self) -> u8 {
        self.marks = self.marks.wrapping_add(1);
        self.marks
    }

    /// Whether neither the device nor the program does anything that ends a channel.
    const fn is_healthy(&self) -> bool {
        self.device.is_healthy
    }

    fn step(&mut self) {
        let step = match self.random.below(30) {
            // Steps that fail, or end a channel.
            18 | 19 | 28 if self.is_healthy() => 0,
            step => step,
        };
        match step {
            0..6 => self.start(),
            6..11 => self.device.complete(&mut self.random),
            11..15 | 26 => self.take(),
            15 | 24 => self.scope(),
            16 => self.block(),
            17 => self.batch(),
            18 => self.close(),
            19 => self.leaks |= fault(&mut self.random),
            20 => stray_completion(&mut self.random),
            25 => self.replace_down(),
            27 => self.post_unpolled(),
            28 => self.transfer(),
            29 => self.completes_several(),
            _ => touch_posted(),
        }
        self.device.see();
        if self.is_healthy() {
            self.all_are_up();
        }
        let occupied = self.device.occupied();
        assert!(
            occupied <= self.capacity,
            "{occupied}: the queue may overrun"
        );
    }

    fn all_are_up(&mut self) {
        for id in self.ids.clone() {
            let reason = self.group.channel(id).unwrap().down_reason();
            assert_eq!(reason, None, "nothing has failed");
        }
    }

    fn buffer(&mut self) -> OwnedBuffer {
        let mark = self.mark();
        let mut buffer = match self.pool.take() {
            Some(block) if self.random.one_in(2) => OwnedBuffer::from(block),
            _ => OwnedBuffer::from(self.pd.reg_mr(vec![0_u8; 24]).unwrap()),
        };
        let start = self.random.below(8);
        let end = 16 + self.random.below(9);
        buffer.set_range(start..end).unwrap();
        buffer.fill(mark);
        assert!(!is_posted(&buffer), "the buffer is in flight");
        buffer
    }

    fn work(&mut self) -> (OwnedRequest, bool) {
        let buffer = self.buffer();
        let remote = remote();
        match self.random.below(6) {
            0 | 1 => (Outgoing::send(buffer).into(), false),
            2 => (Outgoing::write(buffer, remote).into(), false),
            3 => (Incoming::read(buffer, remote).into(), true),
            _ => (OwnedRequest::receive(buffer), true),
        }
    }

    fn start(&mut self) {
        let Some(id) = self.id() else { return };
        let (work, writes) = self.work();
        let buffers = vec![(facts(work.buffer()), writes)];
        let mut channel = self.group.channel(id).unwrap();
        self.device.see();
        match channel.start(work) {
            Ok(ticket) => self.started(ticket, buffers),
            Err(rejected) => self.is_ours(rejected.into_given().buffer(), &buffers[0].0),
        }
    }

    fn batch(&mut self) {
        let Some(id) = self.id() else { return };
        let count = 1 + self.random.below(3);
        let (works, buffers): (Vec<OwnedRequest>, Vec<_>) = (0..count)
            .map(|_| {
                let buffer = self.buffer();
                let (work, writes): (OwnedRequest, _) = match self.random.below(4) {
                    0 => (Incoming::read(buffer, remote()).into(), true),
                    1 => (Outgoing::write(buffer, remote()).into(), false),
                    _ => (Outgoing::send(buffer).into(), false),
                };
                let facts = (facts(work.buffer()), writes);
                (work, facts)
            })
            .unzip();
        let mut channel = self.group.channel(id).unwrap();
        self.device.see();
        let started = if self.random.one_in(2) {
            channel.start_batch(works).map_err(Rejected::into_given)
        } else {
            let chain = OwnedChain::new(works).unwrap();
            let started = channel.start_chain(chain);
            started.map_err(|rejected| rejected.into_given().into_requests())
        };
        match started {
            Ok(ticket) => self.started(ticket, buffers),
            Err(works) => {
                assert!(works.len() == count || self.leaks, "a request is lost");
                for (work, (facts, _)) in works.iter().zip(&buffers) {
                    self.is_ours(work.buffer(), facts);
                }
            }
        }
    }

    fn started(&mut self, ticket: Ticket, buffers: Vec<(Facts, bool)>) {
        self.device.see();
        let addresses = buffers.iter().map(|((address, ..), _)| *address);
        self.operations.push(Operation {
            ticket,
            wr_ids: addresses
                .filter_map(|address| self.device.posted_at(address))
                .collect(),
            buffers,
            memory: None,
        });
    }

    /// Posts a request whose memory this keeps.
    fn post_unpolled(&mut self) {
        let Some(id) = self.id() else { return };
        let mark = self.mark();
        let mut memory = region(&self.pd, mark);
        let facts = (memory.as_ptr().addr(), memory.len(), memory[0]);
        let writes = self.random.one_in(2);
        let mut channel = self.group.channel(id).unwrap();
        self.device.see();
        let posted = if writes {
            let into = memory.scatter_element(..).unwrap();
            // SAFETY: the memory is kept with the operation until its outcome is taken, and not used
            // meanwhile. It is leaked if the operation is stuck, or the group is.
            let posted = unsafe { channel.post_receive_unpolled(into) };
            posted.ok()
        } else {
            let from = memory.gather_element(..).unwrap();
            // SAFETY: the memory is kept with the operation until its outcome is taken, and not used
            // meanwhile. It is leaked if the operation is stuck, or the group is.
            let posted = unsafe { channel.post_unpolled(Outgoing::send(from)) };
            posted.ok()
        };
        let Some(ticket) = posted else {
            assert!(!is_posted(&memory), "the device may still touch it");
            return;
        };
        self.started(ticket, vec![(facts, writes)]);
        let operation = self.operations.last_mut();
        operation.unwrap().memory = Some(memory);
    }

    /// Carries out a transfer, for which the device does nothing: what was started before may complete.
    fn transfer(&mut self) {
        let count = 1 + self.random.below(4);
        let mut transfer = Transfer::with_capacity(count);
        let mut expected = Vec::new();
        for _ in 0..count {
            let Some(id) = self.id() else { return };
            let (work, writes) = self.work();
            expected.push((facts(work.buffer()), writes));
            transfer.add(id, work);
        }
        self.device.see();
        let ended = self.group.transfer(&mut transfer, Some(SHORT));
        self.device.see();
        let is_stuck = ended.is_err_and(|error| error.is_stuck());
        self.leaks |= is_stuck;
        for outcome in transfer.drain() {
            let (facts, writes) = expected[outcome.index];
            assert!(outcome.result.is_err(), "the device does nothing");
            match outcome.buffer {
                None => assert!(is_stuck, "a buffer is lost"),
                Some(buffer) if !writes => self.is_ours(&buffer, &facts),
                Some(buffer) => assert!(!is_posted(&buffer), "the device may still touch it"),
            }
        }
    }

    /// The device completes several requests, which one poll finds.
    fn completes_several(&mut self) {
        for _ in 0..1 + self.random.below(8) {
            self.device.complete(&mut self.random);
        }
    }

    /// Asserts that a buffer was returned unchanged. An empty one was leaked: a part of its batch was
    /// posted, and the queue pair could not be destroyed.
    fn is_ours(&self, buffer: &OwnedBuffer, expected: &Facts) {
        if buffer.capacity() == 0 {
            assert!(self.leaks, "a buffer is lost");
            return;
        }
        assert!(!is_posted(buffer), "the device may still touch it");
        assert_eq!(&facts(buffer), expected);
        assert!(buffer.iter().all(|byte| *byte == expected.2), "other bytes");
    }

    /// A blocking call, which ends in time.
    fn block(&mut self) {
        let Some(id) = self.id() else { return };
        let mark = self.mark();
        let mut ours = region(&self.pd, mark);
        spare_queue_pairs();
        let is_healthy = self.is_healthy();
        with(|library| library.completes_sends = is_healthy);
        let mut channel = self.group.channel(id).unwrap();
        let ended = match self.random.below(2) {
            _ if is_healthy => channel.send(ours.gather_element(..).unwrap()),
            0 => channel.send(ours.gather_element(..).unwrap()),
            _ => channel.receive(ours.scatter_element(..).unwrap()).map(drop),
        };
        with(|library| library.completes_sends = false);
        // It may be rejected for lack of room, or of slots.
        let has_begun = !matches!(ended, Err(Error::Rejected(_)));
        if is_healthy && has_begun {
            ended.expect("nothing has failed");
        }
        assert!(!is_posted(&ours), "borrowed still");
        ours.fill(7);
    }

    /// Ends a channel, and perhaps adds another.
    fn close(&mut self) {
        let Some(id) = self.id() else { return };
        if self.random.one_in(3) {
            self.leaks |= fault(&mut self.random);
        }
        match self.random.below(4) {
            0 => self
                .group
                .engine_mut()
                .shut_down(id, DownReason::Closed)
                .unwrap(),
            1 => self
                .group
                .engine_mut()
                .destroy(id, DownReason::Closed)
                .unwrap(),
            2 => self.group.channel(id).unwrap().abort(),
            _ => {
                self.group.remove(id).unwrap();
                self.ids.retain(|other| *other != id);
            }
        }
        if self.ids.len() < 2 || self.random.one_in(2) {
            self.join();
        }
    }

    /// Replaces channels that are down.
    fn replace_down(&mut self) {
        for id in self.ids.clone() {
            if self.group.channel(id).unwrap().is_down() {
                self.group.remove(id).unwrap();
                self.ids.retain(|other| *other != id);
                self.join();
            }
        }
    }

    /// Ends everything: all buffers are returned.
    fn end(mut self) {
        if self.random.one_in(10) {
            // No buffer is returned, and no memory is freed.
            mem::forget(self.group);
            mem::forget(self.operations);
            touch_posted();
            return;
        }
        if self.random.one_in(2) {
            self.all_completes();
        }
        self.group.engine_mut().destroy_all(DownReason::Closed);
        while let Some(completed) = self.group.next_completed() {
            self.taken(completed);
        }
        no_more_faults();
        let engine = self.group.engine_mut();
        // The queue can be polled now: it is empty.
        engine.destroy_all(DownReason::Closed);
        if !is_stuck() {
            assert_eq!(engine.common_room(), self.common, "room is lost");
        }
        // The tickets of some were returned before.
        for ticket in self
            .operations
            .iter()
            .map(|op| op.ticket)
            .collect::<Vec<_>>()
        {
            let completed = self.group.engine_mut().take(ticket).unwrap();
            self.taken(completed.expect("everything has ended"));
        }
        touch_posted();
        let Self { leaks, .. } = self;
        drop(self);
        touch_posted();
        if leaks {
            // Leaked objects keep their parents, which cannot be destroyed then.
            with(|library| {
                let is_wrong = |wrong: &String| !wrong.contains("before its child's end");
                assert!(!library.wrong.iter().any(is_wrong), "{:?}", library.wrong);
            });
        } else {
            assert_all_is_well();
        }
    }
}

fn facts(buffer: &OwnedBuffer) -> Facts {
    (buffer.as_ptr().addr(), buffer.len(), buffer[0])
}

fn region(pd: &ProtectionDomain, mark: u8) -> MemoryRegion<Vec<u8>> {
    pd.reg_mr(vec![mark; 64]).unwrap()
}

fn is_work_error(error: &TransportError) -> bool {
    matches!(error, TransportError::Work { .. })
}

/// Whether the library has a queue pair that could not be destroyed.
fn is_stuck() -> bool {
    fake_libibverbs::is_alive("ibv_create_qp")
}

/// A channel that does not belong to a group, leaked with a receive in flight.
#[test]
fn leaked_channel_keeps_its_buffers() {
    let pd = pd();
    let prepared = Channel::builder(&pd).max_recv_wr(2).build().unwrap();
    let mut channel = crate::fake_device::connected(prepared);
    let _ticket = channel.start_receive(region(&pd, 0)).unwrap();
    mem::forget(channel);
    touch_posted();
}
