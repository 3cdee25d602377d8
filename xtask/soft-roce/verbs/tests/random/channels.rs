//! Async channels: operations that are awaited, dropped and leaked, on channels of groups that are dropped and replaced.
#![expect(clippy::mem_forget, reason = "futures may be leaked")]

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use verbs_async::{AsyncChannel, Operation};
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{AccessFlags, QueuePairEndpoint, RemoteMemoryRegion, SharedRegion};
use verbs_channel::{
    BufferPool, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedRequest, TransportError,
};

use crate::alone::alone;
use crate::tasks::{BLOCK, BLOCKS, CHANNELS, LONG, Side, Task, connected, sides};
use crate::world::{World, bytes};

/// Where the number of a message is.
const NUMBER: usize = 8;
/// The words that a peer writes to and adds to, of each channel.
const WORDS: usize = 2;
const WORD: usize = 8;

/// A connection.
struct Pair {
    ends: [End; 2],
    /// One end was dropped or shut down by the program.
    is_over: bool,
}

/// One end of a connection.
struct End {
    channel: Option<AsyncChannel>,
    /// The peer's memory that only this end changes.
    memory: SharedRegion<Vec<u8>>,
    held: Vec<Held>,
    /// Messages, writes, additions and receives that were begun.
    begun: [usize; 4],
    /// Those that have succeeded, in any order.
    done: [Vec<usize>; 3],
    /// Words that were read, each with the number of the last write or addition that was begun before.
    read: [Vec<(usize, u64)>; WORDS],
    /// Numbers of receives, and of the messages that they have received.
    received: Vec<(usize, usize)>,
    /// Receives that were dropped: there may have been a message in them.
    dropped: usize,
    has_lost: bool,
    /// A send was dropped, which may wait for a receive of the peer's.
    has_dropped_a_send: bool,
}

impl End {
    /// Receives that have not ended.
    fn receives(&self) -> usize {
        let receives = self.held.iter().filter(|held| held.kind == Kind::Receive);
        receives.count()
    }
}

const SEND: usize = 0;
const WRITE: usize = 1;
const ADD: usize = 2;
const RECEIVE: usize = 3;

/// An operation that has not ended, and its number among its kind.
struct Held {
    kind: Kind,
    number: usize,
    future: Future,
    task: Task,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// One message or more.
    Send,
    Write,
    Read(usize),
    Add,
    Receive,
}

enum Future {
    One(Operation),
    Batch(Operation<Vec<OwnedRequest>>),
    Chain(Operation<OwnedChain>),
}

impl std::future::Future for Future {
    type Output = (Result<(), TransportError>, Vec<OwnedBuffer>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::One(operation) => Pin::new(operation)
                .poll(cx)
                .map(|(result, buffer)| (result.map(drop), vec![buffer])),
            Self::Batch(operation) => Pin::new(operation).poll(cx).map(|(result, requests)| {
                let buffers = requests.into_iter().map(OwnedRequest::into_buffer);
                (result, buffers.collect())
            }),
            Self::Chain(operation) => Pin::new(operation).poll(cx).map(|(result, chain)| {
                let is_whole = chain.done() == chain.len();
                assert!(is_whole == result.is_ok() || chain.is_empty());
                let requests = chain.into_requests().into_iter();
                (result, requests.map(OwnedRequest::into_buffer).collect())
            }),
        }
    }
}

pub(crate) fn run(world: &mut World) {
    alone(|| run_alone(world));
}

fn run_alone(world: &mut World) {
    let Some(sides) = sides(world) else { return };
    let mut pairs: Vec<Pair> = Vec::new();
    let mut leaked = 0;
    for _ in 0..world.random.below(200) {
        if pairs.len() < CHANNELS as usize && (pairs.is_empty() || world.random.one_in(8)) {
            pairs.extend(connect(world, &sides));
        }
        if pairs.is_empty() {
            return;
        }
        let at = world.random.below(pairs.len());
        let (pair, which) = (&mut pairs[at], world.random.below(2));
        match world.random.below(24) {
            0..10 => begin(world, &sides[which], &mut pair.ends[which]),
            10..17 => poll_one(world, pair, which),
            17 => leaked += abandon(world, &mut pair.ends[which]),
            18 if world.random.one_in(6) => {
                end_early(world, &sides[which], pair, which);
            }
            19 if pair.is_over && world.random.one_in(2) => finish(world, &sides, pairs.remove(at)),
            20 => {
                let channels = pair.ends.each_ref().map(|end| end.channel.as_ref());
                let qp_nums = channels.map(|channel| channel?.endpoint());
                world.trouble(
                    false,
                    qp_nums.map(|it| it.as_ref().map(QueuePairEndpoint::qp_num)),
                );
            }
            _ => world.pass(),
        }
    }
    for pair in pairs {
        finish(world, &sides, pair);
    }
    let pools = sides.map(|Side { pool, .. }| pool);
    let free: usize = pools.iter().map(BufferPool::available).sum();
    assert!(
        free + leaked >= 2 * BLOCKS || world.leaks,
        "blocks are lost"
    );
}

