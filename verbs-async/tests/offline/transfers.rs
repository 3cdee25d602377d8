//! Awaited transfers: whatever is cancelled, the device is done with the memory that they return.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, in_flight, is_in_flight, posted, with};
use verbs_async::verbs_channel::engine::{TransferError, TransferOutcome};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{
    BufferPool, Channel, ChannelId, DownReason, Outgoing, OwnedRequest, RejectReason,
    TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, AsyncTransfer};
use verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_WR_FLUSH_ERR, ibv_wc};

use crate::bench::{Bench, Task, announce, done, held_destroys, join, later, now};

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

    /// The times of all timers: those that are left of `TIMEOUT` and `DRAIN`.
    fn times(&self) -> Vec<Duration> {
        let timers = self.0.borrow();
        let whole = |left| match left {
            _ if left > TIMEOUT => left,
            _ if left > DRAIN => TIMEOUT,
            _ => DRAIN,
        };
        timers.iter().map(|(left, _)| whole(*left)).collect()
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

    /// Sends on these channels, which have begun.
    fn sends(&self, channels: &[ChannelId]) -> AsyncTransfer {
        let mut transfer = self.group.transfer(channels.len());
        channels
            .iter()
            .for_each(|at| transfer.add(*at, self.send()));
        drop(Task::new(transfer.finish()).waits());
        transfer
    }

    fn free(&self) -> usize {
        self.pool.available()
    }
}

/// The device flushes what is in flight, of these requests.
fn flushes(requests: &[u64]) {
    let left = requests.iter().filter(|wr_id| is_in_flight(**wr_id));
    let flushed = left.map(|wr_id| ibv_wc {
        wr_id: *wr_id,
        status: IBV_WC_WR_FLUSH_ERR,
        ..Default::default()
    });
    let flushed: Vec<_> = flushed.collect();
    with(|library| library.done.extend(flushed));
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
fn results(transfer: &mut AsyncTransfer) -> Vec<Result<(), TransportError>> {
    let outcomes = transfer.drain().enumerate();
    let result = |(index, outcome): (usize, TransferOutcome)| {
        assert_eq!(outcome.index, index);
        assert_eq!(outcome.buffer.unwrap().capacity(), 64);
        outcome.result.map(drop)
    };
    outcomes.map(result).collect()
}

const fn is_timed_out(result: &Result<(), TransportError>) -> bool {
    matches!(result, Err(TransportError::Aborted(reason)) if reason.is_timed_out())
}

const fn is_rejected(result: &Result<(), TransportError>) -> bool {
    matches!(result, Err(TransportError::Rejected(_)))
}

#[test]
fn operations_in_the_backlog_only_are_rejected_and_their_channel_goes_on() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    pair.group.set_backlog(3);
    let channel = join(&pair.group);
    let others = [(); 2].map(|()| channel.run(pair.send()));
    let mut transfer = pair.sends(&[channel.id(); 2]);
    let behind = Task::new(channel.run(pair.send())).waits();
    let mut ready = Task::new(channel.ready(Queue::Send)).waits();
    let clock = Clock::default();
    let ended = now(transfer.finish_by(Instant::now(), |time| clock.sleep(time)));
    assert!(ended.is_err());
    for result in results(&mut transfer) {
        let reason = RejectReason::Backpressure(Queue::Send);
        assert!(matches!(result, Err(TransportError::Rejected(found)) if found == reason));
    }
    assert_eq!((aborted(), channel.is_down(), pair.free()), (0, false, 9));
    assert_eq!(ready.was_woken(), 1, "the backlog has room");
    ready.ends().unwrap();
    // The requests behind them in the backlog are next.
    done(posted());
    for other in others {
        now(other).0.unwrap();
    }
    done([*posted().last().unwrap()]);
    { behind }.ends().0.unwrap();
}

#[test]
fn long_set_shares_doorbells_or_does_not_hold_the_thread_of_the_executor() {
    for depth in [2, 64] {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(depth);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let channel = join(&group);
        let pool = BufferPool::new(&pd, 64, 200).unwrap();
        let mut transfer = group.transfer(200);
        while let Some(block) = pool.take() {
            transfer.add(channel.id(), Outgoing::send(block));
        }
        with(|library| (library.completes_sends, library.posted) = (true, Vec::new()));
        {
            let mut finishing = pin!(transfer.finish());
            let mut cx = Context::from_waker(Waker::noop());
            let yields = finishing.as_mut().poll(&mut cx).is_pending();
            assert!(yields && posted().len() < 100 || depth > 2);
            if yields {
                later(finishing).unwrap();
            }
        }
        assert_eq!(results(&mut transfer).len(), 200);
        let doorbells = with(|library| library.posted.len());
        assert!(doorbells < 30 || depth == 2, "{doorbells}");
    }
}

