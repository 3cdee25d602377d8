//! The steps in which operations end, and which completions count.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR};
use verbs_channel::{DownReason, Outgoing, ScopeError, TransportError};

use crate::fake_device::{
    DRAIN, bounded, called, calls, channel, ends, flushes, moved, posted, refuse, region, succeeds,
};

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
        bounded(|| channel.run(Outgoing::send(from.gather_element(..).unwrap()).timeout(deadline)));
    // No flush comes: the deadline and the drain timeout pass.
    assert!(start.elapsed() >= deadline + DRAIN);
    let timed_out = timed_out(deadline);
    assert!(matches!(error, Err(error) if error == timed_out));
    assert_eq!(moved(), [IBV_QPS_ERR]);
    assert!(called("ibv_destroy_qp"));
    assert!(!called("ibv_dereg_mr"), "the region is still ours");
    drop(from);
    assert!(
        calls().iter().position(|verb| *verb == "ibv_destroy_qp")
            < calls().iter().position(|verb| *verb == "ibv_dereg_mr")
    );
}

#[test]
fn batch_waits_for_the_shortest_timeout_of_its_requests() {
    let mut channel = channel();
    let from = region(&channel);
    let send = || Outgoing::send(from.gather_element(..).unwrap());
    let [short, long] = [20, 60_000].map(Duration::from_millis);
    let batch = [send(), send().timeout(long), send().timeout(short)];
    let error = bounded(|| channel.run_batch(batch));
    assert_eq!(error, Err(timed_out(short)));
}

#[test]
fn flushed_queue_pair_is_not_destroyed() {
    let mut channel = channel();
    let owned = channel.start_receive(region(&channel)).unwrap();
    flushes(posted()[0]);
    channel.abort();
    assert_eq!(moved(), [IBV_QPS_ERR]);
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