fn connect(world: &World, sides: &[Side; 2]) -> Option<Pair> {
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let [left, right] = connected(world, sides)?;
    let end = |channel, peer: &Side| {
        let memory = peer.pd.reg_shared(vec![0; WORDS * WORD], access);
        assert!(memory.is_ok() || !world.is_gentle);
        Some(End {
            channel: Some(channel),
            memory: memory.ok()?,
            held: Vec::new(),
            begun: [0; 4],
            done: Default::default(),
            read: Default::default(),
            received: Vec::new(),
            dropped: 0,
            has_lost: false,
            has_dropped_a_send: false,
        })
    };
    Some(Pair {
        ends: [end(left, &sides[1])?, end(right, &sides[0])?],
        is_over: false,
    })
}

/// A block with a message of this number.
fn message(pool: &BufferPool, number: usize) -> Option<OwnedBuffer> {
    let mut message = number.to_le_bytes().to_vec();
    message.extend(bytes(number, number % (BLOCK - NUMBER)));
    Some(pool.take()?.filled(&message).expect("it fits"))
}

/// A block of one word.
fn word(pool: &BufferPool, word: u64) -> Option<OwnedBuffer> {
    let block = pool.take()?.filled(&word.to_ne_bytes());
    Some(block.expect("it fits"))
}

fn remote(end: &End, at: usize) -> RemoteMemoryRegion {
    let range = (at * WORD) as u64..((at + 1) * WORD) as u64;
    end.memory.remote().slice(range).expect("within the memory")
}

/// Begins an operation, if there is a block for it.
fn begin(world: &mut World, side: &Side, end: &mut End) {
    if let Some(held) = operation(world, side, end) {
        end.held.push(held);
    }
}

fn operation(world: &mut World, Side { pool, .. }: &Side, end: &mut End) -> Option<Held> {
    let channel = end.channel.as_ref()?;
    let (kind, number, future) = match world.random.below(12) {
        0..3 => {
            let number = end.begun[SEND];
            let sent = channel.send(message(pool, number)?);
            end.begun[SEND] += 1;
            (Kind::Send, number, Future::One(sent))
        }
        3 => {
            let number = end.begun[SEND];
            let sends = [message(pool, number)?, message(pool, number + 1)?];
            let sends = sends.map(|buffer| Outgoing::send(buffer).into());
            end.begun[SEND] += 2;
            let future = if world.random.one_in(2) {
                Future::Batch(channel.batch(sends.into()))
            } else {
                let chain = OwnedChain::new(sends.into()).expect("only sends");
                Future::Chain(channel.chain(chain))
            };
            (Kind::Send, number, future)
        }
        4 | 5 => {
            let number = end.begun[WRITE] + 1;
            let buffer = word(pool, number as u64)?;
            end.begun[WRITE] = number;
            let write = channel.write(buffer, remote(end, 0));
            (Kind::Write, number, Future::One(write))
        }
        6 => {
            let number = end.begun[ADD] + 1;
            let buffer = word(pool, 0)?;
            end.begun[ADD] = number;
            let add = channel.run(Incoming::fetch_and_add(buffer, remote(end, 1), 1));
            (Kind::Add, number, Future::One(add))
        }
        7 => {
            let at = world.random.below(WORDS);
            let number = end.begun[[WRITE, ADD][at]];
            let read = Incoming::read(word(pool, 0)?, remote(end, at));
            let batch = channel.batch(vec![read.into()]);
            (Kind::Read(at), number, Future::Batch(batch))
        }
        _ => return receive(pool, end),
    };
    Some(Held {
        kind,
        number,
        future,
        task: Task::new(),
    })
}

