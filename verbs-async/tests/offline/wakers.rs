//! Wakers that panic on drop, or call back: no outcome is lost, nothing hangs, and no other task
//! stays asleep.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use fake_libibverbs::report;
use verbs_async::DeviceEvents;
use verbs_async::verbs_channel::verbs_core::PollSlot;
use verbs_async::verbs_channel::verbs_core::verbs_sys::{IBV_EVENT_PORT_ACTIVE, ibv_async_event};

use crate::bench::{Bench, Task, announce, bounded, done, now};
use crate::groups::{Peer, posted};
use crate::hooks::{Moment, waker};

/// Panics when the last of its clones is dropped, unless it was woken by that.
#[derive(Default)]
struct Bomb {
    woken: AtomicBool,
}

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(self.woken.load(Ordering::Relaxed), "a waker's");
    }
}

/// Polls it with a waker whose last clone stays with the operation.
fn leaves_a_bomb<F: Future>(task: &mut Task<F>) {
    let waker = Waker::from(Arc::<Bomb>::default());
    let polled = task.future().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}

#[test]
fn outcome_is_returned_if_the_last_waker_panics() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut first = peer.send();
    leaves_a_bomb(&mut first);
    done(posted());
    let (result, buffer) = first.ends();
    assert!(result.is_ok());
    assert_eq!(buffer.capacity(), 64);
    // The operation that has its slot now is woken.
    let mut second = peer.send().waits();
    drop(first);
    done(posted().last().copied());
    announce(&bench);
    assert_eq!(second.was_woken(), 1);
    assert!(second.ends().0.is_ok());
}

#[test]
fn op_can_be_abandoned_or_polled_if_its_last_waker_panics() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    // In flight, and in the backlog.
    let mut tasks = [(); 4].map(|()| peer.send());
    for task in &mut tasks {
        leaves_a_bomb(task);
        leaves_a_bomb(task);
    }
    drop(tasks);
}

#[test]
fn cq_wakers_run_without_the_lock() {
    bounded(|| {
        let bench = Bench::new();
        let cq = Arc::new(bench.cq());
        let moments = Arc::new(AtomicUsize::new(0));
        let (again, happened) = (Arc::clone(&cq), Arc::clone(&moments));
        let comes = waker(move |_| {
            happened.fetch_add(1, Ordering::Relaxed);
            let mut slots = [PollSlot::new()];
            drop(Task::new(again.poll_wr_id(7)).waits());
            drop(Task::new(again.poll(&mut slots)).waits());
        });
        let mut cx = Context::from_waker(&comes);
        let mut slots = [PollSlot::new()];
        {
            let mut any = Box::pin(cq.poll(&mut slots));
            let mut one = Box::pin(cq.poll_wr_id(1));
            for _ in 0..2 {
                assert!(any.as_mut().poll(&mut cx).is_pending());
                assert!(one.as_mut().poll(&mut cx).is_pending());
            }
        }
        // Each of four was cloned, and dropped.
        assert_eq!(moments.load(Ordering::Relaxed), 8);
    });
}

#[test]
fn cq_waiter_is_removed_if_its_waker_panics() {
    let bench = Bench::new();
    let cq = bench.cq();
    let mut slots = [PollSlot::new()];
    let (mut any, mut one) = (Task::new(cq.poll(&mut slots)), Task::new(cq.poll_wr_id(1)));
    for _ in 0..2 {
        leaves_a_bomb(&mut any);
        leaves_a_bomb(&mut one);
    }
    drop((any, one));
    done([1]);
    assert_eq!(now(cq.poll_wr_id(1)).unwrap().wr_id(), 1);
}

#[test]
fn message_buffer_is_posted_again_if_the_waker_panics() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let buffers = [peer.buffer(), peer.buffer()];
    let channel = Arc::new(peer.channel);
    let mut incoming = channel.incoming(buffers);
    done(posted());
    let kept = [(); 2].map(|()| now(incoming.next()).unwrap().unwrap());
    let panics = waker(|moment| {
        if moment == Moment::Wake {
            std::panic::resume_unwind(Box::new("a waker's"));
        }
    });
    let mut next = Box::pin(incoming.next());
    let polled = next.as_mut().poll(&mut Context::from_waker(&panics));
    assert!(polled.is_pending(), "all are kept");
    drop(kept);
    assert_eq!(posted().len(), 4);
    done(posted().get(2).copied());
    assert!(now(next).unwrap().is_ok());
}

#[test]
fn device_event_wakers_run_without_the_lock() {
    bounded(|| {
        let bench = Bench::new();
        let hand = bench.device.clone();
        let mut events = DeviceEvents::create(&bench.events).unwrap();
        let context = bench.context.clone();
        // Taking an event needs the lock.
        let comes = waker(move |_| {
            let mut event = ibv_async_event::default();
            event.element.port_num = 1;
            report(&context, IBV_EVENT_PORT_ACTIVE, event);
            hand.readable();
        });
        let mut cx = Context::from_waker(&comes);
        // When it is cloned, and when the clone is dropped.
        for _ in 0..3 {
            let event = events.poll_next(&mut cx);
            assert!(matches!(event, Poll::Ready(Some(Ok(_)))));
        }
    });
}
