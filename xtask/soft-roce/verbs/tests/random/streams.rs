//! Byte streams: they are written, read, flushed, shut down, split, dropped and aborted. Bytes come in order, an end after
//! the last of them, and what was flushed has arrived.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncWrite};
use verbs_async::{AsyncChannel, ByteStream, OwnedReadHalf, OwnedWriteHalf};
use verbs_channel::verbs_core::QueuePairEndpoint;

use crate::alone::alone;
use crate::tasks::{LONG, Task, connected, sides};
use crate::world::World;

/// One of the two streams, and what its tasks have seen.
struct End {
    stream: Stream,
    qp_num: Option<u32>,
    reader: Task,
    writer: Task,
    /// Bytes that its writes have accepted, that have been flushed, and that its reader has read.
    written: usize,
    flushed: usize,
    read: usize,
    /// Whether its reader and its shutdown ended well, when they have ended.
    has_end: Option<bool>,
    is_shut: Option<bool>,
    /// Nothing more is written.
    is_ending: bool,
}

enum Stream {
    Whole(ByteStream),
    Halves(Option<OwnedReadHalf>, Option<OwnedWriteHalf>),
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

    /// Drives a stream, none of whose tasks waits with another waker.
    fn drive(&mut self, is_reading: bool, is_writing: bool) {
        let mut cx = Context::from_waker(Waker::noop());
        match self {
            Self::Whole(stream) => drop(stream.is_down()),
            Self::Halves(_, Some(write)) if !is_writing => {
                let _flushed = Pin::new(write).poll_flush(&mut cx);
            }
            Self::Halves(Some(read), _) if !is_reading => {
                let _read = Pin::new(read).poll_fill_buf(&mut cx).map_ok(<[u8]>::len);
            }
            Self::Halves(..) => {}
        }
    }
}

/// Two streams, and whether what they do may end in an error.
struct Pair {
    ends: [End; 2],
    may_fail: bool,
    /// The program has dropped a stream, or its reading half.
    is_dropped: [bool; 2],
}

pub(crate) fn run(world: &mut World) {
    alone(|| {
        let Some(sides) = sides(world) else { return };
        for _ in 0..=world.random.below(2) {
            let Some(channels) = connected(world, &sides) else {
                continue;
            };
            let [left, right] = channels.map(|channel| end(world, channel));
            let (Some(left), Some(right)) = (left, right) else {
                assert!(!world.is_gentle);
                continue;
            };
            let mut pair = Pair {
                ends: [left, right],
                may_fail: !world.is_gentle,
                is_dropped: [false; 2],
            };
            for _ in 0..world.random.below(200) {
                step(world, &mut pair);
            }
            finish(world, pair);
        }
    });
}

fn end(world: &mut World, channel: AsyncChannel) -> Option<End> {
    let (block_len, depth) = (20 + world.random.below(600), 1 + world.random.below(4));
    let qp_num = channel.endpoint().as_ref().map(QueuePairEndpoint::qp_num);
    let depth = u16::try_from(depth).expect("a small number");
    Some(End {
        stream: Stream::Whole(channel.into_stream_with(block_len, depth).ok()?),
        qp_num,
        reader: Task::new(),
        writer: Task::new(),
        written: 0,
        flushed: 0,
        read: 0,
        has_end: None,
        is_shut: None,
        is_ending: false,
    })
}

fn step(world: &mut World, pair: &mut Pair) {
    let at = world.random.below(2);
    match world.random.below(32) {
        0..9 => {
            let length = 1 + world.random.below(900);
            write(pair, at, length);
        }
        9..18 => {
            let most = [usize::MAX, 1 + world.random.below(500)][world.random.below(2)];
            read(pair, at, most);
        }
        18..20 => flush(pair, at),
        20 => split(&mut pair.ends[at]),
        21 if world.random.one_in(4) => shut_down(pair, at),
        22 if world.random.one_in(6) => drop_some(world, pair, at),
        23 => world.trouble(false, pair.ends.each_ref().map(|end| end.qp_num)),
        24 => pair.ends[at].stream.drive(true, true),
        _ => world.pass(),
    }
}

fn write(pair: &mut Pair, at: usize, length: usize) {
    let end = &mut pair.ends[at];
    let bytes: Vec<u8> = (end.written..end.written + length)
        .map(|place| byte(at, place))
        .collect();
    let Some(writer) = end.stream.writer() else {
        return;
    };
    let polled = end
        .writer
        .poll(|cx| Pin::new(writer).poll_write(cx, &bytes));
    match polled {
        Poll::Ready(Ok(count)) => {
            assert!(!end.is_ending && (1..=length).contains(&count));
            end.written += count;
        }
        Poll::Ready(Err(error)) => assert!(end.is_ending || pair.may_fail, "{error}"),
        Poll::Pending => {}
    }
}

