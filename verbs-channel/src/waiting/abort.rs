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

use super::Poller;
use crate::engine::{Id, abort_with};
use crate::error::{DownReason, Queue};

impl Poller {
    /// Takes the ladder from its second step, for all operations in flight on a member.
    pub(crate) fn abort(&mut self, at: u32, reason: DownReason) {
        if self.engine.flush_at(at, reason) {
            let drain_timeout = Some(self.config.drain_timeout);
            if self.wait_until(drain_timeout, |engine| engine.is_idle_at(at)) {
                return;
            }
        }
        self.engine.destroy_now(at, reason);
    }

    /// Aborts a member if it has borrowed buffers in flight. What has completed by now is no reason to.
    pub(crate) fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        if self.engine.has_borrowed_in_flight(at) {
            self.engine.dispatch_all();
        }
        if self.engine.has_borrowed_in_flight(at) {
            self.abort(at, reason);
            if self.engine.has_borrowed_in_flight(at) {
                abort_with(format_args!(
                    "borrowed buffers are in flight on a queue pair that is gone: aborting the process"
                ));
            }
        }
    }

    /// The same after an operation on borrowed buffers did not complete within its timeout.
    pub(crate) fn abort_late(&mut self, at: u32, id: Id, timeout: Option<Duration>) {
        let queue = self.engine.borrowed_in_flight(id);
        let reason = DownReason::TimedOut {
            // It is in flight: nothing was polled since.
            queue: queue.unwrap_or(Queue::Send),
            after: timeout.unwrap_or_default(),
        };
        self.abort_borrowed(at, reason);
    }
}
