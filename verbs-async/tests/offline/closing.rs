//! Channels that are closed in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_libibverbs::{assert_all_is_well, report, with};
use verbs_async::{DeviceEvents, Error};
use verbs_channel::verbs_core::verbs_sys::{
    IBV_EVENT_QP_FATAL, IBV_WC_WR_FLUSH_ERR, ibv_async_event, ibv_qp, ibv_wc,
};
use verbs_channel::{DownReason, TransportError};

use crate::bench::{Bench, Hand, Task, announce, bounded, done, now};
use crate::groups::{Peer, posted};

#[test]
fn close_waits_for_sends_and_aborts_receives() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let mut receive = Task::new(peer.channel.receive(peer.buffer()));
        let mut sends = [(); 3].map(|()| peer.send());
        let ids = posted();
        let mut close = Task::new(peer.channel.close()).waits();
        done(ids[1..].iter().copied());
        announce(&bench);
        // The third was in the backlog until now.
        assert_eq!((posted().len(), close.was_woken()), (4, 0));
        assert!(close.poll().is_pending());
        done(posted().last().copied());
        announce(&bench);
        assert_eq!(close.was_woken(), 1);
        // Until the receive has ended, too.
        assert!(close.poll().is_pending());
        assert!(receive.poll().is_pending());
        let flushed = ibv_wc {
            wr_id: ids[0],
            status: IBV_WC_WR_FLUSH_ERR,
            ..Default::default()
        };
        with(|library| library.done.push_back(flushed));
        announce(&bench);
        assert_eq!((close.was_woken(), receive.was_woken()), (2, 1));
        close.ends().unwrap();
        assert!(sends.iter_mut().all(|send| send.ends().0.is_ok()));
        let (aborted, buffer) = receive.ends();
        assert!(aborted.is_err());
        assert_eq!(buffer.capacity(), 64);
    }
    assert_all_is_well();
}

#[test]
fn close_does_not_wait_for_receives() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let receive = Task::new(peer.channel.receive(peer.buffer())).waits();
    // Dropping it, as a timeout does, closes the channel at once.
    drop(Task::new(peer.channel.close()).waits());
    assert_eq!(receive.was_woken(), 1);
    let mut receive = receive;
    assert!(receive.ends().0.is_err());
}

#[test]
fn destroying_ends_everything_at_once() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let receive = Task::new(peer.channel.receive(peer.buffer())).waits();
        let mut sends = [(); 3].map(|()| peer.send());
        peer.channel.destroy().unwrap();
        assert!(peer.channel.endpoint().is_none());
        assert_eq!(receive.was_woken(), 1);
        for ended in sends.iter_mut().map(Task::ends).chain([{ receive }.ends()]) {
            assert!(ended.0.is_err());
            assert_eq!(ended.1.capacity(), 64);
        }
        // Again: it is gone.
        peer.channel.destroy().unwrap();
        now(peer.channel.close()).unwrap();
    }
    assert_all_is_well();
}

#[test]
fn stuck_queue_pair_is_the_answer_of_each_way_to_close() {
    let refuse = || with(|library| library.refuse.push(("ibv_destroy_qp", libc::EIO)));
    let is_stuck = |closed| matches!(closed, Err(Error::Transport(TransportError::Stuck)));
    let bench = Bench::new();
    let (first, second) = (Peer::new(&bench), Peer::new(&bench));
    refuse();
    assert!(is_stuck(first.channel.destroy()));
    assert!(is_stuck(first.channel.destroy()));
    refuse();
    assert!(is_stuck(now(second.channel.close())));
}

#[test]
fn all_tasks_that_close_a_channel_are_woken() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut send = peer.send().waits();
    let ids = posted();
    let mut closes = [(); 3].map(|()| Task::new(peer.channel.close()).waits());
    done(ids);
    announce(&bench);
    for close in &mut closes {
        assert_eq!(close.was_woken(), 1);
        // The first takes the channel down, which is the reason that the others return.
        let _closed = close.ends();
    }
    assert!(send.ends().0.is_ok());
}

/// Whenever a queue pair is destroyed, this sends on the channel, and awaits the send.
fn sends_while_others_are_destroyed(peer: &Arc<Peer>) -> Arc<AtomicUsize> {
    let destroyed = Arc::<AtomicUsize>::default();
    let (peer, count) = (Arc::downgrade(peer), Arc::clone(&destroyed));
    let before = move |verb: &str, _state| {
        // Not while its own queue pair is destroyed.
        let Some(peer) = peer.upgrade().filter(|_| verb == "ibv_destroy_qp") else {
            return;
        };
        count.fetch_add(1, Ordering::Relaxed);
        let before = posted().len();
        let mut send = peer.send();
        done(posted().get(before).copied());
        // It is aborted if all channels are: only that it has an outcome is checked.
        drop(send.ends());
    };
    with(|library| library.before = Some(Arc::new(before)));
    destroyed
}

#[test]
fn destroying_a_queue_pair_does_not_block_its_group() {
    bounded(|| {
        let bench = Bench::new();
        let hand = Hand::default();
        let events = DeviceEvents::new(&bench.context, hand.clone()).unwrap();
        let peer = Arc::new(Peer::new(&bench));
        let destroyed = sends_while_others_are_destroyed(&peer);
        let seen = || destroyed.load(Ordering::Relaxed);
        // Dropped with operations in flight.
        let other = peer.join();
        let mut receive = Task::new(other.receive(peer.buffer())).waits();
        drop(other);
        assert_eq!((seen(), receive.was_woken()), (1, 1));
        assert!(receive.ends().0.is_err());
        // Closed.
        now(peer.join().close()).unwrap();
        assert_eq!(seen(), 2);
        // Broken.
        events.watch(peer.group());
        let other = peer.join();
        let mut qp = ibv_qp {
            qp_num: other.endpoint().unwrap().qp_num(),
            ..Default::default()
        };
        let mut event = ibv_async_event::default();
        event.element.qp = &raw mut qp;
        report(&bench.context, IBV_EVENT_QP_FATAL, event);
        hand.readable();
        assert_eq!((seen(), other.is_down()), (3, true));
        // All of them.
        peer.group().destroy_all(DownReason::NotifierFailed);
        assert_eq!((seen(), peer.channel.is_down()), (4, true));
    });
}
