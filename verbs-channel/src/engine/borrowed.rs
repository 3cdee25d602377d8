//! Operations on borrowed buffers, for the layer that keeps the borrows: a scope or a blocking call.

use verbs_core::WorkSuccess;

use super::{Engine, Id, Member};
use crate::error::{Queue, TransportError};

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
        if self.failure(id).is_none() {
            let _not_taken = self.release(id);
        }
    }

    /// Takes the result of an operation that is done, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: Id) -> Option<Result<WorkSuccess, TransportError>> {
        let (result, _none) = self.flight.release(id)?;
        Some(result)
    }

    /// Whether an operation is in flight.
    #[inline(always)]
    pub(crate) fn is_pending(&self, id: Id) -> bool {
        self.flight.is_done(id) == Some(false)
    }

    /// The first operation in a member's list; [`after`](Self::after) is the next.
    pub(crate) fn first(&self, at: u32) -> Option<Id> {
        self.flight.first(at)
    }

    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        self.flight.after(id)
    }

    /// The queue of an operation on borrowed buffers.
    pub(crate) fn borrowed(&self, id: Id) -> Option<Queue> {
        self.flight.borrowed(id)
    }

    /// The same, while the operation is in flight.
    pub(crate) fn borrowed_in_flight(&self, id: Id) -> Option<Queue> {
        self.flight.borrowed_in_flight(id)
    }

    /// How a completed operation failed, and a number that orders failures.
    pub(crate) fn failure(&self, id: Id) -> Option<(TransportError, u32)> {
        self.flight.failure(id)
    }

    /// Whether a member has borrowed buffers in flight.
    pub(crate) fn has_borrowed_in_flight(&self, at: u32) -> bool {
        self.flight.has_borrowed_in_flight(at)
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
