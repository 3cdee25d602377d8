//! Awaited transfers: whatever is cancelled, the device is done with the memory that they return.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::task::Poll;
use std::time::Duration;

use fake_libibverbs::{assert_all_is_well, in_flight, is_in_flight, with};
use verbs_async::verbs_channel::{
    BufferPool, Channel, ChannelId, DownReason, Error, Outgoing, OwnedRequest, Queue, RejectReason,
    TransferError, TransferOutcome, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, AsyncTransfer};
use verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
use verbs_core::verbs_sys::{ibv_wc, ibv_wc_status};

use crate::bench::{Bench, Task, done, now};
use crate::groups::{announce, join, posted};

const TIMEOUT: Duration = Duration::from_millis(200);
const DRAIN: Duration = Duration::from_millis(30);

/// Timers that run out when the test ends them.
#[derive(Default)]
struct Clock(RefCell<Vec<(Duration, bool)>>);

impl Clock {
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        let mut timers = self.0.borrow_mut();
        let at = timers.len();
        timers.push((time, false));
        poll_fn(move |_| match self.0.borrow()[at].1 {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// All timers have passed.
    fn passes(&self) {
        let mut timers = self.0.borrow_mut();
        timers
            .iter_mut()
            .for_each(|(_, has_passed)| *has_passed = true);
    }

    fn times(&self) -> Vec<Duration> {
        self.0.borrow().iter().map(|(time, _)| *time).collect()
    }
}

/// A group of two channels with room for two sends each.
struct Pair {
    group: AsyncGroup,
    a: AsyncChannel,
    b: AsyncChannel,
    pool: BufferPool,
}

impl Pair {
    fn new(bench: &Bench) -> Self {
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
        let builder = builder.drain_timeout(DRAIN);
        let group = AsyncGroup::new(builder, 4, &bench.events).unwrap();
        let (a, b) = (join(&group), join(&group));
        let pool = BufferPool::new(&pd, 64, 12).unwrap();
        with(|library| library.modified.clear());
        Self { group, a, b, pool }
    }

    fn send(&self) -> OwnedRequest {
        Outgoing::send(self.pool.take().unwrap()).into()
    }

    /// Sends on these channels.
    fn sends(&self, channels: &[ChannelId]) -> AsyncTransfer {
        let mut transfer = self.group.transfer(channels.len());
        channels
            .iter()
            .for_each(|at| transfer.add(*at, self.send()));
        transfer
    }

    fn free(&self) -> usize {
        self.pool.available()
    }
}

fn ends(wr_id: u64, status: ibv_wc_status) {
    let end = ibv_wc {
        wr_id,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(end));
}

/// The device flushes what is in flight, of these requests.
fn flushes(requests: &[u64]) {
    let left = requests.iter().filter(|wr_id| is_in_flight(**wr_id));
    left.for_each(|wr_id| ends(*wr_id, IBV_WC_WR_FLUSH_ERR));
}

/// How many queue pairs were moved to `ERR`.
fn aborted() -> usize {
    with(|library| {
        let modified = library.modified.iter();
        modified
            .filter(|(attr, _)| attr.qp_state == IBV_QPS_ERR)
            .count()
    })
}

/// The driver refuses this once.
fn refuse(verb: &'static str) {
    with(|library| library.refuse.push((verb, libc::EIO)));
}

fn destroyed() -> usize {
    with(|library| {
        let calls = library.calls.iter();
        calls.filter(|call| **call == "ibv_destroy_qp").count()
    })
}

/// The results of all operations, which have their buffers.
fn results(transfer: &mut AsyncTransfer) -> Vec<Result<(), Error>> {
    let outcomes = transfer.drain().enumerate();
    let result = |(index, outcome): (usize, TransferOutcome)| {
        assert_eq!(outcome.index, index);
        assert_eq!(outcome.buffer.unwrap().capacity(), 64);
        outcome.result.map(drop)
    };
    outcomes.map(result).collect()
}

const fn is_timed_out(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Transport(TransportError::Aborted(reason))) if reason.is_timed_out())
}

const fn is_rejected(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Rejected(_)))
}

