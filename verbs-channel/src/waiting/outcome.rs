//! Outcomes of operations on owned buffers: polled, or waited for.

use std::time::Duration;

use verbs_core::WorkSuccess;

use super::{Deadline, Poller, Steps as _};
use crate::buffer::OwnedBuffer;
use crate::engine::{Completed, Engine, Message, Outcome, Ticket};
use crate::error::{Error, Queue, Result};

impl Poller {
    /// The outcome of an operation of this member, if it has completed; polls once if it is in flight.
    #[inline(always)]
    pub(crate) fn poll_ticket(&mut self, at: u32, ticket: Ticket) -> Result<Option<Completed>> {
        self.count(1);
        if let Some(completed) = self.engine.poll_in_flight(at, ticket) {
            return Ok(Some(completed));
        }
        let outcome = self.poll_slowly(at, ticket)?;
        Ok(outcome.map(|outcome| Completed::new(ticket, outcome)))
    }

    #[inline(never)]
    fn poll_slowly(&mut self, at: u32, ticket: Ticket) -> Result<Option<Outcome>> {
        if !self.engine.is_done_on(at, ticket)? && self.engine.drive() == 0 {
            self.found_nothing();
        }
        Ok(self.engine.flight.release(ticket.id))
    }

    /// The outcome of an operation of this member, waited for; `None` if `timeout` passes first.
    #[inline(always)]
    pub(crate) fn wait_ticket(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        self.count(1);
        if let Some(completed) = self.engine.poll_in_flight(at, ticket) {
            return Ok(Some(completed));
        }
        let outcome = self.wait_slowly(at, ticket, timeout)?;
        Ok(outcome.map(|outcome| Completed::new(ticket, outcome)))
    }

    #[inline(never)]
    fn wait_slowly(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Outcome>> {
        if !self.engine.is_done_on(at, ticket)? && !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.engine.flight.release(ticket.id))
    }

    /// The success and the buffer of an operation of this member, waited for up to the channel's
    /// timeout.
    pub(crate) fn wait_success(
        &mut self,
        at: u32,
        ticket: Ticket,
    ) -> Result<(WorkSuccess, OwnedBuffer)> {
        let timeout = self.config.timeout;
        if let Some(completed) = self.wait_ticket(at, ticket, timeout)? {
            return Ok(completed.into_success()?);
        }
        Err(Error::InFlight {
            queue: self.engine.queue_of(ticket).unwrap_or(Queue::Send),
            after: timeout.unwrap_or_default(),
        })
    }

    /// The operation that completed first, of those whose outcome was not taken. Polls if there is
    /// none.
    pub(crate) fn next_completed(&mut self) -> Option<Completed> {
        self.poll_until_ready();
        self.engine.take_first_completed()
    }

    /// Like [`next_completed`](Self::next_completed), but waits; `None` if `timeout` passes first,
    /// or if there is no operation to wait for.
    pub(crate) fn wait_completed(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.poll_until_ready();
        // Nothing is started meanwhile: with nothing in flight, only a timeout would end the wait. After a failure
        // nothing can be started.
        let is_open = timeout.is_some() && self.engine.group_failure().is_none();
        if !self.engine.has_completed() && (is_open || self.engine.flight.owns_any()) {
            self.wait_until(timeout, Engine::has_completed);
        }
        self.engine.take_first_completed()
    }

    /// The message that arrived first. Polls if there is none.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        self.count(1);
        self.engine.poll_until_message();
        if !self.engine.has_message() {
            self.found_nothing();
            self.engine.refill();
        }
        self.engine.next_message()
    }

    /// Like [`next_message`](Self::next_message), but waits; `None` if `timeout` passes first, or
    /// if no message can come.
    pub(crate) fn wait_message(&mut self, timeout: Option<Duration>) -> Option<Message> {
        let deadline = Deadline::after(timeout);
        let mut is_late = false;
        loop {
            if let Some(message) = self.next_message() {
                return Some(message);
            }
            // Nothing joins meanwhile.
            let is_endless = deadline.at().is_none() && !self.engine.awaits_message()
                || self.engine.has_no_more_messages();
            if is_late || is_endless || !self.engine.has_shared() {
                return None;
            }
            is_late = !self.wait_before(deadline, |engine| {
                engine.has_message()
                    || engine.has_dropped_members()
                    || engine.has_no_more_messages()
            });
        }
    }

    fn poll_until_ready(&mut self) {
        self.count(1);
        self.engine.poll_until_ready();
        if !self.engine.has_completed() {
            self.found_nothing();
        }
    }
}