fn receive(pool: &BufferPool, end: &mut End) -> Option<Held> {
    let received = end.channel.as_ref()?.receive(pool.take()?);
    end.begun[RECEIVE] += 1;
    Some(Held {
        kind: Kind::Receive,
        number: end.begun[RECEIVE] - 1,
        future: Future::One(received),
        task: Task::new(),
    })
}

/// Polls an operation that was woken.
fn poll_one(world: &mut World, pair: &mut Pair, which: usize) {
    if !pair.ends[which].held.is_empty() {
        let at = world.random.below(pair.ends[which].held.len());
        poll(world, pair, which, at);
    }
}

/// Returns whether it has ended.
fn poll(world: &World, pair: &mut Pair, which: usize, at: usize) -> bool {
    let held = &mut pair.ends[which].held[at];
    let Poll::Ready(ended) = held.task.poll_if_due(&mut held.future) else {
        return false;
    };
    let held = pair.ends[which].held.swap_remove(at);
    check(world, pair, which, &held, ended);
    true
}

fn check(
    world: &World,
    pair: &mut Pair,
    which: usize,
    held: &Held,
    (result, buffers): (Result<(), TransportError>, Vec<OwnedBuffer>),
) {
    let (kind, number) = (held.kind, held.number);
    let is_rejected = matches!(&result, Err(error) if error.is_backpressure());
    let is_gentle = world.is_gentle && !pair.is_over;
    assert!(
        result.is_ok() || is_rejected || !is_gentle,
        "{kind:?}: {result:?}"
    );
    let is_back = !buffers.is_empty() && buffers.iter().all(|buffer| buffer.capacity() > 0);
    assert!(
        is_back || world.leaks && result.is_err(),
        "a buffer is lost: {result:?}"
    );
    if !is_back {
        pair.ends[which].has_lost |= kind == Kind::Receive;
        return;
    }
    let posted = pair.ends[1 - which].begun[SEND];
    let end = &mut pair.ends[which];
    let known = |buffer: &OwnedBuffer| {
        let (number, rest) = buffer.split_first_chunk::<NUMBER>().expect("it is whole");
        let number = usize::from_le_bytes(*number);
        // It may be shorter than the block.
        let length = number % (BLOCK - NUMBER);
        assert_eq!(rest[..length], bytes(number, length), "it has other bytes");
        number
    };
    match kind {
        Kind::Send => {
            let sent = number..number + buffers.len();
            assert!(sent.clone().eq(buffers.iter().map(known)), "other messages");
            if result.is_ok() {
                end.done[SEND].extend(sent);
            }
        }
        Kind::Receive if result.is_ok() => {
            let found = known(&buffers[0]);
            assert!(found < posted, "nobody has sent it");
            end.received.push((number, found));
        }
        Kind::Receive => end.has_lost |= !is_rejected,
        Kind::Write if result.is_ok() => end.done[WRITE].push(number),
        Kind::Add | Kind::Read(_) if result.is_ok() => {
            let found = buffers[0][..WORD].try_into().expect("a word");
            let found = u64::from_ne_bytes(found);
            let at = match kind {
                Kind::Read(at) => at,
                _ => {
                    end.done[ADD].push(number);
                    1
                }
            };
            let number = if kind == Kind::Add {
                number - 1
            } else {
                number
            };
            assert!(
                found <= end.begun[[WRITE, ADD][at]] as u64,
                "nobody has written it"
            );
            end.read[at].push((number, found));
        }
        Kind::Write | Kind::Add | Kind::Read(_) => {}
    }
}

/// Drops or leaks an operation; returns how many blocks may be leaked.
fn abandon(world: &mut World, end: &mut End) -> usize {
    if end.held.is_empty() {
        return 0;
    }
    let held = end.held.swap_remove(world.random.below(end.held.len()));
    end.dropped += usize::from(held.kind == Kind::Receive);
    end.has_dropped_a_send |= held.kind == Kind::Send;
    if world.random.one_in(8) {
        mem::forget(held.future);
        // In a batch.
        return 2;
    }
    0
}

