//! Transfers: whatever a device does, nothing is in flight when they return.

use std::collections::HashSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{Posted, in_flight, is_in_flight, lend, with};
use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_QPS_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc_status,
};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, DownReason, Incoming, Outgoing, OwnedBuffer,
    OwnedRequest, RejectReason, SharedMemory, Transfer, TransportError,
};
use verbs_channel::{engine::TransferError, engine::TransferOutcome};
use verbs_harness::logged::{lines, listen};

use crate::fake_device::{
    DRAIN, bounded, called, channel, connected, ends, forget_the_past, pd, posted, refuse, remote,
    succeeds,
};

/// A deadline that has to pass; long enough for a device that is another thread on a busy machine.
const SOON: Option<Duration> = Some(Duration::from_millis(if cfg!(miri) { 5000 } else { 500 }));
const LONG: Duration = Duration::from_secs(30);

pub(crate) fn by(time: Option<Duration>) -> Option<Instant> {
    time.map(|time| Instant::now() + time)
}

pub(crate) fn write(pool: &BufferPool) -> OwnedRequest {
    Outgoing::write(pool.take().unwrap(), remote()).into()
}

pub(crate) fn writes(on: ChannelId, pool: &BufferPool, count: usize) -> Transfer {
    let mut transfer = Transfer::with_capacity(count);
    (0..count).for_each(|_| transfer.add(on, write(pool)));
    transfer
}

