//! Chains that were built once, awaited: in flight, in the backlog, cancelled, failed, begun again.

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::{BufferPool, DownReason, Outgoing, RejectReason, TransportError};
use verbs_async::{AsyncChannel, Operation};
use verbs_core::verbs_sys::{IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status};

use crate::bench::{Bench, Task, announce, done, later};
use crate::groups::{Peer, posted};

/// Two sends, which fill the queue.
fn pair_of(pool: &BufferPool) -> OwnedChain {
    let send = || Outgoing::send(pool.take().unwrap()).into();
    OwnedChain::new(vec![send(), send()]).unwrap()
}

fn pool(channel: &AsyncChannel) -> BufferPool {
    BufferPool::new(channel.pd(), 64, 8).unwrap()
}

fn begin(peer: &Peer, chain: OwnedChain) -> Task<Operation<OwnedChain>> {
    Task::new(peer.channel.chain(chain))
}

/// The device completes the last request that was posted.
fn last_is_done(bench: &Bench) {
    done(posted().last().copied());
    announce(bench);
}

fn ends(wr_id: u64, status: ibv_wc_status) {
    let failed = ibv_wc {
        wr_id,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(failed));
}

#[test]
fn chain_is_awaited_and_begun_again() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let pool = pool(&peer.channel);
        let mut chain = pair_of(&pool);
        for round in 1..5 {
            let mut task = begin(&peer, chain).waits();
            assert_eq!(with(|library| library.posted.len()), round, "doorbells");
            last_is_done(&bench);
            assert_eq!(task.was_woken(), 1);
            let (result, back) = task.ends();
            result.unwrap();
            assert_eq!((back.len(), back.done()), (2, 2));
            chain = back;
        }
    }
    assert_all_is_well();
}

#[test]
fn cancelled_chain_returns_its_buffers_when_the_device_is_done_with_them() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = pool(&peer.channel);
    drop(begin(&peer, pair_of(&pool)).waits());
    assert_eq!(pool.available(), 6, "the device has them");
    last_is_done(&bench);
    assert_eq!(pool.available(), 8);
    // Its timeout passed: the task polls the same operation later.
    let mut later = begin(&peer, pair_of(&pool)).waits();
    last_is_done(&bench);
    let (result, chain) = later.ends();
    assert!(result.is_ok() && chain.done() == 2);
}

#[test]
fn chain_waits_in_the_backlog_for_room_for_all_of_it() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = pool(&peer.channel);
    let mut one = peer.send().waits();
    let mut waits = begin(&peer, pair_of(&pool)).waits();
    let cancelled = begin(&peer, pair_of(&pool)).waits();
    assert_eq!(posted().len(), 1);
    // In the backlog it is not posted.
    drop(cancelled);
    assert_eq!(pool.available(), 6);
    done(posted());
    announce(&bench);
    assert_eq!((one.was_woken(), posted().len()), (1, 3));
    one.ends().0.unwrap();
    last_is_done(&bench);
    let (result, chain) = waits.ends();
    result.unwrap();
    assert_eq!((chain.done(), posted().len()), (2, 3));
}

#[test]
fn failed_chain_is_returned_and_names_the_request() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = pool(&peer.channel);
    let mut task = begin(&peer, pair_of(&pool)).waits();
    let [first, last] = posted()[..] else {
        panic!("two sends");
    };
    ends(first, IBV_WC_REM_ACCESS_ERR);
    announce(&bench);
    assert!(task.poll().is_pending(), "the last is in flight");
    ends(last, IBV_WC_WR_FLUSH_ERR);
    announce(&bench);
    let (result, chain) = task.ends();
    let is_work = matches!(result, Err(TransportError::Work { .. }));
    assert!(is_work, "{result:?}");
    assert_eq!((chain.len(), chain.done()), (2, 0));
    // The channel is down.
    let (result, chain) = begin(&peer, chain).ends();
    assert!(matches!(
        result,
        Err(TransportError::Rejected(RejectReason::Down(_)))
    ));
    assert_eq!(chain.len(), 2);
}

#[test]
fn chain_of_a_closed_channel_is_aborted_with_its_buffers() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = pool(&peer.channel);
    let mut flies = begin(&peer, pair_of(&pool)).waits();
    let mut waits = begin(&peer, pair_of(&pool)).waits();
    peer.group().abort_all(DownReason::Closed);
    later(peer.group().closed()).unwrap();
    let (result, chain) = flies.ends();
    let aborted = TransportError::Aborted(DownReason::Closed);
    assert!(matches!(result, Err(why) if why == aborted));
    assert_eq!((chain.len(), chain.done()), (2, 0));
    let (result, chain) = waits.ends();
    assert!(matches!(result, Err(TransportError::Rejected(_))));
    assert_eq!(chain.len(), 2);
    let (result, empty) = begin(&peer, OwnedChain::default()).ends();
    assert!(result.is_err() && empty.is_empty());
}
