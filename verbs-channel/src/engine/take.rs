//! Outcomes of operations that have completed: found, and taken.

use verbs_core::WorkSuccess;

use crate::buffer::OwnedBuffer;
use crate::engine::{Completed, Engine, Id, MAX_POLLS, Member, Outcome, SlotBuffer, Ticket};
use crate::error::{Error, Queue, Result};

impl Engine {
    /// Takes the outcome and the buffer of an operation on any channel, if it has completed. Polls once
    /// if it is in flight.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`] if they were taken before, or the ticket belongs to another engine.
    #[inline(always)]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        if let Some(completed) = self.poll_in_flight(ticket.channel.at(), ticket) {
            return Ok(Some(completed));
        }
        let outcome = self.poll_slowly(ticket)?;
        Ok(outcome.map(|outcome| Completed::new(ticket, outcome)))
    }

    #[inline(never)]
    fn poll_slowly(&mut self, ticket: Ticket) -> Result<Option<Outcome>> {
        if !self.is_done(ticket)? {
            self.drive();
        }
        Ok(self.flight.release(ticket.id))
    }

    /// Polls once for an operation of this member that is in flight: its outcome, if its success is the
    /// first that completed.
    #[inline(always)]
    pub(crate) fn poll_in_flight(&mut self, at: u32, ticket: Ticket) -> Option<Completed> {
        if self.member(at)?.id != ticket.channel {
            return None;
        }
        let (success, owned) = self.poll_for(at, ticket.id, Option::is_some, Option::take)?;
        let outcome = Outcome {
            result: Ok(*success),
            owned,
        };
        Some(Completed::new(ticket, outcome))
    }

    /// The queue of an operation whose outcome was not taken.
    pub(crate) fn queue_of(&self, ticket: Ticket) -> Option<Queue> {
        let (_, queue) = self.flight.owner(ticket.id.wr_id())?;
        Some(queue)
    }

    /// Whether an operation of this member has completed.
    pub(crate) fn is_done_on(&self, at: u32, ticket: Ticket) -> Result<bool> {
        match self.member(at) {
            Some(member) if member.id == ticket.channel => self.is_done(ticket),
            _ => Err(Error::StaleTicket),
        }
    }

    /// [`poll`](Self::poll) for the usual case only: an operation on one buffer, whose success is the first
    /// completion that this polls.
    ///
    /// It returns `None` in all other cases, a ticket that is stale included. Then the outcome, if there
    /// is one, is still there: [`poll`](Self::poll) and [`take`](Self::take) return it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        let at = self.place(ticket.channel)?;
        let has = |place: &Option<SlotBuffer>| matches!(place, Some(SlotBuffer::Buffer(_)));
        self.poll_for(at, ticket.id, has, |place| match place.take() {
            Some(SlotBuffer::Buffer(buffer)) => buffer,
            other => {
                *place = other;
                OwnedBuffer::empty()
            }
        })
    }

    /// Takes the outcome and the buffer of an operation on any channel, if a poll has found its
    /// completion. Does not poll.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let _is_known = self.is_done(ticket)?;
        Ok(self.take_completed(ticket))
    }

    /// Takes the oldest completed operation on an owned buffer.
    ///
    /// If there is none, it polls until there is one or the completion queue is empty.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.poll_until_ready();
        self.take_first_completed()
    }

    pub(crate) fn take_first_completed(&mut self) -> Option<Completed> {
        let id = self.flight.first_ready()?;
        let (at, _) = self.flight.owner(id.wr_id())?;
        self.take_completed(self.ticket(at, id))
    }

    /// The ticket of the operation that [`next_completed`](Self::next_completed) would take. Its outcome
    /// stays in its slot until it is [taken](Self::take).
    ///
    /// Each operation is returned once, and `next_completed` does not return it after that.
    #[doc(hidden)]
    #[must_use = "it is not returned again"]
    pub fn next_ticket(&mut self) -> Option<Ticket> {
        self.poll_until_ready();
        let (id, member) = self.flight.claim_ready()?;
        Some(self.ticket(member, id))
    }

    /// Whether [`next_completed`](Self::next_completed) may return an operation without a poll of the
    /// completion queue.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.flight.first_ready().is_some()
    }

    /// If no operation is ready, polls until one is or the queue is empty.
    pub(crate) fn poll_until_ready(&mut self) {
        let mut polls = 0;
        while !self.has_completed() {
            polls += 1;
            // An empty poll may have ended operations, too: a queue that cannot be polled does.
            if self.drive() == 0 || polls == MAX_POLLS {
                return;
            }
        }
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let done = self
            .place(ticket.channel)
            .and_then(|_| self.flight.is_done(ticket.id));
        done.ok_or(Error::StaleTicket)
    }

    /// Takes the outcome of an operation that has completed.
    pub(crate) fn take_completed(&mut self, ticket: Ticket) -> Option<Completed> {
        let outcome = self.flight.release(ticket.id)?;
        Some(Completed::new(ticket, outcome))
    }
}

/// Operations on borrowed buffers, for the layer that keeps the borrows: a scope or a blocking call.
impl Engine {
    /// Detaches an operation: its outcome will not be taken.
    #[inline(always)]
    pub(crate) fn detach(&mut self, id: Id) {
        if !self.flight.detach(id) {
            self.detach_completed(id);
        }
    }

    #[inline(never)]
    fn detach_completed(&mut self, id: Id) {
        if self.flight.failure(id).is_none() {
            let _not_taken = self.flight.release(id);
        }
    }

    /// Whether an operation is in flight.
    #[doc(hidden)]
    #[must_use]
    pub fn is_in_flight(&self, ticket: Ticket) -> bool {
        self.place(ticket.channel).is_some() && self.flight.is_pending(ticket.id)
    }

    /// Whether nothing is in flight on a member.
    #[inline]
    pub(crate) fn is_idle_at(&self, at: u32) -> bool {
        let member = self.member(at);
        member.is_none_or(|member| member.credits.is_idle())
    }

    /// [`is_idle_and_up`](Self::is_idle_and_up), and no operation on borrowed buffers has an outcome that
    /// was not taken.
    #[inline]
    pub(crate) fn is_done_and_up(&self, at: u32) -> bool {
        let has_untaken = |member: &Member| member.credits.slots.untaken > 0;
        self.is_idle_and_up(at) && !self.member(at).is_some_and(has_untaken)
    }

    /// Whether nothing is in flight on a member, and nothing has failed.
    #[inline]
    pub(crate) fn is_idle_and_up(&self, at: u32) -> bool {
        let member = self.member(at);
        member.is_some_and(|member| member.credits.is_idle() && member.down().is_none())
    }
}
