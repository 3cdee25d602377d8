//! How scopes end: they wait for the operations in flight, or abort them.

use super::deadline::Deadline;
use super::{Ladder, Poller};
use crate::engine::{Engine, Id};
use crate::error::{DownReason, Queue, TransportError};

/// How scopes end.
pub(crate) trait EndScope: Ladder {
    /// Ends a scope whose closure returned `Ok`: waits for its operations, up to the channel's
    /// timeout. The first failure whose outcome was not taken fails the scope.
    #[inline(never)]
    fn finish_scope(&mut self, at: u32, end: ScopeEnd) -> Result<(), TransportError> {
        if self.step(|poller| poller.engine.is_in_child()) {
            return self.end_scope_in_child(at, end.receives);
        }
        let timeout = self.step(|poller| poller.config.timeout);
        let deadline = Deadline::after(timeout);
        if end.began_idle && end.receives == Leftover::Awaited {
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
        let mut next = self.step(|poller| poller.engine.flight().first(at));
        while let Some(id) = next {
            let queue = self.step(|poller| poller.engine.flight().borrowed_in_flight(id));
            let is_awaited = match queue {
                Some(Queue::Receive) => end.receives == Leftover::Awaited,
                Some(Queue::Send) => true,
                None => false,
            };
            if is_awaited && !self.wait_before(deadline, |engine| !engine.is_pending(id)) {
                self.abort_late(at, id, timeout);
            }
            next = self.step(|poller| poller.engine.flight().after(id));
        }
        // The receives in flight, if any.
        self.abort_borrowed(at, DownReason::Closed);
        self.step(|poller| poller.end_scope(at, end.receives))
    }

    /// Ends a scope in the child of a fork: the operations in flight are the parent's, and the device does not
    /// access this process's memory.
    #[cold]
    #[inline(never)]
    fn end_scope_in_child(&mut self, at: u32, receives: Leftover) -> Result<(), TransportError> {
        self.abort_borrowed(at, DownReason::Closed);
        self.step(|poller| poller.end_scope(at, receives))
    }

    /// Ends a scope whose closure has to take all outcomes: aborts its operations in flight.
    fn abort_scope(&mut self, at: u32) -> Result<(), TransportError> {
        if self.step(|poller| poller.engine.is_in_child()) {
            return self.end_scope_in_child(at, Leftover::Awaited);
        }
        self.step(|poller| poller.engine.drive());
        self.abort_borrowed(at, DownReason::Abandoned);
        self.step(|poller| poller.end_scope(at, Leftover::Awaited))
    }

    /// Ends a scope whose closure failed: waits for its operations of the send queue, up to the drain
    /// timeout, and then aborts those in flight. It does not wait for receives.
    #[cold]
    fn abandon_scope(&mut self, at: u32) {
        if self.step(|poller| poller.engine.is_in_child()) {
            let _reported_by_down_reason = self.end_scope_in_child(at, Leftover::Awaited);
            return;
        }
        let drain_timeout = self.step(|poller| poller.config.drain_timeout);
        let deadline = Deadline::after(Some(drain_timeout));
        let mut next = self.step(|poller| poller.engine.flight().first(at));
        while let Some(id) = next {
            let queue = self.step(|poller| poller.engine.flight().borrowed_in_flight(id));
            if queue == Some(Queue::Send)
                && !self.wait_before(deadline, |engine| !engine.is_pending(id))
            {
                break;
            }
            next = self.step(|poller| poller.engine.flight().after(id));
        }
        self.abort_borrowed(at, DownReason::Abandoned);
        // The closure's own failure is returned; this one is the channel's down reason.
        let _reported_by_down_reason = self.step(|poller| poller.end_scope(at, Leftover::Awaited));
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
    fn end_scope(&mut self, at: u32, receives: Leftover) -> Result<(), TransportError> {
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

/// How a scope whose closure returned `Ok` ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScopeEnd {
    /// Nothing was in flight when it began.
    pub(crate) began_idle: bool,
    /// How its receives in flight end.
    pub(crate) receives: Leftover,
}

/// How receives end that are in flight when the closure of a scope returns `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// The scope waits for them.
    Awaited,
    /// The connection is closed, which aborts them.
    Closed,
}
