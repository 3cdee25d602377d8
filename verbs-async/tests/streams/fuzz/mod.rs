//! Random safe programs of two streams that face each other, on a device with faults: they are
//! written, read, flushed, shut down, split, dropped and aborted while messages arrive one by one.
//! Bytes arrive in order, and none is read from memory that the device may access; an end arrives
//! after the last of them; flushed data have arrived; and every waiting task is woken.

mod wire;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use fake_libibverbs::faulty::{Random, fault, no_more_faults, programs};
use fake_libibverbs::{assert_all_is_well, is_alive, is_posted, share, touch_posted, with};
use futures_util::{AsyncBufRead, AsyncWrite};
use verbs_async::{AsyncChannel, AsyncGroup, ByteStream, OwnedReadHalf, OwnedWriteHalf};
use verbs_channel::Channel;
use verbs_core::ProtectionDomain;

use crate::bench::{Bench, WakeCounter, bounded};
use wire::{Wire, announce};

#[test]
fn safe_programs_of_streams_on_a_device_with_faults() {
    programs(250, |seed| bounded(|| run(seed)));
}

/// One program. It shares its library with the background thread.
fn run(seed: u64) {
    let sharing = share();
    let mut world = World::new(Random(seed));
    for _ in 0..world.random.below(if cfg!(miri) { 60 } else { 200 }) {
        world.step();
        with(|library| assert_eq!(library.wrong, [""; 0]));
    }
    let leaks = world.end();
    drop(sharing);
    if !leaks {
        assert_all_is_well();
    }
}

/// One of the two streams, and what its tasks have seen.
struct End {
    stream: Stream,
    reader: Task,
    writer: Task,
    /// Bytes that its writes have accepted, and that its reader has read.
    written: usize,
    read: usize,
    /// How its reader and its shutdown ended.
    has_end: Option<bool>,
    is_shut: Option<bool>,
    /// Nothing more is written.
    is_ending: bool,
    is_aborted: bool,
}

enum Stream {
    Whole(ByteStream),
    Halves(Option<OwnedReadHalf>, Option<OwnedWriteHalf>),
}

/// The task that waits for one half.
struct Task {
    counter: Arc<WakeCounter>,
    /// How often it had been woken when it was polled.
    woken: usize,
    /// Whether it waits for what it began to read or write.
    waits: bool,
}

impl Task {
    fn new() -> Self {
        Self {
            counter: WakeCounter::new(),
            woken: 0,
            waits: false,
        }
    }

    fn poll<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let waker = Waker::from(Arc::clone(&self.counter));
        self.woken = self.counter.times();
        let polled = poll(&mut Context::from_waker(&waker));
        self.waits = polled.is_pending();
        polled
    }

    /// Whether it is polled: it waits for nothing, or has been woken.
    fn is_due(&self) -> bool {
        !self.waits || self.counter.times() > self.woken
    }
}

impl Stream {
    fn reader(&mut self) -> Option<&mut (dyn AsyncBufRead + Unpin)> {
        match self {
            Self::Whole(stream) => Some(stream),
            Self::Halves(Some(read), _) => Some(read),
            Self::Halves(None, _) => None,
        }
    }

    fn writer(&mut self) -> Option<&mut (dyn AsyncWrite + Unpin)> {
        match self {
            Self::Whole(stream) => Some(stream),
            Self::Halves(_, Some(write)) => Some(write),
            Self::Halves(_, None) => None,
        }
    }

    fn is_dropped(&self) -> bool {
        matches!(self, Self::Halves(None, None))
    }
}

struct World {
    random: Random,
    wire: Wire,
    ends: [End; 2],
    may_fail: bool,
    /// Something has failed, so that anything may end in an error.
    has_failed: bool,
    leaks: bool,
    _group: AsyncGroup,
    _pd: ProtectionDomain,
    bench: Bench,
}