#[test]
fn set_that_is_larger_than_its_queues_succeeds_and_is_used_again() {
    {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        let [a, b] = [pair.a.id(), pair.b.id()];
        let mut transfer = pair.a.transfer(6);
        for _ in 0..3 {
            with(|library| library.posted.clear());
            [a, b, a, a, b, a]
                .iter()
                .for_each(|at| transfer.add(*at, pair.send()));
            assert!(posted().len() == 4 && !transfer.is_finished());
            assert_eq!(transfer.drain().count(), 0, "not while some are in flight");
            let mut task = Task::new(transfer.finish()).waits();
            for round in [0..4, 4..6] {
                let requests: Vec<_> = posted()[round].to_vec();
                done(requests);
                announce(&bench);
            }
            assert!(task.was_woken() > 0);
            task.ends().unwrap();
            drop(task);
            assert!(transfer.is_finished() && transfer.len() == 6);
            assert!(results(&mut transfer).iter().all(Result::is_ok));
            assert!(transfer.is_empty() && pair.free() == 12);
        }
        assert!(!pair.a.is_down() && !pair.b.is_down());
        // Without operations it is over.
        now(transfer.finish()).unwrap();
    }
    assert_all_is_well();
}

#[test]
fn finish_with_a_timeout_sleeps_once_if_all_end_in_time() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let mut transfer = pair.sends(&[pair.a.id()]);
    let clock = Clock::default();
    let mut task = Task::new(transfer.finish_within(TIMEOUT, |time| clock.sleep(time))).waits();
    done(posted());
    announce(&bench);
    task.ends().unwrap();
    drop(task);
    assert_eq!(clock.times(), [TIMEOUT]);
    assert_eq!((aborted(), pair.a.is_down()), (0, false));
}

/// Whether the device flushes, whether `ibv_modify_qp` fails, and how many queue pairs are destroyed.
#[test]
fn timeout_ends_lost_operations_and_returns_all_memory() {
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
        let mut task = Task::new(transfer.finish_within(TIMEOUT, |time| clock.sleep(time))).waits();
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
        let Err(TransferError::Failed { failed, of, first }) = task.ends() else {
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
        done([*posted().last().unwrap()]);
        now(transfer.finish()).unwrap();
    }
}

#[test]
fn operations_in_the_backlog_only_are_rejected_and_their_channel_goes_on() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let others = [(); 2].map(|()| pair.a.run(pair.send()));
    let mut transfer = pair.sends(&[id, id]);
    let behind = Task::new(pair.a.run(pair.send())).waits();
    let clock = Clock::default();
    let ended = now(transfer.finish_within(Duration::ZERO, |time| clock.sleep(time)));
    assert!(ended.is_err() && clock.times() == [DRAIN]);
    for result in results(&mut transfer) {
        let reason = RejectReason::Backpressure(Queue::Send);
        assert!(matches!(result, Err(Error::Rejected(found)) if found == reason));
    }
    assert_eq!((aborted(), pair.a.is_down(), pair.free()), (0, false, 9));
    // What was behind them in the backlog is next.
    done(posted());
    for other in others {
        now(other).0.unwrap();
    }
    done([*posted().last().unwrap()]);
    { behind }.ends().0.unwrap();
}

#[test]
fn dropped_future_has_no_effect_and_the_next_one_goes_on() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let mut transfer = pair.sends(&[id, id, id]);
    let clock = Clock::default();
    // Not polled; waiting; and waiting with a timeout.
    drop(transfer.finish());
    drop(Task::new(transfer.finish()).waits());
    drop(Task::new(transfer.finish_within(TIMEOUT, |time| clock.sleep(time))).waits());
    assert_eq!((pair.free(), aborted(), pair.a.is_down()), (9, 0, false));
    done([posted()[0]]);
    announce(&bench);
    let sleep = |time| clock.sleep(time);
    // After the timeout: while the queue pair is drained.
    let first = Task::new(transfer.finish_within(TIMEOUT, sleep)).waits();
    clock.passes();
    drop(first.waits());
    assert_eq!((aborted(), pair.a.is_down()), (1, true));
    assert_eq!(pair.free(), 9, "the outcome was not taken from the set");
    // The next one waits for no other timeout, and destroys the queue pair.
    let before = (clock.times().len(), destroyed());
    let mut next = Task::new(transfer.finish_within(TIMEOUT, sleep)).waits();
    assert_eq!(clock.times()[before.0..], [DRAIN]);
    clock.passes();
    assert!(next.ends().is_err());
    drop(next);
    assert_eq!((in_flight(), destroyed() - before.1), (0, 1));
    let results = results(&mut transfer);
    assert!(results[0].is_ok() && is_timed_out(&results[1]) && results.len() == 3);
    assert_eq!(pair.free(), 12);
    // The timeout belonged to that round: the next one begins anew.
    with(|library| library.posted.clear());
    transfer.add(pair.b.id(), pair.send());
    drop(Task::new(transfer.finish_within(TIMEOUT, sleep)).waits());
    assert!(!pair.b.is_down());
}

