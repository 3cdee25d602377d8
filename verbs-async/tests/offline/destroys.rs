//! Queue pairs that helper threads destroy: no task's thread is blocked by that, and no buffer is
//! released before.

use std::future::{Future, ready};
use std::thread;
use std::time::Instant;

use fake_libibverbs::{assert_all_is_well, report, with};
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, OwnedRequest};
use verbs_async::{AsyncChannel, AsyncGroup, AsyncTransfer};
use verbs_channel::verbs_core::verbs_sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_FATAL, ibv_async_event, ibv_event_type, ibv_qp,
};

use crate::bench::{
    Bench, Held, Task, announce, at_once, bounded, done, held_destroys, join, later,
};
use crate::groups::{Peer, posted};

const DESTROY: &str = "ibv_destroy_qp";

type TakesDown = fn(&Bench, &Peer, &mut Option<AsyncChannel>);

/// Ways to take one of the two channels of a group down, or both.
const WAYS: [(&str, TakesDown); 11] = [
    ("a channel is dropped", |_, _, channel| drop(channel.take())),
    ("closing is abandoned", |_, _, channel| {
        drop(Task::new(channel.as_ref().unwrap().close()).waits());
    }),
    ("waiting for the end is abandoned", |_, _, channel| {
        drop(Task::new(at_once(channel.as_ref().unwrap())).waits());
    }),
    ("all are aborted", |_, peer, _| {
        peer.group().abort_all(DownReason::Closed);
    }),
    ("an event of the queue pair", |bench, _, channel| {
        fatal(bench, channel, IBV_EVENT_QP_FATAL);
    }),
    ("an event of the device", |bench, _, channel| {
        fatal(bench, channel, IBV_EVENT_DEVICE_FATAL);
    }),
    ("the notifier fails", |bench, peer, _| {
        bench.hand.over();
        let reason = Some(DownReason::NotifierFailed);
        assert_eq!(peer.channel.down_reason(), reason);
    }),
    ("the queue cannot be polled", |bench, peer, _| {
        with(|library| library.poll_answer = Some(-2));
        announce(bench);
        let reason = peer.channel.down_reason();
        assert!(matches!(reason, Some(DownReason::Poll(_))));
    }),
    ("the queue cannot be armed", |bench, peer, _| {
        with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
        announce(bench);
        let reason = Some(DownReason::NotifierFailed);
        assert_eq!(peer.channel.down_reason(), reason);
    }),
    ("the queue pair cannot be flushed", |_, peer, channel| {
        let transfer = begun(peer, channel);
        with(|library| library.refuse.push(("ibv_modify_qp", libc::EIO)));
        drop(transfer);
        let is_left = with(|library| library.refuse.len());
        assert_eq!(is_left, 0);
    }),
    ("the queue pair is not flushed", |_, peer, channel| {
        let mut transfer = begun(peer, channel);
        let ends = async { transfer.finish_by(Instant::now(), |_| ready(())).await };
        drop(Task::new(ends).waits());
    }),
];

/// A transfer with a receive in flight.
fn begun(peer: &Peer, channel: &Option<AsyncChannel>) -> AsyncTransfer {
    let channel = channel.as_ref().unwrap();
    let mut transfer = channel.transfer(1);
    transfer.add(channel.id(), OwnedRequest::receive(peer.buffer()));
    drop(Task::new(transfer.finish()).waits());
    transfer
}

/// Reports an event of this channel's queue pair, or of the device.
fn fatal(bench: &Bench, channel: &Option<AsyncChannel>, event_type: ibv_event_type) {
    let mut qp = ibv_qp {
        qp_num: channel.as_ref().unwrap().endpoint().unwrap().qp_num(),
        ..Default::default()
    };
    let mut event = ibv_async_event::default();
    event.element.qp = &raw mut qp;
    report(&bench.context, event_type, event);
    bench.device.readable();
}

/// Buffers in flight are released when the queue pair has been destroyed, and not before.
#[test]
fn queue_pairs_are_destroyed_on_helper_threads_before_their_buffers_are_released() {
    for (way, takes_down) in WAYS {
        println!("{way}");
        alone(|| {
            let bench = Bench::new();
            let peer = Peer::new(&bench);
            let channel = peer.join();
            let pool = BufferPool::new(channel.pd(), 64, 4).unwrap();
            let block = || pool.take().unwrap();
            // The last is in the backlog.
            let mut sends = [(); 3].map(|()| Task::new(channel.send(block())).waits());
            let mut receive = Task::new(channel.receive(block())).waits();
            let destroys = held_destroys();
            let mut channel = Some(channel);
            takes_down(&bench, &peer, &mut channel);
            destroys.begins(DESTROY);
            assert!(sends[0].poll().is_pending() && receive.poll().is_pending());
            assert!(pool.available() <= 1, "the device may still access three");
            // The other is not blocked by that.
            if !peer.channel.is_down() {
                let mut goes_on = peer.send();
                done(posted().last().copied());
                assert!(goes_on.ends().0.is_ok());
            }
            let mut over = Task::new(peer.group().closed()).waits();
            (0..2).for_each(|_| destroys.returns());
            for task in sends.iter_mut().chain([&mut receive]) {
                let (result, buffer) = task.ends_when_woken();
                assert!(result.is_err());
                assert_eq!(buffer.capacity(), 64);
            }
            over.ends_when_woken().unwrap();
            drop((sends, receive));
            assert_eq!(pool.available(), 4);
        });
    }
}

/// Runs a test that leaves nothing.
fn alone(test: impl FnOnce()) {
    bounded(|| {
        test();
        assert_all_is_well();
    });
}

/// A group for one channel, whose queue pair is being destroyed.
fn full_group(bench: &Bench) -> (AsyncGroup, Held) {
    let pd = bench.context.alloc_pd().unwrap();
    let group = AsyncGroup::new(Channel::builder(&pd), 1, &bench.events).unwrap();
    let first = join(&group);
    let destroys = held_destroys();
    drop(first);
    destroys.begins(DESTROY);
    (group, destroys)
}

/// A handshake that has no place yet in a full group.
fn is_connected_and_waits<F: Future>(handshake: F) -> Task<F> {
    let modified = || with(|library| library.modified.len());
    let before = modified();
    let mut connects = Task::new(handshake).waits();
    // To RTR, and to RTS. Then it joins.
    while modified() < before + 2 {
        thread::yield_now();
    }
    for _ in 0..100 {
        assert!(connects.poll().is_pending(), "the group is full");
        thread::yield_now();
    }
    connects
}

#[test]
fn handshake_waits_for_the_place_of_a_channel_that_is_being_destroyed() {
    for is_dropped in [true, false] {
        alone(|| {
            let bench = Bench::new();
            let (group, destroys) = full_group(&bench);
            let [full, next] = [(); 2].map(|()| group.prepare().unwrap());
            let endpoint = next.endpoint();
            let full = full.handshake(&endpoint).unwrap();
            // This does not wait.
            let rejected = group.join(full).unwrap_err();
            let mut connects = is_connected_and_waits(group.handshake(next, &endpoint));
            if is_dropped {
                drop(connects);
                destroys.begins(DESTROY);
                drop(destroys);
                later(group.closed()).unwrap();
                // The rejected channel can join later.
                let channel = group.join(rejected.into_given()).unwrap();
                assert!(!channel.is_down());
            } else {
                destroys.returns();
                let next = connects.ends_when_woken().unwrap();
                drop(destroys);
                drop((next, rejected));
            }
            later(group.closed()).unwrap();
        });
    }
}
