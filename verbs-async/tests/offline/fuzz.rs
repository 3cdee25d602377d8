//! Random safe programs of futures on a device with faults: operations are awaited, dropped and
//! forgotten, channels and groups close under them. Nothing is lost: each future that is kept ends
//! once, with its buffer, which is not the device's any more, and with the right bytes in it.
#![expect(
    clippy::mem_forget,
    reason = "what is forgotten must not be the device's to write to"
)]

use std::mem;
use std::task::Poll;
use std::time::Duration;

use verbs_async::verbs_channel::{
    Channel, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedWork, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, Error, Operation};
use verbs_core::{ProtectionDomain, RemoteMemoryRegion};

use crate::bench::{Bench, Task, bounded};
use crate::faulty::{Card, Random, fault, programs, stray_completion};
use crate::groups::announce;
use crate::library::{is_posted, touch_posted, with};

#[test]
fn safe_programs_of_futures_on_a_device_with_faults() {
    programs(250, |seed| bounded(|| run(seed)));
}

fn run(seed: u64) {
    with(|library| library.contents = Some(|_, at| received(at)));
    let mut world = World::new(Random(seed));
    for _ in 0..world.random.below(if cfg!(miri) { 40 } else { 120 }) {
        world.step();
        with(|library| assert_eq!(library.wrong, [""; 0]));
    }
    world.end();
}

/// The byte that a device writes.
fn received(at: usize) -> u8 {
    0xa5 ^ at.to_le_bytes()[0]
}

/// An operation whose future was not ready yet, and what its buffer was.
struct Held {
    task: Task<Operation>,
    writes: bool,
    address: usize,
    length: usize,
    mark: u8,
}

struct World {
    random: Random,
    card: Card,
    pd: ProtectionDomain,
    group: AsyncGroup,
    channels: Vec<AsyncChannel>,
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
            card: Card::default(),
            group: AsyncGroup::new(builder, 3, &bench.events).unwrap(),
            pd,
            channels: Vec::new(),
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
            self.channels.push(channel);
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..6 => self.start(),
            6..11 => self.card.complete(&mut self.random),
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
        self.card.see();
    }

    fn start(&mut self) {
        if self.channels.is_empty() {
            return;
        }
        self.marks = self.marks.wrapping_add(1);
        let mark = self.marks;
        let mut buffer = OwnedBuffer::from(self.pd.reg_mr(vec![mark; 24]).unwrap());
        let start = self.random.below(8);
        let end = 16 + self.random.below(9);
        buffer.set_range(start..end).unwrap();
        let (address, length) = (buffer.as_ptr().addr(), buffer.len());
        let remote = RemoteMemoryRegion::new(0x1000, 64, 77).unwrap();
        let (work, writes): (OwnedWork, bool) = match self.random.below(6) {
            0 | 1 => (Outgoing::send(buffer).into(), false),
            2 => (Outgoing::write(buffer, remote).into(), false),
            3 => (Incoming::read(buffer, remote).into(), true),
            _ => (OwnedWork::receive(buffer), true),
        };
        let channel = &self.channels[self.random.below(self.channels.len())];
        self.held.push(Held {
            task: Task::new(channel.run(work)),
            writes,
            address,
            length,
            mark,
        });
    }

    fn chosen(&mut self) -> Option<Held> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(self.random.below(count)))
    }

    fn poll(&mut self) {
        let Some(mut held) = self.chosen() else {
            return;
        };
        match held.task.poll() {
            Poll::Pending => self.held.push(held),
            Poll::Ready((result, buffer)) => {
                let is_stuck = matches!(result, Err(Error::Transport(TransportError::Stuck)));
                if is_stuck || buffer.capacity() == 0 {
                    assert!(self.leaks && buffer.capacity() == 0, "a buffer is lost");
                    return;
                }
                assert!(!is_posted(&buffer), "the device may still touch it");
                let facts = (buffer.as_ptr().addr(), buffer.len());
                assert_eq!(facts, (held.address, held.length), "another's buffer");
                if !held.writes {
                    assert!(buffer.iter().all(|byte| *byte == held.mark), "other bytes");
                } else if result.is_ok() {
                    assert!(buffer.iter().copied().eq((0..held.length).map(received)));
                }
            }
        }
    }

    /// A channel ends, and perhaps another takes its place.
    fn close(&mut self) {
        if !self.channels.is_empty() {
            let at = self.random.below(self.channels.len());
            match self.random.below(4) {
                0 => self.channels[at].shut_down(),
                1 => self.group.give_up(DownReason::Closed),
                _ => drop(self.channels.swap_remove(at)),
            }
        }
        if self.channels.len() < 2 || self.random.one_in(2) {
            self.join();
        }
    }

    /// Everything ends, and comes back.
    fn end(mut self) {
        if self.random.one_in(10) {
            // Nothing is given back, and nothing is freed.
            mem::forget((self.group, self.channels, self.held));
            touch_posted();
            return;
        }
        with(|library| library.refuse.clear());
        self.channels.clear();
        let mut rounds = 0;
        while !self.held.is_empty() {
            self.poll();
            self.card.see();
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
