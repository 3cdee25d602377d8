//! Queue pairs that helper threads destroy: no task's thread is blocked by that, and no buffer is
//! released before.

use std::future::{Future, ready};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, report, with};
use verbs_async::verbs_channel::error::CloseError;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, OwnedRequest};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_channel::verbs_core::verbs_sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_FATAL, ibv_async_event, ibv_qp,
};

use crate::bench::{Bench, Task, announce, at_once, bounded, done, join, later, now};
use crate::groups::{Peer, posted};

/// Calls that destroy queue pairs: each waits until it is released.
pub(crate) struct Destroys {
    begun: Receiver<ThreadId>,
    release: Sender<()>,
}

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

impl Destroys {
    pub(crate) fn new() -> Self {
        let (begins, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let released = Mutex::new(released);
        let before = move |verb: &str, _state| {
            if verb == "ibv_destroy_qp" {
                begins.send(thread::current().id()).ok();
                released.lock().unwrap().recv_timeout(LONG).ok();
            }
        };
        with(|library| library.before = Some(Arc::new(before)));
        Self { begun, release }
    }

    /// Waits until a call has begun, which is on a helper thread.
    pub(crate) fn begins(&self) {
        let thread = self.begun.recv_timeout(LONG);
        let thread = thread.expect("nothing is destroyed");
        assert_ne!(thread, thread::current().id(), "the caller is blocked");
    }

    /// Lets one return.
    pub(crate) fn returns(&self) {
        self.release.send(()).unwrap();
    }
}

/// Takes one of the two channels of a group down in this way, or both, with operations in flight. Their buffers
/// are released when the queue pair has been destroyed, and not before.
fn check(takes_down: impl FnOnce(&Bench, &Peer, &mut Option<AsyncChannel>)) {
    bounded(|| {
        {
            let bench = Bench::new();
            let peer = Peer::new(&bench);
            let channel = peer.join();
            let pool = BufferPool::new(channel.pd(), 64, 2).unwrap();
            let block = || pool.take().unwrap();
            let mut send = Task::new(channel.send(block())).waits();
            let mut receive = Task::new(channel.receive(block())).waits();
            let destroys = Destroys::new();
            let mut channel = Some(channel);
            takes_down(&bench, &peer, &mut channel);
            destroys.begins();
            assert!(send.poll().is_pending() && receive.poll().is_pending());
            assert_eq!(pool.available(), 0, "the device may still access them");
            // The other is not blocked by that.
            if !peer.channel.is_down() {
                let mut goes_on = peer.send();
                done(posted().last().copied());
                assert!(goes_on.ends().0.is_ok());
            }
            let mut over = Task::new(peer.group().closed()).waits();
            (0..2).for_each(|_| destroys.returns());
            for (result, buffer) in [send.ends_when_woken(), receive.ends_when_woken()] {
                assert!(result.is_err());
                drop(buffer);
            }
            over.ends_when_woken().unwrap();
            assert_eq!(pool.available(), 2);
            with(|library| library.before = None);
        }
        assert_all_is_well();
    });
}

#[test]
fn dropped_channel_is_destroyed_on_a_helper_thread() {
    check(|_, _, channel| drop(channel.take()));
}

#[test]
fn closing_that_is_abandoned_destroys_on_a_helper_thread() {
    check(|_, _, channel| {
        drop(Task::new(channel.as_ref().unwrap().close()).waits());
    });
}

#[test]
fn destroying_that_is_abandoned_goes_on_on_a_helper_thread() {
    check(|_, _, channel| {
        drop(Task::new(at_once(channel.as_ref().unwrap())).waits());
    });
}

#[test]
fn group_is_destroyed_on_helper_threads() {
    check(|_, peer, _| peer.group().abort_all(DownReason::Closed));
}

#[test]
fn fatal_events_of_the_device_destroy_on_helper_threads() {
    for event_type in [IBV_EVENT_QP_FATAL, IBV_EVENT_DEVICE_FATAL] {
        check(|bench, _, channel| {
            let mut qp = ibv_qp {
                qp_num: channel.as_ref().unwrap().endpoint().unwrap().qp_num(),
                ..Default::default()
            };
            let mut event = ibv_async_event::default();
            event.element.qp = &raw mut qp;
            report(&bench.context, event_type, event);
            bench.device.readable();
        });
    }
}

#[test]
fn failures_of_the_queue_and_its_notifier_destroy_on_helper_threads() {
    check(|bench, _, _| bench.hand.over());
    check(|bench, _, _| {
        with(|library| library.poll_answer = Some(-2));
        announce(bench);
    });
    check(|bench, _, _| {
        with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
        announce(bench);
    });
    // A queue pair that cannot be flushed.
    check(|_, _, channel| {
        with(|library| library.refuse.push(("ibv_modify_qp", libc::EIO)));
        channel.as_ref().unwrap().abort();
    });
}

#[test]
fn transfer_that_is_not_flushed_destroys_on_a_helper_thread() {
    check(|_, peer, channel| {
        let channel = channel.as_ref().unwrap();
        let mut transfer = channel.transfer(1);
        transfer.add(channel.id(), OwnedRequest::receive(peer.buffer()));
        drop(Task::new(transfer.finish()).waits());
        let ends = async { transfer.finish_by(Instant::now(), |_| ready(())).await };
        drop(Task::new(ends).waits());
    });
}

#[test]
fn destroy_that_was_refused_is_the_error_of_waiting_for_all() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    with(|library| library.refuse.push(("ibv_destroy_qp", libc::EBUSY)));
    let other = peer.join();
    drop(other);
    for _ in 0..2 {
        let error = later(peer.group().closed()).unwrap_err();
        assert!(matches!(error, CloseError::Stuck), "{error}");
    }
}