/// Runs a test beside a device that completes each request with the status that `answer` has for it, by
/// its number; `None` is lost. Lost ones are flushed if `flushes`, once a queue pair is moved to `ERR`.
pub(crate) fn beside_a_device<T>(
    flushes: bool,
    answer: impl Fn(usize, &Posted) -> Option<ibv_wc_status> + Sync,
    test: impl FnOnce() -> T,
) -> T {
    let ended = AtomicBool::new(false);
    let library = lend();
    let device = || {
        library();
        let (mut count, mut lost) = (0, Vec::new());
        while !ended.load(Ordering::Relaxed) {
            let (posted, modified) = with(|library| {
                let modified = mem::take(&mut library.modified);
                (mem::take(&mut library.posted).concat(), modified)
            });
            for request in posted {
                match answer(count, &request) {
                    Some(status) => ends(request.wr_id, status),
                    None => lost.push(request.wr_id),
                }
                count += 1;
            }
            if flushes
                && modified
                    .iter()
                    .any(|(attr, _)| attr.qp_state == IBV_QPS_ERR)
            {
                let lost = mem::take(&mut lost).into_iter();
                let left = lost.filter(|wr_id| is_in_flight(*wr_id));
                left.for_each(|wr_id| ends(wr_id, IBV_WC_WR_FLUSH_ERR));
            }
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(device);
        let result = catch_unwind(AssertUnwindSafe(|| bounded(test)));
        ended.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn sorted(transfer: &mut Transfer) -> (Vec<usize>, Vec<(usize, TransportError)>) {
    let (mut successes, mut errors) = (Vec::new(), Vec::new());
    for TransferOutcome {
        index,
        result,
        buffer,
        ..
    } in transfer.drain()
    {
        assert_eq!(buffer.unwrap().capacity(), 64);
        match result {
            Ok(_) => successes.push(index),
            Err(error) => errors.push((index, error)),
        }
    }
    (successes, errors)
}

const fn is_timed_out(error: &TransportError) -> bool {
    matches!(error, TransportError::Aborted(reason) if reason.is_timed_out())
}

#[test]
fn set_that_is_larger_than_its_queues_succeeds_and_is_used_again() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 20).unwrap();
    let mut transfer = Transfer::with_capacity(20);
    beside_a_device(
        true,
        |_, _| Some(IBV_WC_SUCCESS),
        || {
            for _ in 0..3 {
                for at in 0..20 {
                    let request = if at % 5 == 4 {
                        OwnedRequest::receive(pool.take().unwrap())
                    } else {
                        write(&pool)
                    };
                    transfer.add(channel.id(), request);
                }
                let mut seen = HashSet::new();
                channel
                    .transfer_with(&mut transfer, None, |index, is_success| {
                        assert!(is_success && seen.insert(index));
                    })
                    .unwrap();
                assert_eq!((seen.len(), transfer.len(), pool.available()), (20, 20, 0));
                assert_eq!(sorted(&mut transfer).0, (0..20).collect::<Vec<_>>());
                assert!(channel.is_idle() && transfer.is_empty());
            }
        },
    );
    assert_eq!(pool.available(), 20);
    assert!(!channel.is_down());
    channel.transfer(&mut transfer, None).unwrap();
}

/// The device's behaviour after the deadline, and whether a queue pair is destroyed.
#[test]
fn deadline_ends_lost_operations_and_returns_all_memory() {
    for (flushes, refused, destroys) in [
        (true, None, false),
        (false, None, true),
        (false, Some("ibv_modify_qp"), true),
    ] {
        let drain_timeout = if flushes { LONG } else { DRAIN };
        let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
        let builder = builder.drain_timeout(drain_timeout);
        let mut channel = connected(builder.build().unwrap());
        let pool = BufferPool::new(channel.pd(), 64, 9).unwrap();
        let mut transfer = writes(channel.id(), &pool, 9);
        refused.into_iter().for_each(|verb| refuse(verb, 1));
        let start = Instant::now();
        let ended = beside_a_device(
            flushes,
            |index, _| (index < 3).then_some(IBV_WC_SUCCESS),
            || channel.transfer(&mut transfer, by(SOON)),
        );
        assert!(start.elapsed() >= SOON.unwrap());
        let Err(TransferError::Failed { failed, of, first }) = ended else {
            panic!("{ended:?}");
        };
        assert!((failed, of) == (6, 9) && is_timed_out(&first));
        assert_eq!((in_flight(), called("ibv_destroy_qp")), (0, destroys));
        assert!(channel.is_idle() && channel.is_down());
        let (successes, errors) = sorted(&mut transfer);
        assert_eq!(successes, [0, 1, 2]);
        let posted = errors.partition_point(|(_, error)| is_timed_out(error));
        assert!((1..=4).contains(&posted));
        for (_, error) in &errors[posted..] {
            let reason = RejectReason::Down(channel.down_reason().unwrap());
            assert!(matches!(error, TransportError::Rejected(found) if *found == reason));
        }
        assert_eq!(pool.available(), 9);
    }
}

/// How long a post takes.
const SLOW: Duration = Duration::from_millis(5);

fn posts_within(timeout: Duration) -> usize {
    let fit = timeout.as_millis() / SLOW.as_millis();
    usize::try_from(fit).unwrap() + 8
}

#[test]
fn timeout_counts_from_the_call_and_nothing_is_posted_after_it() {
    let timeout = Duration::from_millis(20);
    for (completes, channels) in [(true, 1), (false, 1), (true, 4), (false, 4)] {
        let (mut group, ids) = group_of(channels, 50, None);
        let pool = BufferPool::new(group.pd(), 64, 200).unwrap();
        let mut transfer = Transfer::default();
        (0..200).for_each(|at| transfer.add(ids[at % ids.len()], write(&pool)));
        with(|library| (library.slow_posts, library.completes_sends) = (SLOW, completes));
        let ended = bounded(|| group.transfer(&mut transfer, by(Some(timeout))));
        let posts = posted().len();
        let doorbells = with(|library| library.posted.len());
        assert!(
            (1..=posts_within(timeout)).contains(&doorbells),
            "{doorbells}"
        );
        let error = ended.unwrap_err();
        // A device that has completed all that it was given is left alone.
        assert_eq!(error.down_reason().is_none(), completes, "{error}");
        let (successes, errors) = sorted(&mut transfer);
        assert_eq!(successes.len(), if completes { posts } else { 0 });
        let aborted = errors.iter().filter(|(_, error)| is_timed_out(error));
        assert_eq!(aborted.count() + successes.len(), posts);
        let is_late = |error: &TransportError| {
            matches!(error, TransportError::Rejected(RejectReason::TimedOut))
        };
        let late = errors.iter().filter(|(_, error)| is_late(error)).count();
        assert!(!completes || late == 200 - posts);
        assert_eq!((in_flight(), pool.available()), (0, 200));
    }
}

#[test]
fn deadline_that_has_passed_at_the_call_posts_nothing() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 3).unwrap();
    let mut transfer = writes(channel.id(), &pool, 3);
    let ended = channel.transfer(&mut transfer, Some(Instant::now()));
    assert!(ended.is_err() && posted().is_empty() && !channel.is_down());
    assert_eq!((sorted(&mut transfer).1.len(), pool.available()), (3, 3));
}

