//! `close`: what was sent finishes, the rest is ended in bounded time, and the answer is whether the device is
//! done with the memory.

use std::time::Duration;

use verbs_channel::error::{CloseError, Queue};
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_REM_ACCESS_ERR};
use verbs_channel::{BufferPool, DownReason, Error, TransportError};
use verbs_harness::logged::{lines, listen};

use crate::fake_device::{
    DRAIN, bounded, called, channel, ends, flushes, moved, posted, refuse, region, succeeds,
};

const TIMEOUT: Duration = Duration::from_millis(20);

/// Whether a queue pair was moved to `ERR`.
fn flushed() -> bool {
    moved().contains(&IBV_QPS_ERR)
}

#[test]
fn close_waits_for_what_was_sent_and_aborts_receives_without_an_error() {
    for receives in [0, 1] {
        let mut channel = channel();
        let pool = BufferPool::new(channel.pd(), 64, 2).unwrap();
        let _sent = channel.start_send(pool.take().unwrap()).unwrap();
        for _ in 0..receives {
            channel.start_receive(pool.take().unwrap()).unwrap();
        }
        succeeds(posted()[0]);
        // A receive is not flushed in time.
        bounded(|| channel.close()).unwrap();
        assert_eq!((flushed(), called("ibv_destroy_qp")), (receives > 0, true));
        assert_eq!(pool.available(), 2);
    }
}

#[test]
fn close_ends_unfinished_operations_after_the_timeout() {
    let mut channel = channel();
    channel.set_timeout(Some(TIMEOUT));
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let _sent = channel.start_send(pool.take().unwrap()).unwrap();
    let start = std::time::Instant::now();
    let error = bounded(|| channel.close()).unwrap_err();
    // No flush comes either.
    assert!(start.elapsed() >= TIMEOUT + DRAIN);
    let (queue, after) = (Queue::Send, TIMEOUT);
    let reason = DownReason::TimedOut { queue, after };
    assert_eq!(error, CloseError::Down(reason));
    assert_eq!(error.down_reason(), Some(reason));
    assert_eq!(Error::from(error).down_reason(), Some(reason));
    assert!(called("ibv_destroy_qp"));
    assert_eq!(pool.available(), 1, "the device is done with it");
}

#[test]
fn failure_of_what_was_sent_is_the_answer_without_waiting_longer() {
    let mut channel = channel();
    let _sent = channel.start_send(region(&channel)).unwrap();
    ends(posted()[0], IBV_WC_REM_ACCESS_ERR);
    // There is no timeout: a wait would hang.
    let error = bounded(|| channel.close()).unwrap_err();
    let reason = error.down_reason().unwrap();
    assert!(matches!(reason, DownReason::Work { .. }), "{reason:?}");
    assert!(!error.is_stuck() && called("ibv_destroy_qp"));
}

#[test]
fn channel_that_is_down_already_does_not_wait() {
    for (reason, is_error) in [
        (DownReason::PeerClosed, false),
        (DownReason::Closed, false),
        (DownReason::PeerLost, true),
        (DownReason::Abandoned, true),
    ] {
        let mut channel = channel();
        let id = channel.id();
        let _sent = channel.start_send(region(&channel)).unwrap();
        channel.engine_mut().flush(id, reason).unwrap();
        // It is not flushed, and there is no timeout.
        let closed = bounded(|| channel.close());
        let expected = if is_error {
            Err(CloseError::Down(reason))
        } else {
            Ok(())
        };
        assert_eq!(closed, expected);
        assert!(called("ibv_destroy_qp"));
    }
}

#[test]
fn channel_whose_queue_pair_is_gone_already_is_closed() {
    let mut channel = channel();
    let _left = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_modify_qp", 1);
    channel.abort();
    assert!(channel.endpoint().is_none());
    channel.close().unwrap();
}

#[test]
fn stuck_channel_is_not_closed_even_if_nothing_is_in_flight() {
    listen();
    for in_flight in [true, false] {
        let mut channel = channel();
        let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
        if in_flight {
            let _left = channel.start_receive(pool.take().unwrap()).unwrap();
            flushes(posted()[0]);
            refuse("ibv_modify_qp", 1);
        }
        refuse("ibv_destroy_qp", 1);
        let error = channel.close().unwrap_err();
        assert_eq!(error, CloseError::Stuck);
        assert!(error.is_stuck() && error.down_reason().is_none());
        let error = Error::from(error);
        assert!(matches!(error, Error::Transport(TransportError::Stuck)));
        assert_eq!(pool.available(), 1);
        assert!(
            lines()
                .iter()
                .any(|line| line.starts_with("ERROR: leaked an object without buffers"))
        );
    }
}
