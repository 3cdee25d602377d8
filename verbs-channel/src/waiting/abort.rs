//! Aborting a channel: the ladder, each step bounded.
//!
//! ```text
//! wait for the completion ── in time ──────────────────────────────► success, or a work error
//!   │ deadline, a scope that failed
//!   ▼
//! queue pair to ERROR, drain the flushes ── within drain_timeout ──► aborted, or flushed
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ── the device touches its buffers no more ──► aborted
//!   │ even that is refused
//!   ▼
//! owned buffers are leaked, and the log says so ───────────────────► stuck
//! with borrowed buffers in flight the process is aborted
//! ```
//!
//! A borrow is released only at the end of the ladder.

use super::Poller;
use crate::error::DownReason;

impl Poller {
    /// Takes the ladder from its second step, for everything that is in flight on a member.
    pub(crate) fn abort(&mut self, at: u32, reason: DownReason) {
        if self.engine.flush_at(at, reason) {
            let drain_timeout = Some(self.config.drain_timeout);
            if self.wait_until(drain_timeout, |engine| engine.is_idle_at(at)) {
                return;
            }
        }
        self.engine.destroy_at(at, reason);
    }

    /// Aborts a member if it has borrowed buffers in flight.
    pub(crate) fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        if self.engine.has_borrowed_in_flight(at) {
            self.abort(at, reason);
        }
    }
}
