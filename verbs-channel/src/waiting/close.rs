//! Closing a channel in order.
//!
//! ```text
//! wait for what was sent ──────── in timeout ────────► goes on
//!   │ the timeout passes, or the channel goes down
//!   ▼
//! the ladder of an abort, for what is in flight: bounded by the drain timeout
//!   ▼
//! destroy the queue pair ──────── destroyed ─────────► closed; or down, with the first reason
//!   │ the driver fails to
//!   ▼
//! owned buffers are leaked, which is logged ─────────► stuck
//! ```

use super::{Ladder as _, Poller, Steps as _};
use crate::engine::{Engine, Member};
use crate::error::{CloseError, DownReason, Queue};

impl Poller {
    /// Lets what a member sends finish, ends the rest, and destroys the queue pair.
    pub(crate) fn close(&mut self, at: u32) -> Result<(), CloseError> {
        if self.engine.is_in_child() {
            self.engine.destroy_now(at, DownReason::Closed);
            return Err(CloseError::OtherProcess);
        }
        if self.engine.member(at).is_none() {
            // It was removed, and all its outcomes were taken.
            return match self.engine.has_stuck() {
                true => Err(CloseError::Stuck),
                false => Ok(()),
            };
        }
        let down = |engine: &Engine| engine.member(at).and_then(Member::down);
        let expected = [Some(DownReason::PeerClosed), Some(DownReason::Closed)];
        let is_expected = expected.contains(&down(&self.engine));
        let timeout = self.config.timeout;
        let has_sent = self.wait_until(timeout, |engine| {
            down(engine).is_some()
                || engine
                    .member(at)
                    .is_none_or(|member| member.credits.in_flight(Queue::Send) == 0)
        });
        let down = down(&self.engine).or_else(|| {
            let queue = Queue::Send;
            let after = timeout.unwrap_or_default();
            (!has_sent).then_some(DownReason::TimedOut { queue, after })
        });
        let reason = down.unwrap_or(DownReason::Closed);
        if !self.engine.is_idle_at(at) {
            self.abort(at, reason);
        }
        self.engine.destroy_now(at, reason);
        self.finish_destroying();
        self.engine.remove_at(at);
        let destroyed = self.engine.member(at).and_then(Member::destroyed);
        // It has not been destroyed if a layer above has taken it out.
        destroyed.unwrap_or(Err(CloseError::Stuck))?;
        down.filter(|_| !is_expected)
            .map_or(Ok(()), |reason| Err(CloseError::Down(reason)))
    }
}
