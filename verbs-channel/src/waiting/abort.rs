//! Aborting a channel: the ladder, each step bounded.
//!
//! ```text
//! wait for the completion ─── in time ─────────────► success, or a work error
//!   │ the deadline passes, or a scope fails
//!   ▼
//! queue pair to ERR, drain ───── in drain_timeout ─► aborted, or a work error
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ─── destroyed ────────────► aborted
//!   │ the driver fails to
//!   ▼
//! owned buffers are leaked, which is logged ───────► stuck
//! borrowed buffers in flight: the process is aborted
//! ```
//!
//! A borrow is released only at the end of the ladder.

use std::time::Duration;

use super::Steps;
use crate::engine::{Id, abort_with};
use crate::error::{DownReason, Queue};

/// The ladder.
pub(crate) trait Ladder: Steps {
    /// Takes the ladder from its second step, for all operations in flight on a member.
    fn abort(&mut self, at: u32, reason: DownReason) {
        let drain_timeout = self.step(|poller| {
            let flushes = poller.engine.flush_at(at, reason);
            flushes.then_some(poller.config.drain_timeout)
        });
        let is_flushed = drain_timeout.is_some()
            && self.wait_until(drain_timeout, |engine| engine.is_idle_at(at));
        if !is_flushed {
            self.step(|poller| poller.engine.destroy_now(at, reason));
        }
        self.finish_destroying();
    }

    /// Aborts a member if it has borrowed buffers in flight. Operations that have completed by now
    /// are no reason to.
    fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        let has_borrowed = self.step(|poller| {
            if poller.engine.flight().has_borrowed_in_flight(at) {
                poller.engine.dispatch_all();
            }
            poller.engine.flight().has_borrowed_in_flight(at)
        });
        if has_borrowed {
            self.abort(at, reason);
            if self.step(|poller| poller.engine.flight().has_borrowed_in_flight(at)) {
                abort_with(format_args!(
                    "borrowed buffers are in flight on a queue pair that is gone: aborting the process"
                ));
            }
        }
    }

    /// The same after an operation on borrowed buffers did not complete within its timeout.
    fn abort_late(&mut self, at: u32, id: Id, timeout: Option<Duration>) {
        let queue = self.step(|poller| poller.engine.flight().borrowed_in_flight(id));
        let reason = DownReason::TimedOut {
            // It is in flight: nothing was polled since.
            queue: queue.unwrap_or(Queue::Send),
            after: timeout.unwrap_or_default(),
        };
        self.abort_borrowed(at, reason);
    }
}

impl<S: Steps> Ladder for S {}
