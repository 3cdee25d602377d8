//! How scopes end: they wait for the operations in flight, or abort them.

use super::deadline::Deadline;
use super::{Ladder, Poller};
use crate::engine::{Engine, Id};
use crate::error::{DownReason, Queue, TransportError};

/// How scopes end.
pub(crate) trait EndScope: Ladder {
    /// Ends a scope: the device is done with its buffers when this returns. The first failure whose outcome was not
    /// taken fails the scope.
    #[inline(never)]
    fn end_scope(&mut self, at: u32, end: ScopeEnd) -> Result<(), TransportError> {
        let receives = match end {
            ScopeEnd::Finished { receives, .. } => receives,
            ScopeEnd::Manual | ScopeEnd::Failed => Leftover::Awaited,
        };
        let reason = match end {
            // The operations in flight are the parent's, and the device does not access this process's memory.
            _ if self.step(|poller| poller.engine.is_in_child()) => DownReason::Closed,
            ScopeEnd::Finished { began_idle, .. } => {
                let timeout = self.step(|poller| poller.config.timeout);
                let deadline = Deadline::after(timeout);
                if began_idle && receives == Leftover::Awaited {
                    // Everything in flight is the scope's.
                    let has_ended = |engine: &Engine| {
                        let member = engine.member(at);
                        engine.is_idle_at(at) || member.is_none_or(|member| member.down().is_some())
                    };
                    self.wait_before(deadline, has_ended);
                    if self.step(|poller| poller.engine.is_done_and_up(at)) {
                        return Ok(());
                    }
                }
                if let Some(late) = self.wait_for_borrowed(at, deadline, receives) {
                    self.abort_late(at, late, timeout);
                }
                // The receives in flight, if any.
                DownReason::Closed
            }
            ScopeEnd::Failed => {
                let timeout = self.step(|poller| poller.config.drain_timeout);
                let deadline = Deadline::after(Some(timeout));
                let _late = self.wait_for_borrowed(at, deadline, Leftover::Closed);
                DownReason::Abandoned
            }
            ScopeEnd::Manual => {
                self.step(|poller| poller.engine.drive());
                DownReason::Abandoned
            }
        };
        self.abort_borrowed(at, reason);
        self.step(|poller| poller.take_outcomes(at, receives))
    }

    /// Waits for the operations of a scope, and for its receives if they are awaited. Returns one that is late.
    fn wait_for_borrowed(&mut self, at: u32, deadline: Deadline, receives: Leftover) -> Option<Id> {
        let mut next = self.step(|poller| poller.engine.flight().first(at));
        while let Some(id) = next {
            let queue = self.step(|poller| poller.engine.flight().borrowed_in_flight(id));
            let is_awaited = match queue {
                Some(Queue::Receive) => receives == Leftover::Awaited,
                Some(Queue::Send) => true,
                None => false,
            };
            if is_awaited && !self.wait_before(deadline, |engine| !engine.is_pending(id)) {
                return Some(id);
            }
            next = self.step(|poller| poller.engine.flight().after(id));
        }
        None
    }

    /// Waits for an operation of a scope, up to the channel's timeout, and aborts it after that.
    fn wait_or_abort(&mut self, at: u32, id: Id) {
        let timeout = self.step(|poller| poller.config.timeout);
        if !self.wait_for(id, timeout) {
            self.abort_late(at, id, timeout);
        }
    }
}

impl<S: Ladder> EndScope for S {}

impl Poller {
    /// Ends a scope whose closure returned `Ok`, if all of its operations have succeeded.
    #[inline(always)]
    pub(crate) fn has_finished(&mut self, at: u32) -> bool {
        if !self.engine.is_idle_and_up(at) {
            if self.engine.is_in_child() {
                return false;
            }
            let found = self.engine.drive_discarding();
            self.count(found);
        }
        self.engine.is_done_and_up(at)
    }

    /// Takes the untaken outcomes of operations that have all ended. Returns the first failure.
    fn take_outcomes(&mut self, at: u32, receives: Leftover) -> Result<(), TransportError> {
        let mut first: Option<(TransportError, u32)> = None;
        let mut next = self.engine.flight().first(at);
        while let Some(id) = next {
            next = self.engine.flight().after(id);
            let Some(queue) = self.engine.flight().borrowed(id) else {
                continue;
            };
            // With `Leftover::Closed`, a receive that is aborted with the connection has not failed.
            let is_left = |error| {
                receives == Leftover::Closed
                    && queue == Queue::Receive
                    && matches!(error, TransportError::Aborted(_))
            };
            if let Some((error, when)) = self.engine.flight().failure(id)
                && !is_left(error)
                && first.is_none_or(|(_, earliest)| when < earliest)
            {
                first = Some((error, when));
            }
            let _taken = self.engine.release(id);
        }
        first.map_or(Ok(()), |(error, _)| Err(error))
    }
}

/// How a scope ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScopeEnd {
    /// Its closure returned `Ok`: it waits for its operations, up to the channel's timeout.
    Finished {
        /// Nothing was in flight when it began.
        began_idle: bool,
        /// How its receives in flight end.
        receives: Leftover,
    },
    /// Its closure has to take all outcomes, and returned `Ok`: its operations in flight are aborted.
    Manual,
    /// Its closure failed: it waits for its operations of the send queue, up to the drain timeout, and aborts those in
    /// flight then.
    Failed,
}

/// How receives end that are in flight when the closure of a scope returns `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// The scope waits for them.
    Awaited,
    /// The connection is closed, which aborts them.
    Closed,
}
