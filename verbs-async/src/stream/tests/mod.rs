//! Two ends in memory, with random orders of all steps.

mod rules;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};

use proptest::prelude::{ProptestConfig, Strategy, any, prop, proptest};
use proptest::{prop_assert, prop_assert_eq};

use super::SPARE;
use super::error::StreamError;
use super::machine::{Block, Machine, Segment, Sent};
use super::protocol::Protocol;
use super::wire::Settings;

/// A block of plain memory.
#[derive(Debug)]
struct Plain(Vec<u8>, Range<usize>);

impl Plain {
    fn new(settings: Settings) -> Self {
        Self(vec![0; settings.block_len.try_into().unwrap()], 0..0)
    }
}

impl Deref for Plain {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

impl DerefMut for Plain {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[self.1.clone()]
    }
}

impl Block for Plain {
    fn capacity(&self) -> usize {
        self.0.len()
    }

    fn set_range(&mut self, range: Range<usize>) {
        assert!(range.end <= self.0.len());
        self.1 = range;
    }
}

/// One side: what the stream does with its machine, with memory in place of a device.
struct End {
    machine: Machine<Plain>,
    posted: VecDeque<Plain>,
    /// On the wire: in flight until a receive has taken it and its completion was delivered.
    wire: VecDeque<(u32, Sent, Option<Plain>)>,
    sent: VecDeque<(Sent, Option<Plain>)>,
    /// Received and not processed.
    came: VecDeque<(u32, Plain)>,
    to_write: VecDeque<u8>,
    read: Vec<u8>,
    error: Option<StreamError>,
    /// Sends and how many DATA messages.
    data_messages: usize,
}

impl End {
    fn new(settings: Settings, max_sends: usize, to_write: &[u8]) -> Self {
        let free = (0..settings.depth).map(|_| Plain::new(settings)).collect();
        let mut hello = Plain::new(settings);
        hello.set_range(0..settings.encode().len());
        hello.copy_from_slice(&settings.encode());
        Self {
            machine: Machine::new(settings, free, max_sends),
            posted: (0..settings.depth + SPARE)
                .map(|_| Plain::new(settings))
                .collect(),
            wire: [(Protocol::hello(), Sent::Other, Some(hello))].into(),
            sent: VecDeque::new(),
            came: VecDeque::new(),
            to_write: to_write.iter().copied().collect(),
            read: Vec::new(),
            error: None,
            data_messages: 0,
        }
    }

    /// Writes at most this many bytes. Returns whether it made progress.
    fn write(&mut self, at_most: usize) -> bool {
        let bytes = self.to_write.make_contiguous();
        let wanted = bytes.len().min(at_most);
        if wanted == 0 || self.error.is_some() {
            return false;
        }
        let wrote = self.machine.write(|room| {
            let len = room.len().min(wanted);
            room[..len].copy_from_slice(&bytes[..len]);
            len
        });
        let count = wrote.unwrap_or(0);
        self.to_write.drain(..count);
        self.send();
        count > 0
    }

    /// Ends the data when all is written.
    fn end(&mut self) -> bool {
        if !self.to_write.is_empty() || self.machine.fin_is_requested() {
            return false;
        }
        self.machine.request_fin();
        self.send();
        true
    }

    fn read(&mut self) -> bool {
        let Some(segment) = self.machine.next_segment() else {
            return false;
        };
        self.read.extend(segment.bytes());
        self.machine.recycle(segment);
        self.post();
        self.send();
        true
    }

    /// Delivers everything on the wire, and processes the first message that arrived.
    fn receive(&mut self, from: &mut Self) -> bool {
        for (imm_data, sent, block) in from.wire.drain(..) {
            let mut into = self.posted.pop_front().expect("a message found no receive");
            let bytes = block.as_deref().unwrap_or_default();
            assert!(bytes.len() <= into.capacity(), "a message is too long");
            into.set_range(0..bytes.len());
            into.copy_from_slice(bytes);
            self.came.push_back((imm_data, into));
            from.sent.push_back((sent, block));
        }
        let Some((imm_data, block)) = self.came.pop_front() else {
            return false;
        };
        if self.error.is_some() {
            return true;
        }
        self.error = self.machine.receive(Some(imm_data), block).err();
        self.post();
        self.send();
        true
    }

