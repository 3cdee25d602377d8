//! Operations on owned buffers that have ended: polled, waited for, and taken.

use std::time::Duration;

use verbs_core::WorkSuccess;

use crate::buffer::OwnedBuffer;
use crate::engine::{Completed, Engine, Kept, MAX_POLLS, Ticket};
use crate::error::{Error, Result, TransportError};

impl Engine {
    /// The result of an operation, if it is done; polls once if it is not.
    #[inline(always)]
    pub(crate) fn poll_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.poll_ticket_of(ticket.channel.at(), ticket)
    }

    /// [`poll_ticket`](Self::poll_ticket) for a ticket of this member.
    #[inline(always)]
    pub(crate) fn poll_ticket_of(&mut self, at: u32, ticket: Ticket) -> Result<Option<Completed>> {
        match self.poll_in_flight(at, ticket) {
            Some(completed) => Ok(Some(completed)),
            None => self.poll_slowly(at, ticket),
        }
    }

    /// The result of an operation of this member, waited for; `None` if `timeout` passes first.
    #[inline(always)]
    pub(crate) fn wait_ticket_of(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        match self.poll_in_flight(at, ticket) {
            Some(completed) => Ok(Some(completed)),
            None => self.wait_slowly(at, ticket, timeout),
        }
    }

    /// Polls once for an operation that is in flight: its result, if that is a success and
    /// all there is.
    #[inline(always)]
    fn poll_in_flight(&mut self, at: u32, ticket: Ticket) -> Option<Completed> {
        let member = self.members.get(at as usize)?;
        if member.id != ticket.channel || !self.slots.is_in_flight(ticket.id) {
            return None;
        }
        let kept = self.poll_for_owned(at, ticket.id, Option::take)?;
        let success = self.last_success()?;
        Some(Completed::new(ticket, Ok(*success), Some(kept)))
    }

    /// The result of an operation, if it is done; polls once if it is not.
    #[inline(never)]
    fn poll_slowly(&mut self, at: u32, ticket: Ticket) -> Result<Option<Completed>> {
        if !self.is_done_on(at, ticket)? && self.drive() == 0 {
            self.glance_at_peers();
        }
        Ok(self.take(ticket))
    }

    #[inline(never)]
    fn wait_slowly(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        if !self.is_done_on(at, ticket)? && !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket))
    }

    fn is_done_on(&self, at: u32, ticket: Ticket) -> Result<bool> {
        match self.members.get(at as usize) {
            Some(member) if member.id == ticket.channel => self.is_done(ticket),
            _ => Err(Error::StaleTicket),
        }
    }

    /// The success of an operation on one buffer, if that is what it is; polls once if it is in
    /// flight.
    #[inline(always)]
    pub(crate) fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let id = ticket.id;
        let at = self.place(ticket.channel)?;
        if !self.slots.is_in_flight(id) {
            return self.take_success(ticket);
        }
        match self.poll_for_owned(at, id, Kept::take_buffer) {
            Some(buffer) => Some((self.last_success()?, buffer)),
            None => self.take_later(ticket),
        }
    }

    #[inline(always)]
    fn take_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let id = ticket.id;
        let member = self.members.get_mut(ticket.channel.index())?;
        let buffer = Kept::take_buffer(self.slots.succeeded(id)?)?;
        self.slots.free_completed(&mut member.slots, id);
        Some((self.slots.last_success(id)?, buffer))
    }

    // Apart, so that what was done before the poll has the short way for itself.
    #[inline(never)]
    fn take_later(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        self.take_success(ticket)
    }

    /// The result of an operation, if it is done.
    pub(crate) fn take_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let is_done = self.is_done(ticket)?;
        Ok(is_done.then(|| self.take(ticket)).flatten())
    }

    /// The result of the operation that has been done for longest, as [`seek`](Self::seek).
    pub(crate) fn next_ready(&mut self) -> Option<Completed> {
        self.seek();
        self.take_ready()
    }

    fn take_ready(&mut self) -> Option<Completed> {
        let id = self.slots.first_ready()?;
        let (at, _) = self.slots.owner(id.wr_id())?;
        self.take(self.ticket(at, id))
    }

    /// Which it is; its result stays, and nobody else is told of it.
    pub(crate) fn next_ticket(&mut self) -> Option<Ticket> {
        self.seek();
        let (id, member) = self.slots.claim_ready()?;
        Some(self.ticket(member, id))
    }

    /// If nothing is ready, polls until something is or the queue is empty.
    fn seek(&mut self) {
        let mut polls = 0;
        while self.slots.first_ready().is_none() {
            polls += 1;
            // An empty poll, too, may have ended work: a queue that cannot be polled has.
            if self.drive() == 0 || polls == MAX_POLLS {
                self.glance_at_peers();
                return;
            }
        }
    }

    /// The same, waited for; `None` if `timeout` passes first, or if nothing is to come and there is
    /// none.
    pub(crate) fn wait_ready(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.seek();
        // Nobody starts work meanwhile: without any, a wait would have no end but its timeout.
        if self.slots.first_ready().is_none() && (timeout.is_some() || self.owns_any()) {
            self.wait_until(timeout, |engine| engine.slots.first_ready().is_some());
        }
        self.take_ready()
    }

    fn owns_any(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| self.slots.owns_any(&member.slots))
    }

    #[inline(always)]
    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let done = self
            .place(ticket.channel)
            .and_then(|_| self.slots.is_done(ticket.id));
        done.ok_or(Error::StaleTicket)
    }

    fn take(&mut self, ticket: Ticket) -> Option<Completed> {
        let kept = self.slots.take_buffer(ticket.id);
        let result = self.release(ticket.channel.at(), ticket.id)?;
        Some(Completed::new(ticket, result, kept))
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
            Some(Kept::Buffer(buffer)) => (Some(buffer), None),
            Some(Kept::Batch(works)) => (None, Some(works)),
            None => (None, None),
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
