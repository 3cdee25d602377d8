//! Awaited transfers: whatever is cancelled, the device is done with the memory that they return.

use std::future::{Future as _, pending};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{assert_all_is_well, in_flight, posted, with};
use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::engine::TransferError;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{
    BufferPool, Channel, DownReason, Outgoing, RejectReason, SharedMemory, TransportError,
};
use verbs_core::verbs_sys::{IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
use verbs_core::{AccessFlags, RemoteMemoryRegion};

use crate::bench::{Bench, Task, announce, done, join, later, now};
use crate::transfer_bench::{Clock, Pair, TIMEOUT, aborted, ends, flushes, is_rejected, results};

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
            assert!(posted().is_empty(), "it is not awaited");
            assert_eq!(transfer.drain().count(), 0, "not while some are to begin");
            let mut task = Task::new(transfer.finish()).waits();
            assert_eq!(posted().len(), 4);
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
fn set_that_is_larger_than_all_memory_has_no_room_at_first() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    with(|library| library.completes_sends = true);
    for operations in [usize::MAX, 1 << 56] {
        let mut transfer = pair.group.transfer(operations);
        transfer.add(pair.a.id(), pair.send());
        now(transfer.finish()).unwrap();
        assert_eq!(results(&mut transfer).len(), 1);
    }
}

#[test]
fn finish_with_a_timeout_sleeps_once_if_all_end_in_time() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let mut transfer = pair.sends(&[pair.a.id()]);
    let clock = Clock::default();
    let mut task =
        Task::new(transfer.finish_by(Instant::now() + TIMEOUT, |time| clock.sleep(time))).waits();
    done(posted());
    announce(&bench);
    task.ends().unwrap();
    drop(task);
    assert_eq!(clock.times(), [TIMEOUT]);
    assert_eq!((aborted(), pair.a.is_down()), (0, false));
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
    let ended = now(transfer.finish_by(Instant::now(), |time| clock.sleep(time)));
    assert!(ended.is_err() && clock.times().is_empty());
    for result in results(&mut transfer) {
        let reason = RejectReason::Backpressure(Queue::Send);
        assert!(matches!(result, Err(TransportError::Rejected(found)) if found == reason));
    }
    assert_eq!((aborted(), pair.a.is_down(), pair.free()), (0, false, 9));
    // The requests behind them in the backlog are next.
    done(posted());
    for other in others {
        now(other).0.unwrap();
    }
    done([*posted().last().unwrap()]);
    { behind }.ends().0.unwrap();
}

/// How long a post takes, and the timeout for four of them.
const SLOW: Duration = Duration::from_millis(5);
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn timeout_counts_from_the_call_and_nothing_is_posted_after_it() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let mut transfer = pair.group.transfer(12);
    (0..12).for_each(|_| transfer.add(id, pair.send()));
    with(|library| (library.slow_posts, library.completes_sends) = (SLOW, true));
    let before = posted().len();
    // Nothing is begun by a future that is polled too late, and the runtime's timer is of no use.
    let late = transfer.finish_by(Instant::now() + SHORT, |_| pending::<()>());
    thread::sleep(SHORT);
    now(late).unwrap_err();
    assert_eq!(posted().len(), before);
    assert!(results(&mut transfer).iter().all(is_rejected));
    (0..12).for_each(|_| transfer.add(id, pair.send()));
    let ended = later(transfer.finish_by(Instant::now() + SHORT, |_| pending::<()>()));
    let posts = posted().len() - before;
    // Eight are posted between two reads of the clock.
    assert!((1..12).contains(&posts), "{posts}");
    ended.unwrap_err();
    let results = results(&mut transfer);
    assert_eq!(
        results.iter().filter(|result| result.is_ok()).count(),
        posts
    );
    assert!(results[posts..].iter().all(is_rejected));
    assert_eq!((aborted(), pair.a.is_down(), pair.free()), (0, false, 12));
}

