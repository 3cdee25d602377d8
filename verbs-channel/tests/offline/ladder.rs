//! The steps in which operations end, and which completions count.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::verbs_core::WcStatus;
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS};
use verbs_channel::{DownReason, Error, Outgoing, Queue, ScopeError, TransportError};

use crate::fake_device::{
    DRAIN, bounded, called, calls, channel, ends, flushes, posted, refuse, region, succeeds,
};

/// The states that queue pairs were moved to.
fn moved() -> Vec<u32> {
    with(|library| {
        library
            .modified
            .iter()
            .map(|(attr, _)| attr.qp_state.0)
            .collect()
    })
}

/// The timeout of an operation of the send queue.
const fn timed_out(after: Duration) -> TransportError {
    TransportError::Aborted(DownReason::TimedOut {
        queue: Queue::Send,
        after,
    })
}

#[test]
fn deadline_moves_the_queue_pair_to_error_then_destroys_it() {
    let mut channel = channel();
    let from = region(&channel);
    let start = std::time::Instant::now();
    let deadline = Duration::from_millis(20);
    let error =
        bounded(|| channel.run_timeout(Outgoing::send(from.gather_element(..).unwrap()), deadline));
    // No flush comes: the deadline and the drain timeout pass.
    assert!(start.elapsed() >= deadline + DRAIN);
    let timed_out = timed_out(deadline);
    assert!(matches!(error, Err(Error::Transport(error)) if error == timed_out));
    assert_eq!(moved(), [IBV_QPS_ERR.0]);
    assert!(called("ibv_destroy_qp"));
    assert!(!called("ibv_dereg_mr"), "the region is still ours");
    drop(from);
    assert!(
        calls().iter().position(|verb| *verb == "ibv_destroy_qp")
            < calls().iter().position(|verb| *verb == "ibv_dereg_mr")
    );
}

#[test]
fn flushed_queue_pair_is_not_destroyed() {
    let mut channel = channel();
    let owned = channel.start_receive(region(&channel)).unwrap();
    flushes(posted()[0]);
    channel.abort();
    assert_eq!(moved(), [IBV_QPS_ERR.0]);
    assert!(!called("ibv_destroy_qp"));
    let ended = channel.poll(owned).unwrap().unwrap();
    assert_eq!(
        ended.result.unwrap_err(),
        TransportError::Aborted(DownReason::Closed)
    );
    assert!(ended.buffer.is_some());
}

#[test]
fn operation_that_succeeded_before_the_flush_is_a_success() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_receive(region(&channel)).unwrap(),
    ];
    succeeds(posted()[0]);
    flushes(posted()[1]);
    channel.abort();
    let [first, second] = tickets.map(|ticket| channel.poll(ticket).unwrap().unwrap());
    assert!(first.result.is_ok() && second.result.is_err());
}

#[test]
fn completions_left_by_a_destroyed_queue_pair_are_dispatched() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_receive(region(&channel)).unwrap(),
    ];
    succeeds(posted()[1]);
    refuse("ibv_modify_qp", 1);
    channel.abort();
    assert!(called("ibv_destroy_qp"));
    let [first, second] = tickets.map(|ticket| channel.poll(ticket).unwrap().unwrap());
    assert!(first.result.is_err() && second.result.is_ok());
}

#[test]
fn queue_pair_that_cannot_be_moved_to_error_is_destroyed_at_once() {
    let mut channel = channel();
    let _ticket = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_modify_qp", 1);
    channel.abort();
    // There is no wait for flushes, as none can come: one poll after the end.
    assert_eq!(with(|library| library.rooms.len()), 1);
    assert!(called("ibv_destroy_qp"));
}

#[test]
fn drop_destroys_the_queue_pair_before_it_releases_the_buffers() {
    let mut channel = channel();
    let tickets = [
        channel.start_receive(region(&channel)).unwrap(),
        channel.start_send(region(&channel)).unwrap(),
    ];
    assert_ne!(tickets[0], tickets[1]);
    crate::fake_device::forget_the_past();
    drop(channel);
    assert_eq!(
        calls()[..3],
        ["ibv_destroy_qp", "ibv_dereg_mr", "ibv_dereg_mr"]
    );
    fake_libibverbs::assert_all_is_well();
}

