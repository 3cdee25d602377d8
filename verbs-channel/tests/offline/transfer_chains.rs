//! Transfers whose requests share doorbells, those that are split, and those that another thread aborts.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{in_flight, with};
use verbs_channel::engine::TransferError;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR,
};
use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion};
use verbs_channel::{
    BufferPool, Channel, DownReason, Incoming, Outgoing, RejectReason, SharedMemory, Transfer,
    TransportError,
};

use crate::fake_device::{DRAIN, LONG, bounded, connected, forget_the_past, pd, posted, remote};
use crate::transfers::{beside_a_device, by, sorted, write, writes};

const PATIENCE: Option<Duration> = Some(LONG);

/// A channel with room for this number of sends.
fn deep(sends: u32) -> Channel {
    let builder = Channel::builder(&pd()).max_send_wr(sends).max_recv_wr(4);
    connected(builder.drain_timeout(DRAIN).build().unwrap())
}

#[test]
fn requests_share_doorbells_and_completions() {
    let mut channel = deep(64);
    let pool = BufferPool::new(channel.pd(), 64, 200).unwrap();
    with(|library| library.completes_sends = true);
    let mut transfer = Transfer::with_capacity(200);
    for round in 0..3 {
        forget_the_past();
        (0..200).for_each(|_| transfer.add(channel.id(), write(&pool)));
        let mut seen = Vec::new();
        channel
            .transfer_with(&mut transfer, by(PATIENCE), |index, is_success| {
                assert!(is_success);
                seen.push(index);
            })
            .unwrap();
        assert_eq!(seen, (0..200).collect::<Vec<_>>(), "round {round}");
        let (doorbells, requests) =
            with(|library| (library.posted.len(), library.posted.concat().len()));
        assert_eq!((doorbells, requests), (200_usize.div_ceil(16), 200));
        assert_eq!(sorted(&mut transfer).0.len(), 200);
        assert_eq!((in_flight(), pool.available()), (0, 200));
    }
}

#[test]
fn failure_within_a_chain_tells_which_operations_are_done() {
    for failed in [0, 1, 15, 16, 21, 39] {
        let mut channel = deep(64);
        let pool = BufferPool::new(channel.pd(), 64, 40).unwrap();
        let mut transfer = writes(channel.id(), &pool, 40);
        let ended = beside_a_device(
            true,
            |index, _| match index {
                index if index < failed => Some(IBV_WC_SUCCESS),
                index if index == failed => Some(IBV_WC_REM_ACCESS_ERR),
                _ => Some(IBV_WC_WR_FLUSH_ERR),
            },
            || channel.transfer(&mut transfer, by(PATIENCE)),
        );
        let Err(TransferError::Failed { first, .. }) = ended else {
            panic!("{ended:?}");
        };
        assert!(matches!(first, TransportError::Work { .. }), "{first}");
        let (successes, errors) = sorted(&mut transfer);
        assert_eq!(successes, (0..failed).collect::<Vec<_>>());
        assert!(
            errors[1..]
                .iter()
                .all(|(_, error)| error.down_reason().is_some())
        );
        assert_eq!((in_flight(), pool.available()), (0, 40));
    }
}

#[test]
fn only_the_operation_that_cannot_be_posted_is_rejected() {
    let mut channel = deep(64);
    let pool = BufferPool::new(channel.pd(), 64, 20).unwrap();
    let other = BufferPool::new(&pd(), 64, 1).unwrap();
    with(|library| library.completes_sends = true);
    let mut transfer = writes(channel.id(), &pool, 7);
    transfer.add(channel.id(), write(&other));
    let short = RemoteMemoryRegion::new(0x1000, 8, 7).unwrap();
    transfer.add(channel.id(), Outgoing::write(pool.take().unwrap(), short));
    (0..7).for_each(|_| transfer.add(channel.id(), write(&pool)));
    bounded(|| channel.transfer(&mut transfer, by(PATIENCE))).unwrap_err();
    let (successes, errors) = sorted(&mut transfer);
    assert_eq!(successes, (0..7).chain(9..16).collect::<Vec<_>>());
    let [(7, other), (8, short)] = &errors[..] else {
        panic!("{errors:?}");
    };
    let rejected = |error: &TransportError| match error {
        TransportError::Rejected(reason) => Some(*reason),
        _ => None,
    };
    assert_eq!(rejected(other), Some(RejectReason::OtherDomain));
    let short = rejected(short);
    assert!(matches!(short, Some(RejectReason::RemoteTooShort { .. })));
    assert!(!channel.is_down());
}

