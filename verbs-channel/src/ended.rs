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
        if let Some(kept) = self.poll_for_kept(ticket.id, Option::take) {
            let told = self.told().copied();
            let result = told.ok_or(TransportError::CLOSED);
            return Ok(Some(Completed::new(ticket, result, Some(kept))));
        }
        if !self.is_done(ticket)? {
            self.glance_at_peers();
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The success of an operation on one buffer, if that is what it is; polls once if it is in
    /// flight.
    #[inline(always)]
    pub(crate) fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let id = ticket.id;
        if ticket.engine != self.id() {
            return None;
        }
        if self.slots.in_flight(id).is_none() {
            return self.take_success(id);
        }
        match self.poll_for_kept(id, Kept::take_buffer) {
            Some(buffer) => Some((self.told()?, buffer)),
            None => self.take_later(id),
        }
    }

    #[inline(always)]
    fn take_success(&mut self, id: Id) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let buffer = Kept::take_buffer(self.slots.succeeded(id)?)?;
        self.slots.free_done(id);
        Some((self.slots.told(id)?, buffer))
    }

    // Apart, so that what was done before the poll has the short way for itself.
    #[inline(never)]
    fn take_later(&mut self, id: Id) -> Option<(&WorkSuccess, OwnedBuffer)> {
        self.take_success(id)
    }

    /// The result of an operation, if it is done.
    pub(crate) fn take_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let is_done = self.is_done(ticket)?;
        Ok(is_done.then(|| self.take(ticket.id)).flatten())
    }

    /// The result of an operation, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ticket(
        &mut self,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        if let Some(ended) = self.poll_ticket(ticket)? {
            return Ok(Some(ended));
        }
        if !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket.id))
    }

    /// The result of the operation that has been done for longest, as [`seek`](Self::seek).
    pub(crate) fn next_ready(&mut self) -> Option<Completed> {
        self.seek();
        let id = self.slots.first_ready()?;
        self.take(id)
    }

    /// Which it is; its result stays, and nobody else is told of it.
    pub(crate) fn next_ticket(&mut self) -> Option<Ticket> {
        self.seek();
        let (id, member) = self.slots.name_ready()?;
        Some(self.ticket(member, id))
    }

    /// If nothing is ready, polls until something is or the queue is empty.
    fn seek(&mut self) {
        while self.slots.first_ready().is_none() {
            // An empty poll, too, may have ended work: a queue that cannot be polled has.
            if self.drive() == 0 {
                self.glance_at_peers();
                return;
            }
        }
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
        Some(Completed::new(self.ticket(member, id), result, kept))
    }
}

impl Completed {
    #[inline(always)]
    fn new(
        ticket: Ticket,
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
            channel: ticket.channel(),
            result,
            buffer,
            batch,
        }
    }
}