#[test]
fn closing_is_over_when_the_queue_pair_has_been_destroyed() {
    bounded(|| {
        {
            let bench = Bench::new();
            let peer = Peer::new(&bench);
            let mut send = peer.send();
            let destroys = Destroys::new();
            let mut close = Task::new(peer.channel.close()).waits();
            done(posted());
            announce(&bench);
            assert!(close.poll().is_pending());
            destroys.begins();
            assert!(send.ends().0.is_ok());
            assert!(close.poll().is_pending());
            let mut other = Task::new(at_once(&peer.channel)).waits();
            destroys.returns();
            close.ends_when_woken().unwrap();
            other.ends_when_woken().unwrap();
            // Nothing is left to do.
            now(peer.channel.close()).unwrap();
            with(|library| library.before = None);
        }
        assert_all_is_well();
    });
}

/// A group for one channel, whose queue pair is being destroyed.
fn full_group(bench: &Bench) -> (AsyncGroup, Destroys) {
    let pd = bench.context.alloc_pd().unwrap();
    let group = AsyncGroup::new(Channel::builder(&pd), 1, &bench.events).unwrap();
    let first = join(&group);
    let destroys = Destroys::new();
    drop(first);
    destroys.begins();
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
fn handshake_that_is_dropped_while_it_waits_for_a_place_destroys_on_a_helper_thread() {
    bounded(|| {
        {
            let bench = Bench::new();
            let (group, destroys) = full_group(&bench);
            let next = group.prepare().unwrap();
            let endpoint = next.endpoint();
            let connects = is_connected_and_waits(group.handshake(next, &endpoint));
            drop(connects);
            destroys.begins();
            (0..2).for_each(|_| destroys.returns());
            later(group.closed()).unwrap();
            with(|library| library.before = None);
        }
        assert_all_is_well();
    });
}

#[test]
fn channel_connects_in_the_place_of_one_that_is_being_destroyed() {
    bounded(|| {
        {
            let bench = Bench::new();
            let (group, destroys) = full_group(&bench);
            let [full, next] = [(); 2].map(|()| group.prepare().unwrap());
            let endpoint = next.endpoint();
            let full = full.handshake(&endpoint).unwrap();
            // This does not wait.
            let rejected = group.join(full).unwrap_err();
            let mut connects = is_connected_and_waits(group.handshake(next, &endpoint));
            destroys.returns();
            let next = connects.ends_when_woken().unwrap();
            with(|library| library.before = None);
            drop((rejected, next));
            later(group.closed()).unwrap();
        }
        assert_all_is_well();
    });
}