/// Reads at most this much.
fn read(pair: &mut Pair, at: usize, most: usize) {
    let [a, b] = &mut pair.ends;
    let (end, peer) = if at == 0 { (a, b) } else { (b, a) };
    let Some(reader) = end.stream.reader() else {
        return;
    };
    let read = end.reader.poll(|cx| {
        let bytes = Pin::new(&mut *reader).poll_fill_buf(cx);
        bytes.map_ok(|bytes| {
            let expected = (end.read..).map(|place| byte(1 - at, place));
            let is_same = bytes.iter().copied().eq(expected.take(bytes.len()));
            assert!(is_same, "it has other bytes");
            bytes.len().min(most)
        })
    });
    match read {
        Poll::Ready(Ok(0)) => {
            assert_eq!(end.read, peer.written, "an end before the last byte");
            assert!(peer.is_ending, "an end that was not written");
            end.has_end = Some(true);
        }
        Poll::Ready(Ok(count)) => {
            assert_eq!(end.has_end, None, "bytes after the end");
            Pin::new(reader).consume(count);
            end.read += count;
            assert!(end.read <= peer.written, "nobody has written it");
        }
        Poll::Ready(Err(error)) => {
            assert!(pair.may_fail, "{error}");
            end.has_end.get_or_insert(false);
        }
        Poll::Pending => {}
    }
}

fn flush(pair: &mut Pair, at: usize) {
    let end = &mut pair.ends[at];
    let Some(writer) = end.stream.writer() else {
        return;
    };
    let flushed = end.writer.poll(|cx| Pin::new(writer).poll_flush(cx));
    arrived(end, &flushed, pair.may_fail);
}

fn shut_down(pair: &mut Pair, at: usize) {
    let end = &mut pair.ends[at];
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
    arrived(end, &shut, pair.may_fail);
}

fn arrived(end: &mut End, polled: &Poll<io::Result<()>>, may_fail: bool) {
    match polled {
        Poll::Ready(Ok(())) => end.flushed = end.written,
        Poll::Ready(Err(error)) => assert!(may_fail, "{error}"),
        Poll::Pending => {}
    }
}

fn split(end: &mut End) {
    let gone = Stream::Halves(None, None);
    end.stream = match std::mem::replace(&mut end.stream, gone) {
        Stream::Whole(stream) => {
            let (read, write) = stream.into_split();
            Stream::Halves(Some(read), Some(write))
        }
        Stream::Halves(Some(read), Some(write)) => {
            Stream::Whole(read.reunite(write).expect("they are of one stream"))
        }
        halves @ Stream::Halves(..) => halves,
    };
}

/// Drops a stream or one of its halves, or aborts a stream. No thread sends what a dropped one has not sent.
fn drop_some(world: &mut World, pair: &mut Pair, at: usize) {
    let choice = world.random.below(4);
    let end = &mut pair.ends[at];
    match (&mut end.stream, choice) {
        (Stream::Halves(read, Some(_)), 0) => {
            drop(read.take());
            pair.may_fail = true;
            pair.is_dropped[at] = true;
        }
        (Stream::Halves(Some(_), write), 1) => {
            end.is_ending = true;
            drop(write.take());
        }
        (stream, _) => {
            end.is_ending = true;
            pair.may_fail = true;
            pair.is_dropped[at] = true;
            match std::mem::replace(stream, Stream::Halves(None, None)) {
                Stream::Whole(stream) if choice == 2 => stream.abort(),
                stream => drop(stream),
            }
        }
    }
}

/// All that is left is read and shut down; tasks are polled when they are woken.
fn finish(world: &mut World, mut pair: Pair) {
    let start = world.fabric.now();
    let wait = if pair.may_fail {
        Duration::from_secs(2)
    } else {
        LONG
    };
    while (0..2).any(|at| is_reading(&mut pair, at) || is_writing(&mut pair, at)) {
        for at in 0..2 {
            if is_reading(&mut pair, at) && pair.ends[at].reader.is_due() {
                read(&mut pair, at, usize::MAX);
            }
            if is_writing(&mut pair, at) && pair.ends[at].writer.is_due() {
                shut_down(&mut pair, at);
            }
            // A thread would drive one that has nothing to read or to write.
            let (reads, writes) = (is_reading(&mut pair, at), is_writing(&mut pair, at));
            if !(reads && writes) {
                pair.ends[at].stream.drive(reads, writes);
            }
        }
        world.fabric.step();
        if world.fabric.now() - start > wait {
            // A side that only waits does not notice the other's end.
            assert!(pair.may_fail, "a task is not woken");
            break;
        }
    }
    for at in 0..2 {
        let (end, peer) = (&pair.ends[at], &pair.ends[1 - at]);
        if pair.is_dropped[at] || world.is_hurt[at] {
            continue;
        }
        let promised = if pair.may_fail {
            peer.flushed
        } else {
            peer.written
        };
        // It may wait for the end of the connection.
        let is_known = end.has_end.is_some();
        assert!(
            end.read >= promised || !is_known,
            "{} of {promised} bytes",
            end.read
        );
        if peer.is_shut == Some(true) && is_known {
            assert_eq!(end.has_end, Some(true), "the end is lost");
        }
    }
}

fn is_reading(pair: &mut Pair, at: usize) -> bool {
    pair.ends[at].has_end.is_none() && pair.ends[at].stream.reader().is_some()
}

fn is_writing(pair: &mut Pair, at: usize) -> bool {
    pair.ends[at].is_shut.is_none() && pair.ends[at].stream.writer().is_some()
}

/// The byte that a side writes at this position.
fn byte(side: usize, place: usize) -> u8 {
    let mixed = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.to_le_bytes()[0] ^ [0, 0x55][side]
}
