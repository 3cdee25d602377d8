//! Whatever a logger does, every listener is notified, and nothing hangs.

use std::cell::Cell;
use std::future::Future as _;
use std::rc::Rc;
use std::sync::{Arc, Weak, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, ThreadId};

use fake_libibverbs::with;
use verbs_async::{CqEvents, DeviceEvents, ErrorChain};
use verbs_harness::logged::{does, lines, listen, panics};

use crate::bench::{Bench, Task, announce, bounded, done, later, now};
use crate::groups::posted;

#[test]
fn every_queue_is_notified_of_a_notifier_failure() {
    listen();
    let bench = Bench::new();
    let peers = [(); 3].map(|()| crate::groups::Peer::new(&bench));
    let mut tasks = peers.each_ref().map(|peer| peer.send().waits());
    panics(true);
    bench.hand.over();
    panics(false);
    for (peer, task) in peers.iter().zip(&mut tasks) {
        later(peer.group().closed()).unwrap();
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

/// A bench whose notifier is one of a tokio runtime of its own.
fn tokio_bench() -> (tokio::runtime::Runtime, Bench) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().unwrap();
    let mut bench = Bench::new();
    {
        let _inside = runtime.enter();
        bench.events = CqEvents::create_tokio(&bench.context).unwrap();
    }
    (runtime, bench)
}

/// As when a program ends while its tasks use channels.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll sets of such descriptors")]
fn end_of_a_runtime_before_its_channels_logs_nothing_and_is_the_error_of_later_calls() {
    listen();
    let (runtime, bench) = tokio_bench();
    let handle = runtime.handle().clone();
    let (cq, peer) = (bench.cq(), crate::groups::Peer::new(&bench));
    let mut send = peer.send().waits();
    let mut waits = Task::new(cq.poll_wr_id(1)).waits();
    drop(runtime);
    assert!(send.ends_when_woken().0.is_err());
    let member = peer.group().prepare().unwrap();
    let endpoint = member.endpoint();
    let late = peer.group().join(member.handshake(&endpoint).unwrap());
    let text = ErrorChain::new(&late.unwrap_err().into_error()).to_string();
    assert!(text.contains("its runtime has ended"), "{text}");
    let _inside = handle.enter();
    let errors = [
        waits.ends().unwrap_err(),
        now(cq.poll_wr_id(2)).unwrap_err(),
        CqEvents::create_tokio(&bench.context).unwrap_err(),
    ];
    for text in errors.map(|error| ErrorChain::new(&error).to_string()) {
        let is_named = text.contains("the tokio runtime") && text.contains("was shut down");
        assert!(is_named, "{text}");
    }
    assert_eq!(lines(), [""; 0]);
}

#[test]
fn device_events_that_end_while_they_watch_something_are_logged() {
    for is_watched in [false, true] {
        listen();
        let bench = Bench::new();
        let events = DeviceEvents::create(&bench.events).unwrap();
        let cq = bench.cq();
        if is_watched {
            events.watch_cq(&cq).unwrap();
        }
        bench.device.over();
        let lines = lines();
        assert_eq!(lines.len(), usize::from(is_watched), "{lines:?}");
        let is_named = lines.iter().all(|line| line.contains("fake0"));
        assert!(is_named, "{lines:?}");
    }
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
            if verb == "ibv_get_cq_event" {
                assert!(task.poll().is_pending());
                announce(&bench);
            }
            assert!(task.ends_when_woken().0.is_err());
            assert!(was_called.get(), "{verb}");
        }
    });
}

#[test]
fn logger_of_a_failed_destroy_runs_without_the_lock() {
    bounded(|| {
        listen();
        let bench = Bench::new();
        let peer = Arc::new(crate::groups::Peer::new(&bench));
        let other = peer.join();
        let _flying = other.send(peer.buffer());
        let (logs, logged) = mpsc::channel();
        let sends = Arc::downgrade(&peer);
        let logger = move || {
            let (logs, peer) = (logs.clone(), Weak::clone(&sends));
            move || {
                if let Some(peer) = peer.upgrade() {
                    drop(peer.send());
                    logs.send(lines().pop()).ok();
                }
            }
        };
        // Either this thread logs it, or the one that destroys the queue pair.
        does(logger());
        let before = move |_verb: &str, _state| does(logger());
        with(|library| {
            library.refuse.push(("ibv_destroy_qp", libc::EBUSY));
            library.before = Some(Arc::new(before));
        });
        drop(other);
        later(peer.group().closed()).unwrap_err();
        with(|library| library.before = None);
        let line = logged.try_recv().unwrap().unwrap();
        assert!(line.contains("leaked 1 buffers"), "{line}");
        assert_eq!(
            logged.try_iter().collect::<Vec<_>>(),
            [],
            "it is logged once"
        );
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

/// A waker of an executor that only its own thread may wake.
struct OneThread(ThreadId);

impl Wake for OneThread {
    fn wake(self: Arc<Self>) {
        assert_eq!(thread::current().id(), self.0, "woken on another thread");
    }
}

#[test]
fn task_that_cannot_be_woken_on_this_thread_is_logged_and_keeps_its_outcome() {
    listen();
    let bench = Bench::new();
    let (cq, peer) = (bench.cq(), crate::groups::Peer::new(&bench));
    let elsewhere = thread::spawn(|| thread::current().id()).join().unwrap();
    let waker = Waker::from(Arc::new(OneThread(elsewhere)));
    let mut cx = Context::from_waker(&waker);
    let mut one = Box::pin(cq.poll_wr_id(1));
    assert!(one.as_mut().poll(&mut cx).is_pending());
    let mut send = peer.send();
    assert!(send.future().poll(&mut cx).is_pending());
    done([1]);
    bench.announce([cq.cq()]);
    done(posted());
    announce(&bench);
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("must work on any thread"))
    );
    // Each sees it if it is polled for another reason.
    assert_eq!(now(one).unwrap().wr_id(), 1);
    send.ends().0.unwrap();
}