impl World {
    fn new(mut random: Random) -> Self {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let max_send_wr = u32::try_from(1 + random.below(4)).unwrap();
        let builder = Channel::builder(&pd)
            .max_send_wr(max_send_wr)
            .max_recv_wr(7);
        let group = AsyncGroup::new(builder, 2, &bench.events).unwrap();
        let channels = [joined(&group), joined(&group)];
        let qp_nums = [0, 1].map(|at: usize| channels[at].endpoint().unwrap().qp_num());
        let ends = channels.map(|channel| {
            let (block_len, depth) = (20 + random.below(60), 1 + random.below(3));
            let depth = u16::try_from(depth).unwrap();
            End {
                stream: Stream::Whole(channel.into_stream_with(block_len, depth).unwrap()),
                reader: Task::new(),
                writer: Task::new(),
                written: 0,
                read: 0,
                has_end: None,
                is_shut: None,
                is_ending: false,
                is_aborted: false,
            }
        });
        Self {
            may_fail: random.one_in(2),
            random,
            wire: Wire::new(qp_nums),
            ends,
            has_failed: false,
            leaks: false,
            _group: group,
            _pd: pd,
            bench,
        }
    }

    fn step(&mut self) {
        let at = self.random.below(2);
        match self.random.below(50) {
            0..10 => self.write(at),
            10..18 => self.read(at),
            18..21 => self.flush(at),
            21..32 => drop(self.wire.deliver(at, self.may_miss(at))),
            32..40 => drop(self.wire.complete(at)),
            40..43 => drop(announce(&self.bench)),
            43 => self.split(at),
            44 if self.random.one_in(4) => self.shut_down(at),
            45 if self.random.one_in(8) => self.drop_some(at),
            46 if self.may_fail && self.random.one_in(8) => {
                self.has_failed = true;
                let _any = self.wire.fail(at);
            }
            47 if self.may_fail && self.random.one_in(8) => {
                self.has_failed = true;
                self.fault();
            }
            48 if self.random.one_in(8) => thread::sleep(Duration::from_millis(3)),
            _ => touch_posted(),
        }
    }

    /// A fault, rarely one for which a buffer is leaked: waiting for that takes a second.
    fn fault(&mut self) {
        let leaks = fault(&mut self.random);
        // The background thread may meet it before it is removed.
        self.leaks |= leaks;
        if leaks && !self.random.one_in(10) {
            with(|library| library.refuse.clear());
        }
    }

    /// Whether a message from this side may find no receive.
    fn may_miss(&self, from: usize) -> bool {
        self.has_failed || self.ends[1 - from].stream.is_dropped()
    }

    /// Whether what this side does may end in an error.
    fn may_err(&self, at: usize) -> bool {
        let other = &self.ends[1 - at].stream;
        self.has_failed || other.is_dropped() || matches!(other, Stream::Halves(None, _))
    }

    fn write(&mut self, at: usize) {
        let len = 1 + self.random.below(150);
        let may_err = self.may_err(at);
        let end = &mut self.ends[at];
        let from: Vec<u8> = (end.written..end.written + len)
            .map(|place| byte(at, place))
            .collect();
        let Some(writer) = end.stream.writer() else {
            return;
        };
        match end
            .writer
            .poll(|cx| Pin::new(&mut *writer).poll_write(cx, &from))
        {
            Poll::Ready(Ok(count)) => {
                assert!(!end.is_ending && (1..=len).contains(&count));
                end.written += count;
            }
            Poll::Ready(Err(error)) => assert!(end.is_ending || may_err, "{error}"),
            Poll::Pending => {}
        }
    }

    fn read(&mut self, at: usize) {
        let takes_all = self.random.one_in(2);
        let at_most = match takes_all {
            true => usize::MAX,
            false => 1 + self.random.below(100),
        };
        self.read_some(at, at_most);
    }

