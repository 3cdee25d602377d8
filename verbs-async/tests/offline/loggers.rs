//! A logger that panics keeps nobody from hearing what it was told.

use std::future::Future as _;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::bench::{Bench, Task, done};
use crate::library::with;
use crate::log::{bombs, lines, listen, panics};

#[test]
fn every_queue_hears_that_its_notifier_is_over() {
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

#[test]
fn an_arming_that_is_refused_ends_everything() {
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
fn events_are_heard_after_a_waker_and_the_logger_have_panicked() {
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
