//! Transfers that destroy queue pairs, which helper threads do.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::Instant;

use fake_libibverbs::{in_flight, posted, share, with};
use verbs_async::verbs_channel::engine::TransferError;

use crate::bench::{Bench, Task, announce, done, later};
use crate::gate::LONG;
use crate::transfer_bench::{
    Clock, DRAIN, Pair, TIMEOUT, aborted, destroyed, flushes, is_rejected, is_timed_out, refuse,
    results,
};

/// Polls until it is ready: helper threads destroy.
fn ends<F: Future>(task: &mut Task<F>) -> F::Output {
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = task.poll() {
            return output;
        }
        assert!(begun.elapsed() < LONG, "it hangs");
        thread::yield_now();
    }
}

/// Whether the device flushes, whether `ibv_modify_qp` fails, and how many queue pairs are destroyed.
#[test]
fn timeout_ends_lost_operations_and_returns_all_memory() {
    let _shared = share();
    for (is_flushed, is_refused, destroys) in
        [(true, false, 0), (false, false, 1), (false, true, 1)]
    {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        let [a, b] = [pair.a.id(), pair.b.id()];
        with(|library| library.posted.clear());
        let (before, clock) = (destroyed(), Clock::default());
        // One of `a` succeeds, and both of `b`.
        let mut transfer = pair.sends(&[a, a, a, a, b, b]);
        let requests = posted();
        done([requests[0], requests[2], requests[3]]);
        let mut task =
            Task::new(transfer.finish_by(Instant::now() + TIMEOUT, |time| clock.sleep(time)))
                .waits();
        if is_refused {
            refuse("ibv_modify_qp");
        }
        clock.passes();
        if !is_refused {
            task = task.waits();
            assert_eq!(
                (aborted(), pair.a.is_down(), pair.b.is_down()),
                (1, true, false)
            );
            assert_eq!(clock.times(), [TIMEOUT, DRAIN]);
        }
        if is_flushed {
            flushes(&posted());
            announce(&bench);
        } else {
            clock.passes();
        }
        let Err(TransferError::Failed { failed, of, first }) = ends(&mut task) else {
            panic!("some have failed");
        };
        drop(task);
        assert_eq!((failed, of), (3, 6));
        assert!(is_timed_out(&Err(first)));
        assert_eq!((in_flight(), destroyed() - before), (0, destroys));
        let results = results(&mut transfer);
        assert!(results[0].is_ok());
        // The first made room for the third.
        assert!(results[1..3].iter().all(is_timed_out));
        assert!(is_rejected(&results[3]));
        assert!(results[4..].iter().all(Result::is_ok));
        assert_eq!(pair.free(), 12);
        // The other channel goes on.
        transfer.add(b, pair.send());
        let mut task = Task::new(transfer.finish()).waits();
        done([*posted().last().unwrap()]);
        ends(&mut task).unwrap();
        drop(task);
        // Before the next is counted.
        drop((pair.a, pair.b));
        later(pair.group.closed()).unwrap();
    }
}

#[test]
fn dropped_future_has_no_effect_and_the_next_one_goes_on() {
    let _shared = share();
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let mut transfer = pair.sends(&[id, id, id]);
    let clock = Clock::default();
    // Not polled; waiting; and waiting with a timeout.
    drop(transfer.finish());
    drop(Task::new(transfer.finish()).waits());
    drop(Task::new(transfer.finish_by(Instant::now() + TIMEOUT, |time| clock.sleep(time))).waits());
    assert_eq!((pair.free(), aborted(), pair.a.is_down()), (9, 0, false));
    done([posted()[0]]);
    announce(&bench);
    let sleep = |time| clock.sleep(time);
    // After the timeout: while the queue pair is drained.
    let first = Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits();
    clock.passes();
    drop(first.waits());
    assert_eq!((aborted(), pair.a.is_down()), (1, true));
    assert_eq!(pair.free(), 9, "the outcome was not taken from the set");
    // The next one waits for no other timeout, and destroys the queue pair.
    let before = (clock.times().len(), destroyed());
    let mut next = Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits();
    assert_eq!(clock.times()[before.0..], [DRAIN]);
    clock.passes();
    assert!(ends(&mut next).is_err());
    drop(next);
    assert_eq!((in_flight(), destroyed() - before.1), (0, 1));
    let results = results(&mut transfer);
    assert!(results[0].is_ok() && is_timed_out(&results[1]) && results.len() == 3);
    assert_eq!(pair.free(), 12);
    // The timeout belonged to that round: the next one begins anew.
    with(|library| library.posted.clear());
    transfer.add(pair.b.id(), pair.send());
    drop(Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits());
    assert!(!pair.b.is_down());
}