    /// Completes the oldest of its sends.
    fn complete(&mut self) -> bool {
        let Some((sent, block)) = self.sent.pop_front() else {
            return false;
        };
        self.machine.sent(sent, block);
        self.send();
        true
    }

    fn post(&mut self) {
        self.posted.extend(self.machine.unposted().drain(..));
    }

    fn send(&mut self) {
        while self.error.is_none()
            && let Some(send) = self.machine.next_send()
        {
            self.data_messages += usize::from(send.block.is_some());
            self.wire.push_back((send.imm_data, send.what, send.block));
        }
    }

    fn drop_stream(&mut self) {
        self.machine.discard(false);
        self.machine.drop_stream();
        self.post();
        self.send();
    }

    fn is_done(&self) -> bool {
        let is_ended = self.machine.protocol().fin_was_received();
        self.to_write.is_empty() && self.machine.is_seen() == Some(true) && is_ended
    }
}

/// One of the steps of either side.
fn step(left: &mut End, right: &mut End, what: u8, at_most: usize) {
    let _did = match what {
        0 => left.write(at_most),
        1 => right.write(at_most),
        2 => left.read(),
        3 => right.read(),
        4 => left.receive(right),
        5 => right.receive(left),
        6 => left.complete(),
        _ => right.complete(),
    };
}