#[test]
fn unknown_completions_are_ignored() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    let [wr_id] = posted()[..] else {
        panic!("one was posted");
    };
    // An unknown slot, the next generation, another generation, a part of a batch.
    for stranger in [
        wr_id + 1,
        wr_id + (1 << 32),
        u64::MAX,
        0xdead_beef,
        wr_id | 1 << 31,
    ] {
        succeeds(stranger);
        assert!(channel.poll(ticket).unwrap().is_none(), "{stranger:#x}");
    }
    succeeds(wr_id);
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
    // The same completion twice: the second is ignored, whichever operation has the slot.
    let again = channel.start_receive(region(&channel)).unwrap();
    succeeds(wr_id);
    ends(wr_id, IBV_WC_REM_ACCESS_ERR);
    assert!(channel.poll(again).unwrap().is_none());
    assert!(!channel.is_down());
    succeeds(posted()[1]);
    channel.poll(again).unwrap().unwrap().result.unwrap();
}

#[test]
fn a_batch_is_one_doorbell_and_one_completion() {
    let mut channel = channel();
    let from = region(&channel);
    let batch = [Outgoing::send(from.gather_element(..).unwrap()); 4];
    for _ in 0..if cfg!(miri) { 10 } else { 100 } {
        crate::fake_device::forget_the_past();
        let ended = channel.scope(|scope| {
            let mut batch = scope.post_batch(batch).unwrap();
            let signaled = with(|library| {
                assert_eq!(library.posted.len(), 1, "doorbells");
                let flags = library.posted[0].iter().map(|posted| posted.send_flags & 2);
                flags.collect::<Vec<_>>()
            });
            assert_eq!(signaled, [0, 0, 0, 2]);
            // The queue is full until the last request has completed.
            assert!(
                scope
                    .post_send(from.gather_element(..).unwrap())
                    .unwrap_err()
                    .is_backpressure()
            );
            assert!(batch.poll().is_none());
            ends(posted()[3], IBV_WC_SUCCESS);
            batch.poll().unwrap().unwrap();
            Ok::<_, ()>(())
        });
        ended.unwrap();
    }
}

#[test]
fn a_batch_that_fails_in_its_middle_ends_when_its_last_is_flushed() {
    let mut channel = channel();
    let from = region(&channel);
    let batch = [Outgoing::send(from.gather_element(..).unwrap()); 4];
    let ended = channel.scope(|scope| {
        let mut batch = scope.post_batch(batch).unwrap();
        let numbers = posted();
        ends(numbers[1], IBV_WC_REM_ACCESS_ERR);
        assert!(batch.poll().is_none(), "the device still has the rest");
        flushes(numbers[2]);
        assert!(batch.poll().is_none(), "the device still has the rest");
        flushes(numbers[3]);
        Ok::<_, ()>(batch.poll().unwrap().unwrap_err())
    });
    let TransportError::Work { error, .. } = ended.unwrap() else {
        panic!("no work error");
    };
    assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(
        channel.down_reason(),
        Some(DownReason::Work {
            queue: Queue::Send,
            error
        })
    );
}

#[test]
fn detached_operation_takes_no_slot_once_it_has_succeeded() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..).unwrap();
        let mut held = scope.post_send(element).unwrap();
        let held_wr_id = posted()[0];
        // Far more than there are slots.
        for round in 0..100 {
            crate::fake_device::forget_the_past();
            drop(scope.post_send(element).unwrap());
            if round % 2 == 0 {
                drop(scope.post_send(element).unwrap());
            }
            posted().into_iter().for_each(succeeds);
            assert!(scope.poll() > 0);
        }
        // All operations but one have completed, and that one is not detached.
        assert!(held.poll().is_none());
        succeeds(held_wr_id);
        held.poll().unwrap().unwrap();
        Ok::<_, ()>(())
    });
    ended.unwrap();
    assert!(channel.is_idle());
}

#[test]
fn operation_that_succeeds_as_its_scope_ends_does_not_fail_it() {
    let mut channel = channel();
    let from = region(&channel);
    channel.set_timeout(Some(Duration::from_millis(20)));
    let ended = channel.scope(|scope| {
        for _ in 0..2 {
            let _left = scope.post_send(from.gather_element(..).unwrap()).unwrap();
        }
        // It is polled when there is no handle for it; the other never completes.
        succeeds(posted()[0]);
        Ok::<_, ()>(())
    });
    let Err(ScopeError::AutoPollError(error)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(error, timed_out(Duration::from_millis(20)));
}

#[test]
fn detached_operation_that_fails_fails_its_scope() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..).unwrap();
        for _ in 0..4 {
            drop(scope.post_send(element).unwrap());
        }
        let numbers = posted();
        succeeds(numbers[0]);
        ends(numbers[1], IBV_WC_REM_ACCESS_ERR);
        flushes(numbers[2]);
        assert_eq!(scope.poll(), 3);
        assert!(scope.post_send(element).is_err(), "it is down");
        // The last is in flight: the scope waits for it.
        flushes(numbers[3]);
        Ok::<_, ()>(())
    });
    let Err(ScopeError::AutoPollError(TransportError::Work { error, .. })) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
    assert!(channel.is_idle());
}
