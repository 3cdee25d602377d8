//! Random safe programs of futures on a device with faults: operations and batches are awaited,
//! dropped and leaked, channels and groups close meanwhile. Nothing is lost: each future that is
//! kept is woken and ends once, with its buffers, which the device does not access any more, and with
//! the right bytes in them.
#![expect(
    clippy::mem_forget,
    reason = "the device must not write to memory of leaked values"
)]

use std::mem;
use std::task::Poll;
use std::time::Duration;

use fake_libibverbs::faulty::{
    FaultyDevice, Random, assert_written, fault, no_more_faults, programs, received,
    stray_completion,
};
use fake_libibverbs::{is_posted, touch_posted, with};
use verbs_async::verbs_channel::{
    Channel, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedChain, OwnedRequest, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, Error, Operation};
use verbs_core::{ProtectionDomain, RemoteMemoryRegion};

use crate::bench::{Bench, Task, announce, bounded, later};

#[test]
fn safe_programs_of_futures_on_a_device_with_faults() {
    programs(250, |seed| bounded(|| run(seed)));
}

fn run(seed: u64) {
    with(|library| library.contents = Some(received));
    let mut world = World::new(Random(seed));
    for _ in 0..world.random.below(if cfg!(miri) { 40 } else { 120 }) {
        world.step();
        with(|library| assert_eq!(library.wrong, [""; 0]));
    }
    world.end();
}

/// A future that was not ready yet, and the facts about its buffers.
struct Held {
    begun: Begun,
    /// How often it had been woken before it was polled.
    woken: usize,
    /// The number of its channel.
    channel: u64,
    buffers: Vec<Given>,
}

enum Begun {
    Operation(Task<Operation>),
    Batch(Task<Operation<Vec<OwnedRequest>>>),
    Chain(Task<Operation<OwnedChain>>),
}

struct Given {
    writes: bool,
    address: usize,
    length: usize,
    mark: u8,
}

impl Begun {
    fn poll(&mut self) -> Poll<(Result<(), Error>, Vec<OwnedBuffer>)> {
        match self {
            Self::Operation(task) => task.poll().map(|(result, buffer)| {
                let buffers = vec![buffer];
                (result.map(drop), buffers)
            }),
            Self::Batch(task) => task.poll().map(|(result, works)| {
                let buffers = works.into_iter().map(OwnedRequest::into_buffer);
                (result, buffers.collect())
            }),
            Self::Chain(task) => task.poll().map(|(result, chain)| {
                let is_whole = chain.done() == chain.len();
                assert!(is_whole == result.is_ok() || chain.is_empty());
                let works = chain.into_requests().into_iter();
                (result, works.map(OwnedRequest::into_buffer).collect())
            }),
        }
    }

    fn was_woken(&self) -> usize {
        match self {
            Self::Operation(task) => task.was_woken(),
            Self::Batch(task) => task.was_woken(),
            Self::Chain(task) => task.was_woken(),
        }
    }

    /// How often it had been woken when it was polled last.
    const fn woken_before(&self) -> usize {
        match self {
            Self::Operation(task) => task.woken_before(),
            Self::Batch(task) => task.woken_before(),
            Self::Chain(task) => task.woken_before(),
        }
    }
}

impl Held {
    const fn new(begun: Begun, channel: u64, buffers: Vec<Given>) -> Self {
        Self {
            begun,
            woken: 0,
            channel,
            buffers,
        }
    }
}

struct World {
    random: Random,
    device: FaultyDevice,
    pd: ProtectionDomain,
    group: AsyncGroup,
    channels: Vec<(u64, AsyncChannel)>,
    joined: u64,
    held: Vec<Held>,
    marks: u8,
    leaks: bool,
    bench: Bench,
}

const SHORT: Duration = Duration::from_millis(1);

impl World {
    fn new(random: Random) -> Self {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(2);
        let builder = builder.drain_timeout(SHORT);
        let mut world = Self {
            random,
            device: FaultyDevice::default(),
            group: AsyncGroup::new(builder, 3, &bench.events).unwrap(),
            pd,
            channels: Vec::new(),
            joined: 0,
            held: Vec::new(),
            marks: 0,
            leaks: false,
            bench,
        };
        (0..2).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        let Ok(member) = self.group.prepare() else {
            return;
        };
        let endpoint = member.endpoint();
        if let Ok(member) = member.handshake(&endpoint)
            && let Ok(channel) = self.group.join(member)
        {
            self.joined += 1;
            self.channels.push((self.joined, channel));
        }
    }