/// Both sides run these functions until neither makes progress.
fn settle(left: &mut End, right: &mut End, can: impl Fn(&mut End) -> bool) {
    loop {
        let moved = [
            left.receive(right),
            right.receive(left),
            left.complete(),
            right.complete(),
            can(left),
            can(right),
        ];
        if !moved.contains(&true) {
            return;
        }
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    (20_u32..100, 1_u16..6).prop_map(|(block_len, depth)| Settings { block_len, depth })
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever the order of steps: no message without a receive, all bytes in order, and never
    /// a deadlock.
    #[test]
    fn all_data_arrive_in_any_order_of_events(
        left in (settings(), 1..6_usize, bytes()),
        right in (settings(), 1..6_usize, bytes()),
        steps in prop::collection::vec((0..8_u8, 1..60_usize), 0..400),
    ) {
        let (to_right, to_left) = (left.2.clone(), right.2.clone());
        let mut left = End::new(left.0, left.1, &left.2);
        let mut right = End::new(right.0, right.1, &right.2);
        for (what, at_most) in steps {
            step(&mut left, &mut right, what, at_most);
        }
        settle(&mut left, &mut right, |end| {
            let wrote = end.write(usize::MAX) || end.end();
            end.read() || wrote
        });
        prop_assert!(left.is_done() && right.is_done(), "they wait for each other");
        prop_assert_eq!(left.read, to_left);
        prop_assert_eq!(right.read, to_right);
    }

    /// A stream that is dropped at any point: its peer reads all that was written and then the end,
    /// or an error after the first of it; and its shutdown succeeds only if all that it wrote was
    /// read.
    #[test]
    fn a_dropped_stream_never_ends_before_its_last_byte(
        left in (settings(), 1..6_usize, bytes()),
        right in (settings(), 1..6_usize, bytes()),
        steps in prop::collection::vec((0..8_u8, 1..60_usize), 0..200),
        is_ended in any::<bool>(),
    ) {
        let to_left = right.2.clone();
        let to_right = left.2.clone();
        let mut left = End::new(left.0, left.1, &left.2);
        let mut right = End::new(right.0, right.1, &right.2);
        for (what, at_most) in steps {
            step(&mut left, &mut right, what, at_most);
        }
        if is_ended {
            let _ended = left.end();
        }
        let written = to_right.len() - left.to_write.len();
        left.to_write.clear();
        left.drop_stream();
        settle(&mut left, &mut right, |end| {
            // The one that was dropped does nothing any more.
            let _wrote = end.write(usize::MAX);
            let ended = end.end();
            end.read() || ended
        });
        prop_assert_eq!(&right.read[..], &to_right[..right.read.len()]);
        let is_read = left.read.len() == to_left.len();
        match right.error {
            None => {
                prop_assert!(right.machine.protocol().fin_was_received(), "it waits forever");
                prop_assert_eq!(right.read.len(), written);
            }
            Some(error) => {
                prop_assert_eq!(error, StreamError::Reset);
                prop_assert!(!is_read, "a reset although all was read");
            }
        }
        if right.error.is_none() {
            prop_assert_eq!(right.machine.is_seen() == Some(true), is_read);
        }
        prop_assert!(left.machine.is_over() || right.error.is_some());
    }
}

/// The default settings of a stream.
const DEFAULT: Settings = Settings {
    block_len: if cfg!(miri) { 128 } else { 16 << 10 },
    depth: 16,
};

/// A sixteenth of a block: fewer bytes where they are interpreted.
const KIB: usize = if cfg!(miri) { 8 } else { 1024 };

#[test]
fn both_sides_write_64_kib_in_single_bytes_before_either_reads() {
    const TOTAL: usize = 64 * KIB;
    let mut left = End::new(DEFAULT, 64, &[1; TOTAL]);
    let mut right = End::new(DEFAULT, 64, &[2; TOTAL]);
    settle(&mut left, &mut right, |end| end.write(1));
    assert_eq!((left.to_write.len(), right.to_write.len()), (0, 0));
    // It has arrived, too: a flush does not wait for the reader.
    assert!(left.machine.has_arrived() && right.machine.has_arrived());
    settle(&mut left, &mut right, End::read);
    assert_eq!((left.read.len(), right.read.len()), (TOTAL, TOTAL));
}

/// Each write arrives before the next is done: nothing can be joined at the writer.
#[test]
fn the_window_is_counted_in_bytes_whatever_the_length_of_messages() {
    for len in [1, 100, 5 * KIB, 8 * KIB, 9 * KIB, 16 * KIB] {
        let mut left = End::new(DEFAULT, 64, &[1; 80 * KIB]);
        let mut right = End::new(DEFAULT, 64, &[]);
        settle(&mut left, &mut right, |_| false);
        let mut flushed = 0;
        while flushed < 64 * KIB {
            let before = left.to_write.len();
            assert!(left.write(len));
            settle(&mut left, &mut right, |_| false);
            assert!(left.machine.has_arrived(), "{flushed} bytes, {len} each");
            flushed += before - left.to_write.len();
        }
    }
}

#[test]
fn single_write_is_sent_at_once_and_later_ones_are_joined() {
    let mut left = End::new(DEFAULT, 64, &[1; 100]);
    let mut right = End::new(DEFAULT, 64, &[]);
    settle(&mut left, &mut right, |_| false);
    assert!(left.write(1));
    assert_eq!(left.wire.len(), 1);
    while left.write(1) {}
    assert_eq!(left.data_messages, 4, "the others wait for these");
    settle(&mut left, &mut right, |_| false);
    assert_eq!(left.data_messages, 5);
    settle(&mut left, &mut right, End::read);
    assert_eq!(right.read.len(), 100);
}

#[test]
fn flush_sends_joined_writes() {
    let mut left = End::new(DEFAULT, 64, &[1; 10]);
    let mut right = End::new(DEFAULT, 64, &[]);
    settle(&mut left, &mut right, |_| false);
    while left.write(1) {}
    left.machine.push();
    left.send();
    assert_eq!(left.data_messages, 5);
}

/// Long messages are read where they arrived, and so are short ones while blocks are there.
#[test]
fn messages_are_copied_only_when_blocks_run_short() {
    let is_copied = |len, count| {
        let mut left = End::new(DEFAULT, 64, &vec![1; len * count]);
        let mut right = End::new(DEFAULT, 64, &[]);
        settle(&mut left, &mut right, |_| false);
        for _ in 0..count {
            assert!(left.write(len));
            settle(&mut left, &mut right, |_| false);
        }
        let mut copied = 0;
        while let Some(segment) = right.machine.next_segment() {
            copied += usize::from(matches!(segment, Segment::Copied(_)));
            right.machine.recycle(segment);
        }
        copied
    };
    assert_eq!(is_copied(64, 8), 0);
    assert_eq!(is_copied(64, 9), 1);
    assert_eq!(is_copied(16 * KIB, 16), 0);
}

#[test]
fn dropped_reader_does_not_block_the_peer() {
    let mut left = End::new(DEFAULT, 64, &[1; 1024 * KIB]);
    let mut right = End::new(DEFAULT, 64, b"");
    right.machine.discard(false);
    settle(&mut left, &mut right, |end| {
        end.write(usize::MAX) || end.end()
    });
    assert_eq!(
        (left.to_write.len(), left.machine.is_seen()),
        (0, Some(false))
    );
    assert_eq!(left.error, None, "it can read on");
}