#[test]
fn operations_that_are_stuck_are_visible_and_never_freed() {
    listen();
    let mut channel = channel();
    let region = channel
        .pd()
        .reg_shared(vec![0_u8; 64], AccessFlags::empty());
    let memory = SharedMemory::new([region.unwrap()]);
    let pool = BufferPool::new(channel.pd(), 64, 2).unwrap();
    let mut transfer = writes(channel.id(), &pool, 1);
    let slice = memory.slice(..64).unwrap();
    transfer.add(channel.id(), Incoming::read(slice, remote()));
    transfer.add(channel.id(), write(&pool));
    refuse("ibv_destroy_qp", 1);
    let ended = beside_a_device(
        false,
        |index, _| (index == 0).then_some(IBV_WC_SUCCESS),
        || channel.transfer(&mut transfer, by(SOON)),
    );
    assert!(matches!(
        ended,
        Err(TransferError::Stuck { stuck: 2, of: 3 })
    ));
    assert!(ended.unwrap_err().is_stuck());
    let outcomes: Vec<_> = transfer.drain().collect();
    assert!(outcomes[0].result.is_ok() && outcomes[0].buffer.is_some());
    for stuck in &outcomes[1..] {
        let result = &stuck.result;
        assert!(matches!(result, Err(TransportError::Stuck)));
        assert!(stuck.buffer.is_none());
    }
    drop((outcomes, channel, memory));
    assert_eq!(pool.available(), 1);
    assert!(!called("ibv_dereg_mr"), "the device may still write there");
    assert!(lines().iter().any(|line| line.contains("leaked 2 buffers")));
    fake_libibverbs::forget_requests();
}

#[test]
fn post_that_fails_half_way_ends_with_its_memory_or_is_stuck() {
    listen();
    for is_stuck in [false, true] {
        let mut channel = channel();
        let pool = BufferPool::new(channel.pd(), 64, 3).unwrap();
        let mut transfer = writes(channel.id(), &pool, 3);
        // The device has the first, and the driver reports that it failed.
        with(|library| library.refuse_post = Some((1, libc::EIO, false)));
        if is_stuck {
            refuse("ibv_destroy_qp", 1);
        }
        let ended = bounded(|| channel.transfer(&mut transfer, by(SOON))).unwrap_err();
        assert_eq!(ended.is_stuck(), is_stuck);
        assert!(called("ibv_destroy_qp") && channel.is_down());
        let outcomes: Vec<_> = transfer.drain().collect();
        assert_eq!(outcomes[0].buffer.is_none(), is_stuck);
        for rejected in &outcomes[1..] {
            let result = &rejected.result;
            assert!(matches!(
                result,
                Err(TransportError::Rejected(RejectReason::Down(_)))
            ));
        }
        drop(outcomes);
        assert_eq!(pool.available(), 3 - usize::from(is_stuck));
        fake_libibverbs::forget_requests();
    }
}

#[test]
fn panic_goes_on_when_nothing_is_in_flight_any_more() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 6).unwrap();
    let mut transfer = writes(channel.id(), &pool, 6);
    let unwound = beside_a_device(
        false,
        |index, _| (index == 0).then_some(IBV_WC_SUCCESS),
        || {
            let run = || channel.transfer_with(&mut transfer, None, |_, _| panic!("on purpose"));
            catch_unwind(AssertUnwindSafe(run))
        },
    );
    assert!(unwound.is_err() && called("ibv_destroy_qp"));
    assert!(in_flight() == 0 && channel.is_idle() && channel.is_down());
    assert_eq!(transfer.drain().count(), 6);
    assert_eq!(pool.available(), 6);
}

#[test]
fn set_that_is_dropped_or_forgotten_has_nothing_in_flight() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    drop(writes(channel.id(), &pool, 2));
    assert_eq!(pool.available(), 8);
    let _forgotten = mem::ManuallyDrop::new(writes(channel.id(), &pool, 2));
    let mut ended = writes(channel.id(), &pool, 6);
    assert!(bounded(|| channel.transfer(&mut ended, by(SOON))).is_err());
    let _ended = mem::ManuallyDrop::new(ended);
    assert_eq!((in_flight(), pool.available()), (0, 0));
}

fn group(channels: u32, budget: Option<u32>) -> (ChannelGroup, Vec<ChannelId>) {
    group_of(channels, 4, budget)
}