    fn step(&mut self) {
        match self.random.below(28) {
            0..6 => self.start(),
            24..27 => self.batch(),
            27 => self.replace_down(),
            6..11 => self.device.complete(&mut self.random),
            11..15 => self.poll(),
            15 => drop(self.chosen()),
            16 => {
                self.leaks = true;
                mem::forget(self.chosen());
            }
            17 => self.close(),
            18 => self.leaks |= fault(&mut self.random),
            19 => stray_completion(&mut self.random),
            20 | 21 => announce(&self.bench),
            _ => touch_posted(),
        }
        assert!(later(self.group.destroyed()).is_ok() || self.leaks);
        self.device.see();
    }

    fn work(&mut self, may_receive: bool) -> (OwnedRequest, Given) {
        self.marks = self.marks.wrapping_add(1);
        let mark = self.marks;
        let mut buffer = OwnedBuffer::from(self.pd.reg_mr(vec![mark; 24]).unwrap());
        let start = self.random.below(8);
        let end = 16 + self.random.below(9);
        buffer.set_range(start..end).unwrap();
        let (address, length) = (buffer.as_ptr().addr(), buffer.len());
        let remote = RemoteMemoryRegion::new(0x1000, 64, 77).unwrap();
        let (work, writes): (OwnedRequest, bool) = match self.random.below(6) {
            0 | 1 => (Outgoing::send(buffer).into(), false),
            2 => (Outgoing::write(buffer, remote).into(), false),
            3.. if may_receive => (OwnedRequest::receive(buffer), true),
            _ => (Incoming::read(buffer, remote).into(), true),
        };
        let given = Given {
            writes,
            address,
            length,
            mark,
        };
        (work, given)
    }

    fn start(&mut self) {
        if self.channels.is_empty() {
            return;
        }
        let may_receive = self.random.one_in(2);
        let (work, given) = self.work(may_receive);
        let (number, channel) = &self.channels[self.random.below(self.channels.len())];
        let begun = Begun::Operation(Task::new(channel.run(work)));
        let buffers = vec![given];
        self.held.push(Held::new(begun, *number, buffers));
    }

    /// A batch or a chain, which may be empty, have a receive in it, or be longer than the send queue.
    fn batch(&mut self) {
        if self.channels.is_empty() {
            return;
        }
        let count = match self.random.below(12) {
            0 => 0,
            1 => 4,
            _ => 1 + self.random.below(3),
        };
        let may_receive = self.random.one_in(12);
        let (works, buffers) = (0..count).map(|_| self.work(may_receive)).unzip();
        let (number, channel) = &self.channels[self.random.below(self.channels.len())];
        let begun = if self.random.one_in(2) {
            Begun::Batch(Task::new(channel.batch(works)))
        } else {
            match OwnedChain::new(works) {
                Ok(chain) => Begun::Chain(Task::new(channel.chain(chain))),
                // There is a receive in it.
                Err(rejected) => Begun::Batch(Task::new(channel.batch(rejected.into_given()))),
            }
        };
        self.held.push(Held::new(begun, *number, buffers));
    }