/// The set is dropped, or its timeout has passed, on a device that completes all at once.
#[test]
fn backlog_of_a_set_that_ends_is_not_posted() {
    for is_dropped in [true, false] {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        with(|library| library.completes_sends = false);
        with(|library| library.posted.clear());
        let mut transfer = pair.sends(&[pair.a.id(); 6]);
        done(posted());
        with(|library| library.completes_sends = true);
        if is_dropped {
            drop(transfer);
        } else {
            now(transfer.finish_by(Instant::now(), |_| pending::<()>())).unwrap_err();
            let results = results(&mut transfer);
            assert!(results[..2].iter().all(Result::is_ok));
            assert!(results[2..].iter().all(is_rejected));
        }
        assert_eq!(posted().len(), 2);
        assert_eq!((aborted(), pair.a.is_down(), pair.free()), (0, false, 12));
    }
}

#[test]
fn dropped_set_takes_its_channels_down_and_the_drain_releases_its_buffers() {
    {
        let bench = Bench::new();
        let pair = Pair::new(&bench);
        let [a, b] = [pair.a.id(), pair.b.id()];
        with(|library| library.posted.clear());
        let transfer = pair.sends(&[a, a, a, b]);
        // The request of `b` has completed.
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
        let task = Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits();
        clock.passes();
        drop(task.waits());
        if !is_leaked {
            drop(ManuallyDrop::into_inner(transfer));
        }
        assert_eq!(pair.free(), 10, "it was not flushed");
        let Pair { group, a, b, pool } = pair;
        drop((a, b));
        later(group.closed()).unwrap();
        // One that is leaked has its slots, and with them its buffers, until the group is gone, too.
        assert_eq!(in_flight(), 0);
        if !is_leaked {
            assert_eq!(pool.available(), 12);
        }
        drop(group);
    }
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
    later(group.closed()).unwrap();
    assert!(task.was_woken() > 0);
    assert!(task.poll().is_pending(), "one is in flight");
    drop(b);
    later(group.closed()).unwrap();
    assert!(task.ends().is_err());
    drop(task);
    assert_eq!(results(&mut transfer).len(), 4);
    assert_eq!(pool.available(), 12);
    drop(group);
}

#[test]
fn counters_of_a_group_are_read_and_printed() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let (all, of_a) = (pair.group.counters(), pair.a.counters());
    let mut transfer = pair.sends(&[pair.a.id(), pair.a.id(), pair.b.id()]);
    let text = pair.group.to_string();
    assert!(
        text.contains("up: 2 posted") && text.contains("2 in flight"),
        "{text}"
    );
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let mut task = Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits();
    done(posted());
    announce(&bench);
    task.ends().unwrap();
    drop(task);
    assert_eq!(clock.times(), [TIMEOUT], "it sleeps once");
    assert_eq!((all.read().completed, of_a.read().completed), (3, 2));
    let text = pair.group.to_string();
    assert!(
        text.lines().count() == 3 && text.contains("3 completed, 0 failed"),
        "{text}"
    );
    assert_eq!(results(&mut transfer).len(), 3);
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
        let Err(TransferError::Failed { failed, of, first }) = task.ends_when_woken() else {
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
        task.ends_when_woken().unwrap();
        drop(task);
        // Before the next is counted.
        drop((pair.a, pair.b));
        later(pair.group.closed()).unwrap();
    }
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
    assert!(next.ends_when_woken().is_err());
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
fn queue_pairs_are_destroyed_at_once_on_helper_threads() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let [a, b] = [pair.a.id(), pair.b.id()];
    let mut transfer = pair.sends(&[a, b, a, b]);
    let destroys = held_destroys();
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    for is_dropped in [true, false] {
        let task = Task::new(transfer.finish_by(Instant::now(), sleep)).waits();
        clock.passes();
        // The calls block, and this does not.
        let mut task = task.waits();
        if is_dropped {
            // They do not wait for each other.
            (0..2).for_each(|_| destroys.begins("ibv_destroy_qp"));
            continue;
        }
        // The next future continues what the one that was dropped began.
        (0..2).for_each(|_| destroys.returns());
        assert!(task.ends_when_woken().is_err());
        assert!(!destroys.has_begun(), "each is destroyed once");
    }
    assert_eq!((in_flight(), results(&mut transfer).len()), (0, 4));
    assert_eq!(pair.free(), 12);
}
