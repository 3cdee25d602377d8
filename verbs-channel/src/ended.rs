//! Operations on owned buffers that have ended: polled, waited for, and taken.

use std::time::Duration;

use verbs_core::WorkSuccess;

use crate::buffer::OwnedBuffer;
use crate::engine::{Engine, MAX_POLLS};
use crate::error::{Error, Result, TransportError};
use crate::owned::{Completed, Kept, Ticket};

impl Engine {
    /// The result of an operation, if it is done; polls once if it is not.
    #[inline(always)]
    pub(crate) fn poll_ticket(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.poll_ticket_of(ticket.channel.at(), ticket)
    }

    /// [`poll_ticket`](Self::poll_ticket) for a ticket of this member.
    #[inline(always)]
    pub(crate) fn poll_ticket_of(&mut self, at: u32, ticket: Ticket) -> Result<Option<Completed>> {
        let member = self.members.get(at as usize);
        if member.is_none_or(|member| member.id != ticket.channel) {
            return Err(Error::StaleTicket);
        }
        match self.slots.is_done(ticket.id) {
            Some(false) => {}
            Some(true) => return Ok(self.take(ticket)),
            None => return Err(Error::StaleTicket),
        }
        if let Some(kept) = self.poll_for_kept(ticket.id, Option::take) {
            let told = self.told().copied();
            let result = told.ok_or(TransportError::CLOSED);
            return Ok(Some(Completed::new(ticket, result, Some(kept))));
        }
        if self.slots.is_done(ticket.id) != Some(true) {
            self.glance_at_peers();
            return Ok(None);
        }
        Ok(self.take(ticket))
    }

    /// The success of an operation on one buffer, if that is what it is; polls once if it is in
    /// flight.
    #[inline(always)]
    pub(crate) fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let id = ticket.id;
        self.place(ticket.channel)?;
        if self.slots.in_flight(id).is_none() {
            return self.take_success(ticket);
        }
        match self.poll_for_kept(id, Kept::take_buffer) {
            Some(buffer) => Some((self.told()?, buffer)),
            None => self.take_later(ticket),
        }
    }

    #[inline(always)]
    fn take_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let id = ticket.id;
        let member = self.members.get_mut(ticket.channel.index())?;
        let buffer = Kept::take_buffer(self.slots.succeeded(id)?)?;
        self.slots.free_done(&mut member.slots, id);
        Some((self.slots.told(id)?, buffer))
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

    /// The result of an operation of this member, waited for; `None` if `timeout` passes first.
    pub(crate) fn wait_ticket_of(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> Result<Option<Completed>> {
        if let Some(ended) = self.poll_ticket_of(at, ticket)? {
            return Ok(Some(ended));
        }
        if !self.wait_for(ticket.id, timeout) {
            return Ok(None);
        }
        Ok(self.take(ticket))
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
        let (id, member) = self.slots.name_ready()?;
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
