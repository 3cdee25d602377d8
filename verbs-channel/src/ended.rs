//! Operations on owned buffers that have ended: polled, waited for, and taken.

use std::time::Duration;

use verbs_core::WorkSuccess;

use crate::buffer::OwnedBuffer;
use crate::engine::Engine;
use crate::error::{Error, Result, TransportError};
use crate::owned::{Completed, Kept, Ticket};
use crate::slots::Id;

impl Engine {
    /// The result of an operation, if it is done; polls once if it is not.
    #[inline(always)]
    pub(crate) fn poll_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        if self.is_done(ticket)? {
            return Ok(self.take(ticket.id));
        }
        if let Some((success, member, kept)) = self.poll_for_kept(ticket.id, Option::take) {
            return Ok(Some(Completed::new(
                ticket,
                member,
                Ok(success),
                Some(kept),
            )));
        }
        if !self.is_done(ticket)? {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The success of an operation on one buffer, if that is what it is; polls once if nothing is
    /// done.
    #[inline(always)]
    pub(crate) fn poll_success(&mut self, ticket: Ticket) -> Option<(WorkSuccess, OwnedBuffer)> {
        if ticket.engine != self.id() {
            return None;
        }
        if self.slots.first_ready().is_some() {
            return self.take_success(ticket.id);
        }
        let (success, _, buffer) = self.poll_for_kept(ticket.id, take_buffer)?;
        Some((success, buffer))
    }

    #[inline(never)]
    fn take_success(&mut self, id: Id) -> Option<(WorkSuccess, OwnedBuffer)> {
        self.slots.release_kept(id, take_buffer)
    }

    /// The result of an operation, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ticket(
        &mut self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        self.is_done(ticket)?;
        if !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of the operation that has been done for longest; if there is none, polls until
    /// there is one or the queue is empty.
    pub(crate) fn next_ready(&mut self) -> Option<Completed> {
        while self.slots.first_ready().is_none() {
            if self.drive() == 0 {
                break;
            }
        }
        // An empty poll, too, may have ended work: a queue that cannot be polled has.
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    /// The same, waited for; `None` if `timeout` passes first, or if nothing is to come and there is
    /// none.
    pub(crate) fn wait_ready(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        // Nobody starts work meanwhile: without any, a wait would have no end but its timeout.
        if timeout.is_some() || self.slots.owns_any() {
            self.wait_until(timeout, |engine| engine.slots.first_ready().is_some());
        }
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let ours = (ticket.engine == self.id()).then_some(ticket.id);
        let done = ours.and_then(|id| self.slots.is_done(id));
        done.ok_or(Error::StaleTicket)
    }

    fn take(&mut self, id: Id) -> Option<Completed> {
        let kept = self.slots.take_buffer(id);
        let (member, result) = self.slots.release(id)?;
        Some(Completed::new(self.ticket(id), member, result, kept))
    }
}

impl Completed {
    #[inline(always)]
    fn new(
        ticket: Ticket,
        member: u32,
        result: Result<WorkSuccess, TransportError>,
        kept: Option<Kept>,
    ) -> Self {
        let (buffer, batch) = match kept {
            Some(Kept::Buffer(buffer)) => (Some(buffer), Vec::new()),
            Some(Kept::Batch(works)) => (None, works),
            None => (None, Vec::new()),
        };
        Self {
            ticket,
            channel: member as usize,
            result,
            buffer,
            batch,
        }
    }
}

/// Takes what a slot keeps, if it is one buffer.
#[inline(always)]
fn take_buffer(place: &mut Option<Kept>) -> Option<OwnedBuffer> {
    match place.take() {
        Some(Kept::Buffer(buffer)) => Some(buffer),
        other => {
            *place = other;
            None
        }
    }
}
