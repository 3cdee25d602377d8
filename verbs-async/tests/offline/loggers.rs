//! Whatever a logger does, every listener is notified, and nothing hangs.

use std::cell::Cell;
use std::future::Future as _;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use fake_libibverbs::with;
use verbs_harness::logged::{bombs, does, lines, listen, panics};

use crate::bench::{Bench, Task, announce, bounded, done};

#[test]
fn every_queue_is_notified_of_a_notifier_failure() {
    listen();
    let bench = Bench::new();
    let peers = [(); 3].map(|()| crate::groups::Peer::new(&bench));
    let mut tasks = peers.each_ref().map(|peer| peer.send().waits());
    panics(true);
    bench.hand.over();
    panics(false);
    for task in &mut tasks {
        assert_eq!(task.was_woken(), 1);
        assert!(task.ends().0.is_err());
    }
    assert_eq!(lines().len(), 3);
}

/// As at the end of a runtime that its channels did not outlive.
#[test]
fn notifier_that_fails_without_channels_logs_nothing() {
    for has_channel in [false, true] {
        listen();
        let bench = Bench::new();
        let peer = crate::groups::Peer::new(&bench);
        let group = peer.group().clone();
        let peer = Some(peer).filter(|_| has_channel);
        bench.hand.over();
        assert_eq!(lines().len(), usize::from(has_channel));
        drop((peer, group));
    }
}

#[test]
fn failed_arming_takes_all_channels_down() {
    listen();
    let bench = Bench::new();
    let peer = crate::groups::Peer::new(&bench);
    with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
    let mut task = peer.send();
    bombs();
    assert!(task.ends().0.is_err());
    assert_eq!(lines().len(), 1);
}

#[test]
fn loggers_run_without_the_lock() {
    bounded(|| {
        listen();
        for verb in ["ibv_req_notify_cq", "ibv_get_cq_event"] {
            let bench = Bench::new();
            let peer = crate::groups::Peer::new(&bench);
            let mut task = peer.send();
            with(|library| library.refuse.push((verb, libc::EIO)));
            let was_called = Rc::new(Cell::new(false));
            let in_logger = Rc::clone(&was_called);
            does(move || {
                drop(peer.send());
                in_logger.set(true);
            });
            let (ended, _) = match task.poll() {
                Poll::Ready(ended) => ended,
                Poll::Pending => {
                    announce(&bench);
                    task.ends()
                }
            };
            assert!(ended.is_err());
            assert!(was_called.get(), "{verb}");
        }
    });
}

#[test]
fn logger_of_a_failed_destroy_runs_without_the_lock() {
    bounded(|| {
        listen();
        let bench = Bench::new();
        let peer = crate::groups::Peer::new(&bench);
        let other = peer.join();
        let _flying = other.send(peer.buffer());
        with(|library| library.refuse.push(("ibv_destroy_qp", libc::EBUSY)));
        let was_called = Rc::new(Cell::new(0));
        let in_logger = Rc::clone(&was_called);
        does(move || {
            drop(peer.send());
            in_logger.set(in_logger.get() + 1);
        });
        drop(other);
        assert_eq!(was_called.get(), 1, "it is logged once");
        assert!(lines()[0].contains("leaked 1 buffers"), "{:?}", lines());
    });
}

#[test]
fn events_arrive_after_a_waker_and_the_logger_have_panicked() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a waker's"));
        }
    }
    listen();
    let bench = Bench::new();
    let cq = bench.cq();
    let waker = Waker::from(Arc::new(Panics));
    let mut panicky = Box::pin(cq.poll_wr_id(1));
    let polled = panicky.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    done([1]);
    panics(true);
    bench.announce([cq.cq()]);
    panics(false);
    let task = Task::new(cq.poll_wr_id(2)).waits();
    done([2]);
    bench.announce([cq.cq()]);
    assert_eq!(task.was_woken(), 1);
}
