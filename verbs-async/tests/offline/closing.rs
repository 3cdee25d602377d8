//! Channels that are closed in order.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, Outgoing};
use verbs_channel::error::CloseError;
use verbs_channel::verbs_core::verbs_sys::{IBV_WC_RETRY_EXC_ERR, ibv_wc};

use crate::bench::{
    Bench, Task, announce, at_once, bounded, done, held_destroys, join, later, now,
};
use crate::groups::{Peer, posted};

#[test]
fn close_waits_for_sends_and_aborts_receives() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let mut receive = Task::new(peer.channel.receive(peer.buffer())).waits();
        let mut sends = [(); 3].map(|()| peer.send());
        let ids = posted();
        let mut closes = [(); 2].map(|()| Task::new(peer.channel.close()).waits());
        done(ids[1..].iter().copied());
        announce(&bench);
        // The third was in the backlog until now.
        assert_eq!((posted().len(), closes[0].was_woken()), (4, 0));
        assert!(closes[0].poll().is_pending());
        done(posted().last().copied());
        announce(&bench);
        for close in &mut closes {
            assert_eq!(close.was_woken(), 1);
            // The first takes the channel down, which is the reason that the other returns.
            let _closed = close.ends_when_woken();
        }
        assert!(sends.iter_mut().all(|send| send.ends().0.is_ok()));
        let (aborted, buffer) = receive.ends();
        assert!(aborted.is_err());
        assert_eq!(buffer.capacity(), 64);
        // Again: it is gone.
        now(at_once(&peer.channel)).unwrap();
        now(peer.channel.close()).unwrap();
    }
    assert_all_is_well();
}

#[test]
fn close_waits_for_no_flush() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut receive = Task::new(peer.channel.receive(peer.buffer())).waits();
    let mut sends = [(); 3].map(|()| peer.send().waits());
    let ids = posted();
    let mut close = Task::new(peer.channel.close()).waits();
    // The first send fails, and the device never flushes the others.
    let failed = ibv_wc {
        wr_id: ids[1],
        status: IBV_WC_RETRY_EXC_ERR,
        ..Default::default()
    };
    with(|library| library.done.push_back(failed));
    announce(&bench);
    assert!(matches!(close.ends_when_woken(), Err(CloseError::Down(_))));
    let mut ended = sends.iter_mut().chain([&mut receive]).map(Task::ends);
    assert!(ended.all(|(result, buffer)| result.is_err() && buffer.capacity() == 64));
    // One that was down before, too.
    let peer = Peer::new(&bench);
    let mut send = peer.send().waits();
    peer.channel.abort();
    later(peer.channel.close()).unwrap();
    assert!(send.ends().0.is_err());
}

#[test]
fn close_ends_when_what_waited_for_shared_room_is_rejected() {
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    // One send and one receive are a channel's own, and they share room for two more.
    let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(1);
    let group = AsyncGroup::new(builder.in_flight(6), 2, &bench.events).unwrap();
    let [left, right] = [(); 2].map(|()| join(&group));
    let pool = BufferPool::new(&pd, 8, 8).unwrap();
    let buffer = || pool.take().unwrap();
    let mut sends = [(); 3].map(|()| Task::new(left.send(buffer())).waits());
    let ids = posted();
    let requests = [(); 2].map(|()| Outgoing::send(buffer()).into());
    let mut waiting = Task::new(right.batch(requests.into())).waits();
    let close = Task::new(right.close()).waits();
    // There is room, but the driver rejects the post: nothing of the channel is left.
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    done(ids);
    announce(&bench);
    assert_eq!((waiting.was_woken(), close.was_woken()), (1, 1));
    assert!(waiting.ends().0.is_err());
    assert!(sends.iter_mut().all(|send| send.ends().0.is_ok()));
}

#[test]
fn stuck_queue_pair_is_the_answer_of_each_way_to_close() {
    let refuse = || with(|library| library.refuse.push(("ibv_destroy_qp", libc::EIO)));
    let is_stuck = |closed| matches!(closed, Err(CloseError::Stuck));
    let bench = Bench::new();
    let [first, second, third] = [(); 3].map(|()| Peer::new(&bench));
    refuse();
    assert!(is_stuck(later(at_once(&first.channel))));
    assert!(is_stuck(now(at_once(&first.channel))));
    refuse();
    assert!(is_stuck(later(second.channel.close())));
    refuse();
    drop(third.join());
    for _ in 0..2 {
        assert!(is_stuck(later(third.group().closed())));
    }
}

/// A task that is polled with ever new wakers, as one of a `FuturesUnordered` that moves: only the last is
/// kept, and none of a future that was dropped.
#[test]
fn closing_keeps_one_waker() {
    bounded(|| {
        {
            let bench = Bench::new();
            let peer = Peer::new(&bench);
            let mut send = peer.send().waits();
            let wakers = [(); 100].map(|()| Arc::new(Kept));
            let kept = || {
                let is_kept = |waker: &&Arc<Kept>| Arc::strong_count(waker) > 1;
                wakers.iter().filter(is_kept).count()
            };
            let mut close = Box::pin(peer.channel.close());
            let mut poll_all = || {
                for waker in &wakers {
                    let waker = Waker::from(Arc::clone(waker));
                    let polled = close.as_mut().poll(&mut Context::from_waker(&waker));
                    assert!(polled.is_pending());
                }
            };
            // Until the send has ended, and until the queue pair has been destroyed.
            poll_all();
            assert_eq!(kept(), 1);
            let destroys = held_destroys();
            done(posted());
            announce(&bench);
            assert_eq!(kept(), 0, "it was woken");
            poll_all();
            destroys.begins("ibv_destroy_qp");
            assert_eq!(kept(), 1);
            drop(close);
            assert_eq!(kept(), 0);
            destroys.returns();
            assert!(send.ends().0.is_ok());
            later(peer.group().closed()).unwrap();
        }
        assert_all_is_well();
    });
}

#[test]
fn close_that_is_cancelled_ends_its_channel_and_leaves_its_place_to_another() {
    {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let group = AsyncGroup::new(Channel::builder(&pd), 1, &bench.events).unwrap();
        let channel = join(&group);
        let pool = BufferPool::new(&pd, 8, 1).unwrap();
        let mut send = Task::new(channel.send(pool.take().unwrap())).waits();
        let close = Task::new(channel.close()).waits();
        assert!(!channel.is_down());
        drop(close);
        assert_eq!(channel.down_reason(), Some(DownReason::Closed));
        later(group.closed()).unwrap();
        assert!(send.ends().0.is_err());
        drop(channel);
        drop(join(&group));
    }
    assert_all_is_well();
}

/// A waker that counts its owners.
struct Kept;

impl Wake for Kept {
    fn wake(self: Arc<Self>) {}
}
