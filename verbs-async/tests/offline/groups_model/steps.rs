//! Steps in the life of a group's channels.

use std::pin::Pin;

use futures_util::FutureExt as _;
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_oneof};
use verbs_async::AsyncChannel;
use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::{Outgoing, OwnedRequest, PoolBuffer, TransportError};

/// A step of a program. Numbers choose among the objects that exist.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Join,
    Leave(usize),
    Begin(usize, Kind),
    Poll(usize),
    Abandon(usize),
    /// The device completes this many.
    Complete(usize, usize),
    Fail(usize),
    Announce,
    /// The next post fails at this request, with or without a `bad_wr`.
    RefusePost(usize, bool),
    RefuseArming,
    RefusePoll,
    /// A completion of no operation.
    Stray(u64),
    /// The next queue pair cannot be destroyed.
    Stick,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Send,
    Receive,
    Batch(usize),
    Chain(usize),
}

/// The result of an operation, with the length of one message, and the addresses of its blocks.
pub(super) type Ended = (Result<Option<u32>, TransportError>, Vec<u64>);

impl Kind {
    /// How many requests it is.
    pub(super) const fn places(self) -> usize {
        match self {
            Self::Batch(count) | Self::Chain(count) => count,
            Self::Send | Self::Receive => 1,
        }
    }

    /// Begins an operation with these blocks.
    pub(super) fn begin(
        self,
        channel: &AsyncChannel,
        blocks: Vec<PoolBuffer>,
    ) -> Pin<Box<dyn Future<Output = Ended>>> {
        let mut blocks = blocks.into_iter();
        let one = match self {
            Self::Send => channel.send(blocks.next().unwrap()),
            Self::Receive => channel.receive(blocks.next().unwrap()),
            Self::Batch(_) => {
                let batch =
                    channel.batch(blocks.map(|block| Outgoing::send(block).into()).collect());
                return Box::pin(
                    batch.map(|(result, requests)| (result.map(|()| None), addrs(&requests))),
                );
            }
            Self::Chain(_) => {
                let sends = blocks.map(|block| Outgoing::send(block).into()).collect();
                let chain = channel.chain(OwnedChain::new(sends).unwrap());
                return Box::pin(chain.map(|(result, chain)| {
                    let is_whole = chain.done() == chain.len();
                    assert!(is_whole == result.is_ok() || chain.is_empty());
                    (result.map(|()| None), addrs(&chain.into_requests()))
                }));
            }
        };
        Box::pin(one.map(|(result, buffer)| {
            let addr = buffer.as_ptr().addr() as u64;
            let addrs = vec![addr; usize::from(buffer.capacity() > 0)];
            (result.map(|success| Some(success.byte_len())), addrs)
        }))
    }
}

fn addrs(requests: &[OwnedRequest]) -> Vec<u64> {
    let starts = requests.iter().map(|request| request.buffer().as_ptr());
    starts.map(|start| start.addr() as u64).collect()
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chosen = || any::<usize>();
    let kind = prop_oneof![
        3 => Just(Kind::Send),
        3 => Just(Kind::Receive),
        1 => (1..5_usize).prop_map(Kind::Batch),
        1 => (1..5_usize).prop_map(Kind::Chain),
    ];
    let step = prop_oneof![
        2 => Just(Step::Join),
        1 => chosen().prop_map(Step::Leave),
        16 => (chosen(), kind).prop_map(|(channel, kind)| Step::Begin(channel, kind)),
        16 => chosen().prop_map(Step::Poll),
        3 => chosen().prop_map(Step::Abandon),
        12 => (chosen(), 1..20_usize).prop_map(|(first, count)| Step::Complete(first, count)),
        1 => chosen().prop_map(Step::Fail),
        6 => Just(Step::Announce),
        1 => (0..2_usize, any::<bool>()).prop_map(|(at, named)| Step::RefusePost(at, named)),
        1 => Just(Step::RefuseArming),
        1 => Just(Step::RefusePoll),
        1 => any::<u64>().prop_map(Step::Stray),
    ];
    collection::vec(step, 0..if cfg!(miri) { 12 } else { 150 })
}

/// Three channels with room for five each have all of it, or a part.
pub(super) fn in_flight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(15), 6..15_u32]
}