/// A group of channels with queues for this number of sends.
pub(crate) fn group_of(
    channels: u32,
    sends: u32,
    budget: Option<u32>,
) -> (ChannelGroup, Vec<ChannelId>) {
    let builder = Channel::builder(&pd()).max_send_wr(sends).max_recv_wr(4);
    let builder = builder.in_flight(budget).drain_timeout(DRAIN);
    crate::fake_device::group_of(builder, channels)
}

#[test]
fn rail_that_stalls_is_aborted_alone() {
    let (mut group, ids) = group(3, None);
    let pool = BufferPool::new(group.pd(), 64, 30).unwrap();
    let stalls = group.channel(ids[1]).unwrap().endpoint().unwrap().qp_num();
    let mut transfer = Transfer::with_capacity(30);
    (0..30).for_each(|at| transfer.add(ids[at % 3], write(&pool)));
    // The device completes 20 of them before that, under Miri too.
    let soon = if cfg!(miri) {
        SOON.map(|soon| 4 * soon)
    } else {
        SOON
    };
    let ended = beside_a_device(
        true,
        |_, request| (request.qp_num != stalls).then_some(IBV_WC_SUCCESS),
        || group.transfer(&mut transfer, by(soon)),
    );
    assert!(matches!(
        ended,
        Err(TransferError::Failed { failed: 10, .. })
    ));
    let (successes, errors) = sorted(&mut transfer);
    assert!(successes.iter().all(|index| index % 3 != 1) && successes.len() == 20);
    assert!(errors.iter().all(|(index, _)| index % 3 == 1));
    let down: Vec<_> = ids
        .iter()
        .map(|id| group.channel(*id).unwrap().is_down())
        .collect();
    assert_eq!((down, in_flight()), (vec![false, true, false], 0));
}

#[test]
fn set_waits_for_room_in_the_budget_of_its_group() {
    let (mut group, ids) = group(3, Some(8));
    let pool = BufferPool::new(group.pd(), 64, 30).unwrap();
    let mut transfer = Transfer::with_capacity(30);
    (0..30).for_each(|at| transfer.add(ids[at % 3], write(&pool)));
    beside_a_device(
        true,
        |_, _| Some(IBV_WC_SUCCESS),
        || group.transfer(&mut transfer, None).unwrap(),
    );
    assert_eq!(sorted(&mut transfer).0.len(), 30);
}

#[test]
fn operation_that_cannot_be_posted_is_rejected_and_not_waited_for() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 12).unwrap();
    // Outcomes that are not taken have all slots.
    for _ in 0..2 {
        (0..4).for_each(|_| drop(channel.start_send(pool.take().unwrap())));
        let done = posted();
        forget_the_past();
        done.into_iter().for_each(succeeds);
        channel.engine_mut().drive();
    }
    let other = connected(Channel::builder(channel.pd()).build().unwrap());
    let mut transfer = writes(channel.id(), &pool, 2);
    transfer.add(other.id(), write(&pool));
    let inline = Outgoing::send(pool.take().unwrap()).inline();
    transfer.add(channel.id(), inline);
    let ended = bounded(|| channel.transfer(&mut transfer, None));
    assert!(ended.is_err() && !channel.is_down());
    let (_, errors) = sorted(&mut transfer);
    let expected = [
        RejectReason::Untaken,
        RejectReason::Untaken,
        RejectReason::Down(DownReason::Closed),
        RejectReason::Untaken,
    ];
    for ((_, error), expected) in errors.iter().zip(expected) {
        assert!(
            matches!(error, TransportError::Rejected(found) if *found == expected),
            "{error}"
        );
    }
    assert_eq!(errors.len(), 4);
}

#[test]
fn operation_that_a_layer_above_has_begun_is_not_waited_for() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let mut transfer = writes(channel.id(), &pool, 1);
    let _begun = transfer.next_piece(channel.engine_mut()).unwrap();
    let ended = bounded(|| channel.transfer(&mut transfer, None));
    let stuck = TransferError::Stuck { stuck: 1, of: 1 };
    assert_eq!(ended.unwrap_err().to_string(), stuck.to_string());
    // Too late: its outcome is there.
    let late = Err(TransportError::Stuck);
    transfer.end_piece((0, 0), late, (OwnedBuffer::empty(), None), None);
    assert!(transfer.drain().all(|outcome| outcome.buffer.is_none()));
}