#[test]
fn slow_posts_do_not_hold_the_thread_of_the_executor() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let pool = BufferPool::new(pair.group.pd(), 64, 200).unwrap();
    let mut transfer = pair.group.transfer(200);
    while let Some(block) = pool.take() {
        transfer.add(pair.a.id(), Outgoing::send(block));
    }
    with(|library| library.completes_sends = true);
    let before = posted().len();
    {
        let mut finishing = pin!(transfer.finish());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(finishing.as_mut().poll(&mut cx).is_pending(), "it yields");
        assert!(posted().len() - before < 100);
        later(finishing).unwrap();
    }
    assert_eq!(results(&mut transfer).len(), 200);
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
fn failed_operation_and_what_cannot_be_posted_are_reported() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let id = pair.a.id();
    let mut transfer = pair.sends(&[id, id, id]);
    // A channel of another group.
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
    assert!(matches!(first, TransportError::Work { .. }));
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
fn requests_of_a_deep_queue_share_doorbells() {
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_send_wr(64).max_recv_wr(2);
    let group = AsyncGroup::new(builder, 4, &bench.events).unwrap();
    let (a, b) = (join(&group), join(&group));
    let pool = BufferPool::new(&pd, 64, 300).unwrap();
    let mut transfer = group.transfer(300);
    for _ in 0..2 {
        with(|library| (library.completes_sends, library.posted) = (true, Vec::new()));
        for at in 0..300 {
            let id = if at % 3 == 0 { a.id() } else { b.id() };
            transfer.add(id, Outgoing::send(pool.take().unwrap()));
        }
        later(transfer.finish()).unwrap();
        let (doorbells, requests) =
            with(|library| (library.posted.len(), library.posted.concat().len()));
        assert!(requests == 300 && doorbells < 30, "{doorbells}");
        assert_eq!(results(&mut transfer).len(), 300);
        assert_eq!(pool.available(), 300);
    }
    // One that is in flight with its chain when the deadline passes.
    with(|library| library.completes_sends = false);
    (0..100).for_each(|_| transfer.add(a.id(), Outgoing::send(pool.take().unwrap())));
    let clock = Clock::default();
    let sleep = |time| clock.sleep(time);
    let task = Task::new(transfer.finish_by(Instant::now() + TIMEOUT, sleep)).waits();
    clock.passes();
    let mut task = task.waits();
    flushes(&posted());
    announce(&bench);
    assert!(task.ends().is_err());
    drop(task);
    let results = results(&mut transfer);
    assert!(results.len() == 100 && results.iter().all(Result::is_err));
    assert_eq!((in_flight(), pool.available()), (0, 300));
}

#[test]
fn counters_of_a_group_are_read_and_printed() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let (all, of_a) = (pair.group.counters(), pair.a.counters());
    let mut transfer = pair.sends(&[pair.a.id(), pair.a.id(), pair.b.id()]);
    let text = pair.group.to_string();
    assert!(text.contains("up: 2 in flight"), "{text}");
    done(posted());
    announce(&bench);
    later(transfer.finish()).unwrap();
    assert_eq!((all.read().completed, of_a.read().completed), (3, 2));
    let text = pair.group.to_string();
    assert!(
        text.lines().count() == 3 && text.contains("3 completed, 0 failed"),
        "{text}"
    );
    assert_eq!(results(&mut transfer).len(), 3);
}

#[test]
fn owner_of_a_slice_whose_future_is_dropped_is_dropped_when_the_device_is_done() {
    let bench = Bench::new();
    let pair = Pair::new(&bench);
    let pd = pair.group.pd();
    let memory = SharedMemory::register([pd], vec![0_u8; 64], AccessFlags::empty()).unwrap();
    let owner = Arc::new(());
    let slice = memory.slice(..8).unwrap().owned_by(Arc::clone(&owner));
    drop(Task::new(pair.a.run(Outgoing::send(slice))).waits());
    assert_eq!(Arc::strong_count(&owner), 2, "the device has it");
    done(posted());
    announce(&bench);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert!(memory.is_idle());
}

#[test]
fn operations_behind_one_that_is_split_are_carried_out() {
    // Parts that are posted one by one, and in chains of four.
    for sends in [2, 16] {
        let bench = Bench::new();
        with(|library| library.ports[0].attr.max_msg_sz = 10);
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(sends).max_recv_wr(2);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let channel = join(&group);
        let pool = BufferPool::new(&pd, 64, 4).unwrap();
        let remote = RemoteMemoryRegion::new(0x1000, 1 << 20, 7).unwrap();
        let mut transfer = channel.transfer(4);
        for _ in 0..2 {
            transfer.add(channel.id(), Outgoing::write(pool.take().unwrap(), remote));
            let short = pool.take_with(b"short").unwrap().unwrap();
            transfer.add(channel.id(), Outgoing::send(short));
        }
        with(|library| (library.completes_sends, library.posted) = (true, Vec::new()));
        later(transfer.finish()).unwrap();
        assert!(transfer.is_finished(), "{sends}");
        // Seven parts of each write.
        assert_eq!(posted().len(), 16, "{sends}");
        assert_eq!(results(&mut transfer).len(), 4, "{sends}");
        with(|library| library.completes_sends = false);
    }
}