#[test]
fn dropped_set_takes_its_channels_down_and_the_drain_releases_its_buffers() {
    {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        let [a, b] = [pair.a.id(), pair.b.id()];
        with(|library| library.posted.clear());
        let transfer = pair.sends(&[a, a, a, b]);
        // That of `b` has completed.
        done([*posted().last().unwrap()]);
        drop(transfer);
        assert_eq!(pair.a.down_reason(), Some(DownReason::Abandoned));
        assert_eq!((aborted(), pair.b.is_down()), (1, false));
        assert_eq!(pair.free(), 10, "the device has two");
        assert_eq!(posted().len(), 3, "one was in the backlog");
        flushes(&posted());
        announce(&bench);
        assert_eq!(pair.free(), 12);
    }
    assert_all_is_well();
}

#[test]
fn set_that_is_dropped_after_its_timeout_or_leaked_returns_its_buffers_with_its_channel() {
    for is_leaked in [false, true] {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        let mut transfer = ManuallyDrop::new(pair.sends(&[pair.a.id(), pair.a.id()]));
        let clock = Clock::default();
        let sleep = |time| clock.sleep(time);
        let task = Task::new(transfer.finish_within(TIMEOUT, sleep)).waits();
        clock.passes();
        drop(task.waits());
        if !is_leaked {
            drop(ManuallyDrop::into_inner(transfer));
        }
        assert_eq!(pair.free(), 10, "it was not flushed");
        let Pair { group, a, b, pool } = pair;
        drop((a, b));
        // One that is leaked has its slots, and with them its buffers, until the group is gone, too.
        assert_eq!(in_flight(), 0);
        if !is_leaked {
            assert_eq!(pool.available(), 12);
        }
        drop(group);
    }
}

#[test]
fn operations_that_are_stuck_are_visible_and_never_freed() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let mut transfer = pair.sends(&[pair.a.id(), pair.a.id()]);
    done([posted()[0]]);
    refuse("ibv_destroy_qp");
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let mut task = Task::new(transfer.finish_within(Duration::ZERO, sleep)).waits();
    clock.passes();
    let ended = task.ends();
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

#[test]
fn failed_operation_and_what_cannot_be_posted_are_reported() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let mut transfer = pair.sends(&[id, id, id]);
    // Of another group.
    let other = Pair::new(&bench);
    transfer.add(other.a.id(), pair.send());
    let mut task = Task::new(transfer.finish()).waits();
    let requests = posted();
    ends(requests[0], IBV_WC_REM_ACCESS_ERR);
    ends(requests[1], IBV_WC_WR_FLUSH_ERR);
    let Err(TransferError::Failed {
        failed: 4, first, ..
    }) = task.ends()
    else {
        panic!("all have failed");
    };
    drop(task);
    assert!(matches!(
        first,
        Error::Transport(TransportError::Work { .. })
    ));
    let results = results(&mut transfer);
    assert!(results[2..].iter().all(is_rejected));
    assert!(!other.a.is_down() && pair.free() == 12);
}

#[test]
fn channel_that_is_closed_meanwhile_ends_its_operations() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let [a, b] = [pair.a.id(), pair.b.id()];
    let mut transfer = pair.sends(&[a, a, a, b]);
    let mut task = Task::new(transfer.finish()).waits();
    let Pair { group, a, b, pool } = pair;
    drop(a);
    assert!(task.was_woken() > 0);
    assert!(task.poll().is_pending(), "one is in flight");
    drop(b);
    assert!(task.ends().is_err());
    drop(task);
    assert_eq!(results(&mut transfer).len(), 4);
    assert_eq!(pool.available(), 12);
    drop(group);
}