    /// Reads at most this much.
    fn read_some(&mut self, at: usize, at_most: usize) {
        let may_err = self.may_err(at);
        let [ours, theirs] = match &mut self.ends {
            [first, second] if at == 0 => [first, second],
            [first, second] => [second, first],
        };
        let Some(reader) = ours.stream.reader() else {
            return;
        };
        let read = ours.reader.poll(|cx| {
            let bytes = Pin::new(&mut *reader).poll_fill_buf(cx);
            bytes.map_ok(|bytes| {
                assert!(!is_posted(bytes), "the device may still write there");
                let count = bytes.len().min(at_most);
                let expected = (ours.read..).map(|place| byte(1 - at, place));
                assert!(
                    bytes.iter().copied().eq(expected.take(bytes.len())),
                    "other bytes"
                );
                count
            })
        });
        match read {
            Poll::Ready(Ok(0)) => {
                assert_eq!(ours.read, theirs.written, "an end before the last byte");
                assert!(theirs.is_ending, "an end that was not written");
                ours.has_end = Some(true);
            }
            Poll::Ready(Ok(count)) => {
                assert_ne!(ours.has_end, Some(true), "bytes after the end");
                Pin::new(reader).consume(count);
                ours.read += count;
                assert!(ours.read <= theirs.written);
            }
            Poll::Ready(Err(error)) => {
                assert!(may_err, "{error}");
                ours.has_end.get_or_insert(false);
            }
            Poll::Pending => {}
        }
    }

    fn flush(&mut self, at: usize) {
        let may_err = self.may_err(at);
        let end = &mut self.ends[at];
        let Some(writer) = end.stream.writer() else {
            return;
        };
        let flushed = end.writer.poll(|cx| Pin::new(&mut *writer).poll_flush(cx));
        self.arrived(at, &flushed, may_err);
    }

    fn shut_down(&mut self, at: usize) {
        let may_err = self.may_err(at);
        let end = &mut self.ends[at];
        let Some(writer) = end.stream.writer() else {
            return;
        };
        end.is_ending = true;
        let mut shut = Poll::Pending;
        // A poll that only yields to other tasks wakes this one at once, and does not begin the end.
        for _ in 0..3 {
            shut = end.writer.poll(|cx| Pin::new(&mut *writer).poll_close(cx));
            if shut.is_ready() || !end.writer.is_due() {
                break;
            }
        }
        if let Poll::Ready(shut) = &shut {
            assert!(
                shut.is_ok() || end.is_shut != Some(true),
                "it was shut down"
            );
            end.is_shut = Some(shut.is_ok());
        }
        self.arrived(at, &shut, may_err);
    }

    /// Asserts that data that were flushed or shut down have arrived.
    fn arrived(&self, at: usize, polled: &Poll<io::Result<()>>, may_err: bool) {
        match polled {
            Poll::Ready(Ok(())) => {
                assert_eq!(
                    self.wire.bytes(at),
                    self.ends[at].written,
                    "it has not arrived"
                );
            }
            Poll::Ready(Err(error)) => assert!(may_err, "{error}"),
            Poll::Pending => {}
        }
    }

    fn split(&mut self, at: usize) {
        let gone = Stream::Halves(None, None);
        let stream = std::mem::replace(&mut self.ends[at].stream, gone);
        self.ends[at].stream = match stream {
            Stream::Whole(stream) => {
                let (read, write) = stream.into_split();
                Stream::Halves(Some(read), Some(write))
            }
            Stream::Halves(Some(read), Some(write)) => Stream::Whole(read.reunite(write).unwrap()),
            halves @ Stream::Halves(..) => halves,
        };
    }