    fn chosen(&mut self) -> Option<Held> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(self.random.below(count)))
    }

    fn poll(&mut self) {
        let Some(mut held) = self.chosen() else {
            return;
        };
        match held.begun.poll() {
            Poll::Pending => {
                held.woken = held.begun.woken_before();
                self.held.push(held);
            }
            Poll::Ready((result, buffers)) => self.ended(&held, &result, &buffers),
        }
    }

    fn ended(&mut self, held: &Held, result: &Result<(), Error>, buffers: &[OwnedBuffer]) {
        self.device.see();
        let is_stuck = matches!(result, Err(Error::Transport(TransportError::Stuck)));
        if is_stuck {
            assert!(self.leaks, "the queue pair was destroyed");
            assert!(buffers.iter().all(|buffer| buffer.capacity() == 0));
            return;
        }
        let all = held.buffers.len();
        // A part of a batch was posted, and the queue pair could not be destroyed.
        let is_leaked = buffers.len() < all || buffers.iter().any(|buffer| buffer.capacity() == 0);
        if is_leaked {
            assert!(self.leaks && result.is_err(), "a buffer is lost");
            return;
        }
        assert_eq!(buffers.len(), all);
        let wr_ids = held.buffers.iter();
        let wr_ids = wr_ids.filter_map(|given| self.device.posted_at(given.address));
        let wr_ids: Vec<u64> = wr_ids.collect();
        self.device.assert_agrees(&wr_ids, result, |error| {
            matches!(error, Error::Transport(TransportError::Work { .. }))
        });
        for (at, (buffer, given)) in buffers.iter().zip(&held.buffers).enumerate() {
            assert!(!is_posted(buffer), "the device may still touch it");
            let facts = (buffer.as_ptr().addr(), buffer.len());
            assert_eq!(facts, (given.address, given.length), "another's buffer");
            if !given.writes {
                assert!(buffer.iter().all(|byte| *byte == given.mark), "other bytes");
            } else if result.is_ok() {
                assert_written(buffer, wr_ids[at]);
            }
        }
    }

    /// Ends a channel, and perhaps adds another.
    fn close(&mut self) {
        if !self.channels.is_empty() {
            let at = self.random.below(self.channels.len());
            match self.random.below(4) {
                0 => self.channels[at].1.shut_down(),
                1 => self.group.destroy_all(DownReason::Closed),
                _ => drop(self.channels.swap_remove(at)),
            }
        }
        if self.channels.len() < 2 || self.random.one_in(2) {
            self.join();
        }
    }

    /// Replaces channels that are down.
    fn replace_down(&mut self) {
        self.channels.retain(|(_, channel)| !channel.is_down());
        while self.channels.len() < 2 {
            let before = self.channels.len();
            self.join();
            if self.channels.len() == before {
                return;
            }
        }
    }

    /// On channels that are not down each future succeeds once the device has completed it, although
    /// those that were polled are polled again only when they are woken.
    fn all_succeeds(&mut self) {
        no_more_faults();
        for _ in 0..self.held.len() {
            let mut held = self.held.remove(0);
            match held.begun.poll() {
                Poll::Pending => {
                    held.woken = held.begun.woken_before();
                    self.held.push(held);
                }
                Poll::Ready((result, buffers)) => self.ended(&held, &result, &buffers),
            }
        }
        announce(&self.bench);
        let up = self
            .channels
            .iter()
            .filter(|(_, channel)| !channel.is_down());
        let up: Vec<u64> = up.map(|(number, _)| *number).collect();
        let mut rounds = 0;
        while self.held.iter().any(|held| up.contains(&held.channel)) {
            self.device.complete_all();
            if !with(|library| mem::take(&mut library.armed)).is_empty() {
                announce(&self.bench);
            }
            let is_woken = |held: &Held| held.begun.was_woken() > held.woken;
            while let Some(at) = self.held.iter().position(is_woken) {
                let mut held = self.held.swap_remove(at);
                match held.begun.poll() {
                    Poll::Pending => {
                        held.woken = held.begun.woken_before();
                        self.held.push(held);
                    }
                    Poll::Ready((result, buffers)) => {
                        let is_rejected = matches!(result, Err(Error::Rejected(_)));
                        let is_up = up.contains(&held.channel);
                        assert!(!is_up || is_rejected || result.is_ok(), "{result:?}");
                        self.ended(&held, &result, &buffers);
                    }
                }
            }
            rounds += 1;
            assert!(rounds < 1000, "a completion or a wake-up is lost");
        }
    }

    /// Ends everything: all buffers are returned.
    fn end(mut self) {
        if self.random.one_in(10) {
            // No buffer is returned, and no memory is freed.
            mem::forget((self.group, self.channels, self.held));
            touch_posted();
            return;
        }
        if self.random.one_in(2) {
            self.all_succeeds();
        }
        with(|library| library.refuse.clear());
        self.channels.clear();
        assert!(later(self.group.destroyed()).is_ok() || self.leaks);
        let mut rounds = 0;
        while !self.held.is_empty() {
            self.poll();
            self.device.see();
            announce(&self.bench);
            rounds += 1;
            assert!(rounds < 100_000, "an operation does not end");
        }
        touch_posted();
        drop((self.group, self.bench, self.pd));
        touch_posted();
        with(|library| {
            let is_wrong = |wrong: &String| !wrong.contains("before its child's end");
            assert!(!library.wrong.iter().any(is_wrong), "{:?}", library.wrong);
        });
    }
}