#[test]
fn operations_that_are_stuck_are_visible_and_never_freed() {
    let _shared = share();
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let mut transfer = pair.sends(&[pair.a.id(), pair.a.id()]);
    done([posted()[0]]);
    refuse("ibv_destroy_qp");
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let mut task = Task::new(transfer.finish_by(Instant::now(), sleep)).waits();
    clock.passes();
    let ended = ends(&mut task);
    drop(task);
    let is_stuck = matches!(ended, Err(TransferError::Stuck { stuck: 1, of: 2 }));
    assert!(is_stuck, "{ended:?}");
    let outcomes: Vec<_> = transfer.drain().collect();
    assert!(outcomes[0].result.is_ok() && outcomes[1].buffer.is_none());
    drop((outcomes, transfer));
    assert_eq!(pair.free(), 11);
    drop(pair.a);
    assert_eq!(pair.pool.available(), 11);
    fake_libibverbs::forget_requests();
}

/// A device whose queue pairs take until they are released to be destroyed, and the threads that do so.
pub(crate) fn slow() -> (mpsc::Receiver<ThreadId>, mpsc::Sender<()>) {
    let (sender, threads) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let before = move |verb: &str, _| {
        if verb == "ibv_destroy_qp" {
            sender.send(thread::current().id()).ok();
            let released = released.lock().unwrap().recv_timeout(LONG);
            released.expect("it is never released");
        }
    };
    with(|library| library.before = Some(Arc::new(before)));
    (threads, release)
}

#[test]
fn queue_pairs_are_destroyed_at_once_on_helper_threads() {
    let _shared = share();
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let [a, b] = [pair.a.id(), pair.b.id()];
    let mut transfer = pair.sends(&[a, b, a, b]);
    let (threads, release) = slow();
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let task = Task::new(transfer.finish_by(Instant::now(), sleep)).waits();
    clock.passes();
    // The calls block, and this does not.
    let task = task.waits();
    for _ in 0..2 {
        let helper = threads
            .recv_timeout(LONG)
            .expect("they wait for each other");
        assert_ne!(helper, thread::current().id());
    }
    let mut task = task.waits();
    let woken = task.was_woken();
    for _ in 0..2 {
        release.send(()).unwrap();
    }
    let begun = Instant::now();
    while task.was_woken() == woken {
        assert!(begun.elapsed() < LONG, "it is not woken");
        thread::yield_now();
    }
    assert!(ends(&mut task).is_err());
    drop(task);
    assert_eq!((in_flight(), results(&mut transfer).len()), (0, 4));
    assert_eq!(pair.free(), 12);
    with(|library| library.before = None);
}

#[test]
fn future_that_is_dropped_while_queue_pairs_are_destroyed_is_continued_by_the_next() {
    let _shared = share();
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let mut transfer = pair.sends(&[pair.a.id()]);
    let (threads, release) = slow();
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let task = Task::new(transfer.finish_by(Instant::now(), sleep)).waits();
    clock.passes();
    let task = task.waits();
    threads.recv_timeout(LONG).unwrap();
    drop(task);
    let next = Task::new(transfer.finish_by(Instant::now(), sleep)).waits();
    clock.passes();
    let mut next = next.waits();
    release.send(()).unwrap();
    assert!(ends(&mut next).is_err());
    assert!(threads.try_recv().is_err(), "it is destroyed once");
    drop(next);
    assert_eq!((in_flight(), pair.free()), (0, 11));
    with(|library| library.before = None);
}