    /// Drops a stream or one of its halves, or aborts a stream.
    fn drop_some(&mut self, at: usize) {
        let choice = self.random.below(4);
        let end = &mut self.ends[at];
        match (&mut end.stream, choice) {
            (Stream::Halves(read, _), 0) => drop(read.take()),
            (Stream::Halves(_, write), 1) => {
                end.is_ending |= write.is_some();
                drop(write.take());
            }
            (stream, _) => {
                end.is_ending = true;
                let stream = std::mem::replace(stream, Stream::Halves(None, None));
                match stream {
                    Stream::Whole(stream) if choice == 2 => {
                        end.is_aborted = true;
                        stream.abort();
                    }
                    Stream::Whole(stream) if choice == 3 => {
                        end.is_aborted = true;
                        stream.set_linger(Duration::ZERO);
                    }
                    stream => drop(stream),
                }
            }
        }
        // Nothing can be sent to a peer whose queue pair is destroyed.
        self.has_failed |= self.ends[at].is_aborted;
    }

    /// Everything arrives, and all remaining halves read and shut down, polled only when woken.
    /// Returns whether something was leaked.
    fn end(mut self) -> bool {
        no_more_faults();
        let mut idle = 0;
        loop {
            let mut moved = announce(&self.bench);
            for at in 0..2 {
                let may_miss = self.may_miss(at);
                moved |= self.wire.deliver(at, may_miss) | self.wire.complete(at);
                if self.is_reading(at) && self.ends[at].reader.is_due() {
                    self.read_some(at, usize::MAX);
                    moved = true;
                }
                if self.is_writing(at) && self.ends[at].writer.is_due() {
                    self.shut_down(at);
                    moved = true;
                }
            }
            with(|library| assert_eq!(library.wrong, [""; 0]));
            if !(0..2).any(|at| self.is_reading(at) || self.is_writing(at)) {
                break;
            }
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 3000, "a task is not woken");
            if idle == 150 && self.has_failed {
                // A side that only waits notices the other's end when it sends, or by an event.
                let _any = [self.wire.fail(0), self.wire.fail(1)];
            }
            if !moved {
                // The background thread drives it after a while.
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.all_was_read();
        self.close()
    }

    fn is_reading(&mut self, at: usize) -> bool {
        self.ends[at].has_end.is_none() && self.ends[at].stream.reader().is_some()
    }

    fn is_writing(&mut self, at: usize) -> bool {
        self.ends[at].is_shut.is_none() && self.ends[at].stream.writer().is_some()
    }

    /// Asserts that data of a stream that was not aborted have been read, if there was a reader.
    fn all_was_read(&mut self) {
        for at in 0..2 {
            let is_promised = !self.has_failed || self.ends[1 - at].is_shut == Some(true);
            if self.ends[at].stream.reader().is_some() && is_promised {
                assert_eq!(
                    self.ends[at].read,
                    self.ends[1 - at].written,
                    "bytes are lost"
                );
            }
            if self.ends[1 - at].is_shut == Some(true) && self.ends[at].stream.reader().is_some() {
                assert_eq!(self.ends[at].has_end, Some(true), "the end is lost");
            }
        }
    }

    /// Drops both; they end when the last of their messages has arrived.
    fn close(mut self) -> bool {
        for end in &mut self.ends {
            end.stream = Stream::Halves(None, None);
        }
        let mut idle = 0;
        while is_alive("ibv_create_qp") {
            let mut moved = announce(&self.bench);
            for at in 0..2 {
                moved |= self.wire.deliver(at, true) | self.wire.complete(at);
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle == 150 && self.leaks {
                break;
            }
            if idle == 150 && self.has_failed {
                // As above.
                let _any = [self.wire.fail(0), self.wire.fail(1)];
            }
            assert!(idle < 3000, "a stream that was dropped is not ended");
            thread::sleep(Duration::from_millis(u64::from(!moved)));
        }
        touch_posted();
        self.leaks
    }
}

fn joined(group: &AsyncGroup) -> AsyncChannel {
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    group.join(member.handshake(&endpoint).unwrap()).unwrap()
}

/// The byte that a side writes at this position.
fn byte(side: usize, place: usize) -> u8 {
    let mixed = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.to_le_bytes()[0] ^ [0, 0x55][side]
}
