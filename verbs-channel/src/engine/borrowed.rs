//! Operations on borrowed buffers, for the layer that keeps the borrows: a scope or a blocking call.

use verbs_core::WorkSuccess;

use super::{Engine, Id};
use crate::error::{Queue, TransportError};

impl Engine {
    /// Detaches a member's operation: its outcome will not be taken.
    #[inline(always)]
    pub(crate) fn detach(&mut self, at: u32, id: Id) {
        if !self.slots.detach(id) {
            self.detach_completed(at, id);
        }
    }

    #[inline(never)]
    fn detach_completed(&mut self, at: u32, id: Id) {
        if let Some(member) = self.members.get_mut(at as usize) {
            self.slots.detach_completed(&mut member.credits.slots, id);
        }
    }

    /// Takes the result of a member's operation that is done, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        at: u32,
        id: Id,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let member = self.members.get_mut(at as usize)?;
        debug_assert!(
            self.slots.owner(id.wr_id()).is_none_or(|(of, _)| of == at),
            "the slot goes back to its channel"
        );
        self.slots.release(&mut member.credits.slots, id)
    }

    /// Whether an operation is in flight.
    #[inline(always)]
    pub(crate) fn is_pending(&self, id: Id) -> bool {
        self.slots.is_done(id) == Some(false)
    }

    /// The first operation in a member's list; [`after`](Self::after) is the next.
    pub(crate) fn first(&self, at: u32) -> Option<Id> {
        self.slots.first(&self.member(at)?.credits.slots)
    }

    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        self.slots.after(id)
    }

    /// The queue of an operation on borrowed buffers.
    pub(crate) fn borrowed(&self, id: Id) -> Option<Queue> {
        self.slots.borrowed(id)
    }

    /// The same, while the operation is in flight.
    pub(crate) fn borrowed_in_flight(&self, id: Id) -> Option<Queue> {
        self.slots.borrowed_in_flight(id)
    }

    /// How a completed operation failed, and a number that orders failures.
    pub(crate) fn failure(&self, id: Id) -> Option<(TransportError, u32)> {
        self.slots.failure(id)
    }

    /// Whether a member has borrowed buffers in flight.
    pub(crate) fn has_borrowed_in_flight(&self, at: u32) -> bool {
        let member = self.member(at);
        member.is_some_and(|member| self.slots.has_borrowed_in_flight(&member.credits.slots))
    }

    /// Whether nothing is in flight on a member.
    #[inline]
    pub(crate) fn is_idle_at(&self, at: u32) -> bool {
        self.member(at)
            .is_none_or(|member| member.credits.is_idle())
    }

    /// [`is_idle_and_up`](Self::is_idle_and_up), and no operation on borrowed buffers has an outcome that
    /// was not taken.
    #[inline]
    pub(crate) fn is_done_and_up(&self, at: u32) -> bool {
        let member = self.member(at);
        self.is_idle_and_up(at) && member.is_some_and(|member| !member.credits.slots.has_untaken())
    }

    /// Whether nothing is in flight on a member, and nothing has failed.
    #[inline]
    pub(crate) fn is_idle_and_up(&self, at: u32) -> bool {
        let member = self.member(at);
        member.is_some_and(|member| member.credits.is_idle() && member.down().is_none())
    }
}