#[test]
fn longer_requests_than_the_port_sends_are_split() {
    const MAX: u32 = 1000;
    with(|library| library.ports[0].attr.max_msg_sz = MAX);
    let mut channel = deep(16);
    with(|library| library.completes_sends = true);
    let memory = SharedMemory::register([channel.pd()], vec![0_u8; 8192], AccessFlags::empty());
    let memory = memory.unwrap();
    let pool = BufferPool::new(channel.pd(), 4096, 1).unwrap();
    let mut transfer = Transfer::with_capacity(4);
    for _ in 0..2 {
        forget_the_past();
        let page = memory.slice(100..200).unwrap();
        transfer.add(channel.id(), Outgoing::write(page, remote()));
        let long = memory.slice(2000..6500).unwrap();
        transfer.add(channel.id(), Incoming::read(long, remote()));
        let block = pool.take().unwrap();
        transfer.add(channel.id(), Outgoing::write(block, remote()).immediate(7));
        // A message is not split.
        let message = memory.slice(..2000).unwrap();
        transfer.add(channel.id(), Outgoing::send(message));
        let mut seen = Vec::new();
        let ended = channel.transfer_with(&mut transfer, by(PATIENCE), |index, is_success| {
            seen.push((index, is_success));
        });
        ended.unwrap_err();
        seen.sort_unstable();
        assert_eq!(seen, [(0, true), (1, true), (2, true), (3, false)]);
        let posted = with(|library| library.posted.concat());
        let parts: Vec<_> = posted.iter().map(|request| request.list[0].1).collect();
        assert_eq!(
            parts,
            [100, 1000, 1000, 1000, 1000, 500, 1000, 1000, 1000, 1000, 96]
        );
        let starts: Vec<_> = posted.iter().map(|request| request.list[0].0).collect();
        assert!(starts[1..6].windows(2).all(|two| two[0] + 1000 == two[1]));
        // Parts have no numbers.
        let page = memory.slice(..8).unwrap();
        transfer.add(channel.id(), Outgoing::write(page, remote()));
        let ended = channel.transfer_with(&mut transfer, by(PATIENCE), |index, is_success| {
            seen.push((index, is_success));
        });
        ended.unwrap_err();
        assert_eq!(seen[4..], [(4, true)]);
        assert_eq!(transfer.len(), 5);
        let outcomes: Vec<_> = transfer.drain().collect();
        assert_eq!(outcomes[4].index, 4);
        let offset = |at: usize| outcomes[at].buffer.as_ref().unwrap().capacity();
        assert_eq!([0, 1, 2, 3].map(offset), [100, 4500, 4096, 2000]);
        assert!(outcomes[..3].iter().all(|outcome| outcome.result.is_ok()));
        drop(outcomes);
        assert!(memory.is_idle() && pool.available() == 1);
    }
}

#[test]
fn part_that_fails_fails_its_operation_and_returns_its_memory() {
    with(|library| library.ports[0].attr.max_msg_sz = 1000);
    let mut channel = deep(64);
    let pool = BufferPool::new(channel.pd(), 4096, 3).unwrap();
    let mut transfer = writes(channel.id(), &pool, 3);
    let ended = beside_a_device(
        true,
        |index, _| match index {
            0..7 => Some(IBV_WC_SUCCESS),
            7 => Some(IBV_WC_REM_ACCESS_ERR),
            _ => Some(IBV_WC_WR_FLUSH_ERR),
        },
        || channel.transfer(&mut transfer, by(PATIENCE)),
    );
    assert!(matches!(
        ended,
        Err(TransferError::Failed {
            failed: 2,
            of: 3,
            ..
        })
    ));
    let outcomes: Vec<_> = transfer.drain().collect();
    let done: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.result.is_ok())
        .collect();
    assert_eq!(done, [true, false, false]);
    assert!(outcomes.iter().all(|outcome| outcome.buffer.is_some()));
    drop(outcomes);
    assert_eq!((in_flight(), pool.available()), (0, 3));
}

