//! Waiting allocates nothing.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fake_libibverbs::with;
use futures_util::FutureExt as _;
use verbs_async::verbs_channel::{Channel, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, Operation};
use verbs_harness::allocations::allocations;

use crate::bench::{Bench, announce, done, join};
use crate::groups::Peer;

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

#[test]
fn waiting_in_slots_that_were_never_used_allocates_nothing() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let channels = [(); 3].map(|()| peer.join());
    let start = |channel: &AsyncChannel| [(); 2].map(|()| Box::pin(channel.send(peer.buffer())));
    let mut sends: Vec<Pin<Box<Operation>>> = channels.iter().flat_map(start).collect();
    with(|library| {
        library.calls.reserve(100);
        library.rooms.reserve(100);
        library.armed.reserve(100);
    });
    let mut cx = Context::from_waker(Waker::noop());
    let before = allocations();
    for send in &mut sends {
        assert!(send.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(allocations() - before, 0);
}
