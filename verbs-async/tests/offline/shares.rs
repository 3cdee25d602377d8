//! Channels that share what can be in flight: waiting for it allocates nothing.

use std::task::{Context, Poll, Waker};

use fake_libibverbs::{posted, with};
use futures_util::FutureExt as _;
use verbs_async::verbs_channel::{BufferPool, Channel, Outgoing, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, Operation};
use verbs_harness::allocations::allocations;

use crate::bench::{Bench, Task, announce, done, join};

/// More than a node of the standard library's trees holds.
const CHANNELS: u32 = 24;

/// Sends that each channel starts at once; one is its guaranteed share.
const SENDS: usize = 3;

/// Miri takes minutes for more.
const ROUNDS: usize = if cfg!(miri) { 2 } else { 10 };
const WARM_UP: usize = if cfg!(miri) { 1 } else { 3 };

/// Objects that a round uses, and keeps for the next.
#[derive(Default)]
struct Kept {
    buffers: Vec<OwnedBuffer>,
    sends: Vec<Operation>,
    posted: Vec<u64>,
}

/// Each channel sends, and all are polled until they are done. Returns how many were not posted at first.
fn round(bench: &Bench, channels: &[AsyncChannel], kept: &mut Kept) -> usize {
    let Kept {
        buffers,
        sends,
        posted,
    } = kept;
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..SENDS {
        for channel in channels {
            sends.push(channel.send(buffers.pop().unwrap()));
        }
    }
    let mut waited = None;
    while !sends.is_empty() {
        sends.retain_mut(|send| match send.poll_unpin(&mut cx) {
            Poll::Ready((result, buffer)) => {
                result.unwrap();
                buffers.push(buffer);
                false
            }
            Poll::Pending => true,
        });
        with(|library| {
            let requests = library.posted.iter().flatten();
            posted.extend(requests.map(|request| request.wr_id));
            library.posted.clear();
            library.rooms.clear();
            library.armed.clear();
            library.calls.clear();
        });
        waited.get_or_insert(sends.len() - posted.len());
        done(posted.drain(..));
        announce(bench);
    }
    waited.unwrap()
}

#[test]
fn channels_that_wait_for_room_they_share_allocate_no_more_than_those_that_do_not() {
    let allocated = |in_flight: Option<u32>| {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(4).max_recv_wr(1);
        let group = AsyncGroup::new(builder.in_flight(in_flight), CHANNELS, &bench.events).unwrap();
        let channels: Vec<_> = (0..CHANNELS).map(|_| join(&group)).collect();
        let buffer = || pd.reg_mr(vec![0_u8; 64]).unwrap().into();
        let count = SENDS * channels.len();
        let mut kept = Kept {
            buffers: (0..count).map(|_| buffer()).collect(),
            sends: Vec::with_capacity(count),
            posted: Vec::with_capacity(count),
        };
        let mut rounds = |count: usize| {
            let before = allocations();
            let waited: usize = (0..count)
                .map(|_| round(&bench, &channels, &mut kept))
                .sum();
            (allocations() - before, waited)
        };
        rounds(WARM_UP);
        rounds(ROUNDS)
    };
    let (free, never) = allocated(None);
    let (short, often) = allocated(Some(3 * CHANNELS));
    assert_eq!(never, 0);
    assert!(often >= ROUNDS * CHANNELS as usize, "{often}");
    assert_eq!(free, short);
}

/// Two channels: one send and one receive are a channel's own, and they share room for two more.
fn two(bench: &Bench) -> (AsyncGroup, [AsyncChannel; 2], BufferPool) {
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(1);
    let group = AsyncGroup::new(builder.in_flight(6), 2, &bench.events).unwrap();
    let channels = [(); 2].map(|()| join(&group));
    let pool = BufferPool::new(&pd, 8, 8).unwrap();
    (group, channels, pool)
}

#[test]
fn op_that_waits_for_shared_room_ends_when_a_post_takes_its_channel_down() {
    let bench = Bench::new();
    let (_group, [left, right], pool) = two(&bench);
    let buffer = || pool.take().unwrap();
    let _sends = [(); 3].map(|()| left.send(buffer()));
    // It needs more than its own, and its channel has nothing in flight.
    let requests = vec![
        Outgoing::send(buffer()).into(),
        Outgoing::send(buffer()).into(),
    ];
    let mut waiting = Task::new(right.batch(requests)).waits();
    // The driver does not report whether it was posted, so the queue pair is destroyed.
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, false)));
    let mut receive = Task::new(right.receive(buffer()));
    assert!(right.is_down());
    assert_eq!(waiting.was_woken(), 1);
    assert!(waiting.ends().0.is_err());
    assert!(receive.ends().0.is_err());
}

#[test]
fn close_ends_when_what_waited_for_shared_room_is_rejected() {
    let bench = Bench::new();
    let (_group, [left, right], pool) = two(&bench);
    let buffer = || pool.take().unwrap();
    let mut sends = [(); 3].map(|()| Task::new(left.send(buffer())).waits());
    let ids = posted();
    let requests = vec![
        Outgoing::send(buffer()).into(),
        Outgoing::send(buffer()).into(),
    ];
    let mut waiting = Task::new(right.batch(requests)).waits();
    let mut close = Task::new(right.close()).waits();
    // There is room, but the driver rejects the post: nothing of the channel is left.
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    done(ids);
    announce(&bench);
    assert_eq!((waiting.was_woken(), close.was_woken()), (1, 1));
    assert!(waiting.ends().0.is_err());
    sends
        .iter_mut()
        .for_each(|send| assert!(send.ends().0.is_ok()));
    let _ended = close.poll();
}