#[test]
fn operation_of_which_a_part_was_posted_is_aborted_and_not_rejected() {
    for status in [Some(IBV_WC_SUCCESS), Some(IBV_WC_REM_ACCESS_ERR), None] {
        with(|library| library.ports[0].attr.max_msg_sz = 1000);
        let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
        let mut channel = connected(builder.drain_timeout(LONG).build().unwrap());
        let pool = BufferPool::new(channel.pd(), 8192, 1).unwrap();
        let mut transfer = writes(channel.id(), &pool, 1);
        let soon = by(Some(Duration::from_millis(300)));
        let is_flushing = Arc::new(AtomicBool::new(false));
        let flushes = Arc::clone(&is_flushing);
        let before = move |_: &str, state| {
            flushes.fetch_or(state == Some(IBV_QPS_ERR), Ordering::SeqCst);
        };
        with(|library| library.before = Some(Arc::new(before)));
        // Four are in flight then.
        let answer = |_, _: &_| {
            while status.is_some() && !is_flushing.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            status
        };
        let ended = beside_a_device(true, answer, || channel.transfer(&mut transfer, soon));
        let Err(TransferError::Failed { first, .. }) = ended else {
            panic!("{ended:?}");
        };
        let fails = status == Some(IBV_WC_REM_ACCESS_ERR);
        let is_expected = match first {
            TransportError::Aborted(reason) => reason.is_timed_out() && !fails,
            TransportError::Work { .. } => fails,
            _ => false,
        };
        assert!(is_expected, "{status:?}: {first:?}");
        drop(transfer);
        assert_eq!((in_flight(), pool.available()), (0, 1));
    }
}

#[test]
fn another_thread_aborts_a_channel_within_a_transfer_or_a_receive() {
    for is_transfer in [true, false] {
        let mut channel = deep(64);
        let pool = BufferPool::new(channel.pd(), 64, 50).unwrap();
        let mut transfer = writes(channel.id(), &pool, 50);
        let mut inbox = channel.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let handle = channel.abort_handle();
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                handle.clone().abort();
            });
            // The device answers nothing, and flushes nothing.
            if is_transfer {
                let ended = bounded(|| channel.transfer(&mut transfer, None));
                assert_eq!(ended.unwrap_err().down_reason(), Some(DownReason::Closed));
            } else {
                let ended = bounded(|| channel.receive(inbox.scatter_element(..).unwrap()));
                assert_eq!(ended.unwrap_err().down_reason(), Some(DownReason::Closed));
            }
        });
        assert!(begun.elapsed() < LONG / 2);
        assert!(in_flight() == 0 && channel.is_down());
        drop(transfer);
        assert_eq!(pool.available(), 50);
        // It is down: this has no effect.
        handle.abort();
        assert!(channel.next_completed().is_none());
        forget_the_past();
        assert!(posted().is_empty());
    }
}

#[test]
fn panic_of_the_callback_within_a_chain_loses_no_outcome() {
    let mut channel = deep(64);
    let pool = BufferPool::new(channel.pd(), 64, 12).unwrap();
    with(|library| library.completes_sends = true);
    let mut transfer = writes(channel.id(), &pool, 12);
    let caught = panic::catch_unwind(AssertUnwindSafe(|| {
        let panics = |index, _| assert_ne!(index, 3, "the third");
        channel.transfer_with(&mut transfer, by(PATIENCE), panics)
    }));
    caught.unwrap_err();
    let (successes, errors) = sorted(&mut transfer);
    assert_eq!((successes.len(), errors.len()), (12, 0), "{errors:?}");
    assert_eq!((in_flight(), pool.available()), (0, 12));
}

#[test]
fn nothing_behind_a_part_that_is_rejected_is_posted_of_its_operation() {
    with(|library| library.ports[0].attr.max_msg_sz = 1000);
    // Too few for chains.
    let mut channel = deep(4);
    let pool = BufferPool::new(channel.pd(), 4096, 1).unwrap();
    with(|library| library.completes_sends = true);
    forget_the_past();
    let mut transfer = Transfer::default();
    let block = pool.take().unwrap();
    transfer.add(channel.id(), Outgoing::write(block, remote()).immediate(7));
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
    bounded(|| channel.transfer(&mut transfer, by(PATIENCE))).unwrap_err();
    assert!(posted().is_empty(), "{:?}", posted());
    assert_eq!((in_flight(), pool.available()), (0, 0));
    drop(transfer);
}