/// The program ends a channel before its time.
fn end_early(world: &mut World, side: &Side, pair: &mut Pair, which: usize) {
    pair.is_over = true;
    match world.random.below(4) {
        0 => drop(pair.ends[which].channel.take()),
        1 => (pair.ends[which].channel.iter()).for_each(AsyncChannel::abort),
        2 => {
            if let Some(channel) = pair.ends[which].channel.take() {
                channel.abort();
                let destroyed = world.fabric.block_on(LONG, channel.close());
                let destroyed = destroyed.expect("it does not wait for the peer");
                let is_stuck = destroyed.is_err_and(|error| error.is_stuck());
                assert!(!is_stuck || world.leaks, "{destroyed:?}");
            }
        }
        _ if !world.is_gentle => side.group.abort_all(DownReason::Closed),
        _ => {}
    }
}

/// All operations end, each task when it is woken, and what the two ends have seen goes together.
fn finish(world: &mut World, sides: &[Side; 2], mut pair: Pair) {
    let is_gentle = world.is_gentle && !pair.is_over;
    let start = world.fabric.now();
    let wait = if is_gentle {
        LONG
    } else {
        Duration::from_millis(700)
    };
    while world.fabric.now() - start < wait {
        let mut is_open = false;
        for (which, side) in sides.iter().enumerate() {
            let end = &mut pair.ends[which];
            if is_gentle && end.receives() < 4 {
                let held = receive(&side.pool, end);
                end.held.extend(held);
            }
            let mut at = 0;
            while at < pair.ends[which].held.len() {
                at += usize::from(!poll(world, &mut pair, which, at));
            }
            let end = &pair.ends[which];
            is_open |= end.receives() < end.held.len();
        }
        if !is_open {
            break;
        }
        world.fabric.step();
    }
    for end in &pair.ends {
        let left = end.held.iter().find(|held| held.kind != Kind::Receive);
        let left = left.map(|held| held.kind);
        assert!(left.is_none() || !is_gentle, "{left:?} never ends");
    }
    pair.is_over = true;
    for end in &mut pair.ends {
        end.dropped += end.receives();
        let Some(channel) = end.channel.take() else {
            continue;
        };
        if is_gentle && !end.has_dropped_a_send {
            let closed = world.fabric.block_on(LONG, channel.close());
            assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
        }
        drop(channel);
    }
    // The queue pairs are destroyed, as there is no thread that could still do so.
    for which in 0..2 {
        while let Some(held) = pair.ends[which].held.first() {
            assert!(held.task.is_due(), "it is not woken");
            let _yields = poll(world, &mut pair, which, 0);
        }
    }
    for which in 0..2 {
        one_sided(&pair.ends[which]);
        two_sided(world, &mut pair, which);
    }
}

/// Words have the values that the operations gave them, in their order.
fn one_sided(end: &End) {
    let mut memory = [0; WORDS * WORD];
    end.memory.read(0, &mut memory).expect("within the memory");
    for (at, kind) in [WRITE, ADD].into_iter().enumerate() {
        let found = memory[at * WORD..][..WORD].try_into().expect("a word");
        let found = u64::from_ne_bytes(found);
        let mut reads = end.read[at].clone();
        reads.push((end.begun[kind], found));
        for (before, value) in reads {
            let mut done = end.done[kind].iter().filter(|number| **number <= before);
            let least = match kind {
                WRITE => done.max().copied().unwrap_or(0),
                _ => done.by_ref().count(),
            };
            assert!(value >= least as u64, "{value}: the {least}th is lost");
        }
        assert!(found <= end.begun[kind] as u64, "nobody has written it");
    }
}

/// Each message came once, in order, and those that were acknowledged were not lost.
fn two_sided(world: &World, pair: &mut Pair, from: usize) {
    let [a, b] = &mut pair.ends;
    let (from, to, at) = if from == 0 { (a, b, 1) } else { (b, a, 0) };
    to.received.sort_unstable();
    let numbers: Vec<_> = to.received.iter().map(|(_, number)| *number).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    if to.has_lost || world.is_hurt[at] {
        return;
    }
    let is_lost = |number: &&usize| numbers.binary_search(number).is_err();
    let lost = from.done[SEND].iter().filter(is_lost).count();
    assert!(
        lost <= to.dropped,
        "{lost} were acknowledged, and not received"
    );
}
