//! One slot, and what identifies an operation.

use super::reservation::Reservation;
use crate::error::TransportError;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Marks the `wr_id` of a request that is not the last of its batch; and the stamp of a slot, if
/// such a request has failed.
pub(super) const MEMBER: u64 = 1 << 27;

/// One work request in the `wr_id`s of those that are not the last.
pub(crate) const NEXT: u64 = 1 << 48;

/// Marks a common slot: its stamp, and the ids of its operations.
pub(super) const COMMON: u64 = 1 << 28;

/// One generation in a stamp. A free slot has an even one, a slot in use an odd one.
pub(super) const GENERATION: u64 = 1 << 29;

/// The `wr_id` of the shared receive at this place, below [`SHARED_PLACES`]; never used for an
/// operation.
pub(crate) const fn shared_wr_id(place: u32) -> u64 {
    SHARED | place as u64
}

/// The place of the shared receive with this `wr_id`, if it is one's.
#[inline]
pub(crate) fn shared_place(wr_id: u64) -> Option<u32> {
    let is_shared = wr_id & SHARED == SHARED;
    is_shared.then(|| u32::try_from(wr_id & !SHARED).unwrap_or(NONE))
}

/// The first of them. Among operations, only the 65,536th request of a batch could have it, and only if it were
/// not the last: a batch has 65,535 at most.
const SHARED: u64 = !(MEMBER - 1);

/// How many shared receives have a `wr_id`.
pub(crate) const SHARED_PLACES: u32 = 1 << 27;

const _: () = assert!(SHARED_PLACES as u64 == MEMBER && SHARED / NEXT > u16::MAX as u64 - 2);

/// A slot's index and generation: identifies one operation.
///
/// A generation has 35 bits, and an operation uses two of them up: an `Id` comes again after 17
/// thousand million operations in one slot. One that old could be taken for another operation's, of
/// which it could take the outcome. So a handle forgets its `Id` when its outcome is taken; a ticket,
/// which can be kept, reaches nothing but an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(super) u64);

impl Id {
    /// Identifies no operation: its slot is past the end of every table.
    pub(crate) const NONE: Self = Self(!COMMON);

    /// The `wr_id` of the operation's last, or only, work request.
    #[inline]
    pub(crate) const fn wr_id(self) -> u64 {
        self.0
    }

    /// The `wr_id` of the first of its other work requests, if it is of several. They complete only
    /// if they fail. Each further request's is [more by this](NEXT), or the same if it does not
    /// matter which one fails.
    ///
    /// It has the last bits of the generation only. They suffice, as it ends nothing: while its completion
    /// waits in a queue, few operations in its slot can have completed behind it.
    #[inline]
    pub(crate) const fn member_wr_id(self) -> u64 {
        self.0 & (NEXT - 1) | MEMBER
    }

    /// Which of the operation's work requests this `wr_id` belongs to; `None` if to the last one.
    pub(crate) fn place_of(wr_id: u64) -> Option<usize> {
        let is_member = wr_id & MEMBER != 0;
        is_member.then(|| usize::try_from(wr_id / NEXT).unwrap_or(usize::MAX))
    }

    /// Its slot, if that is a channel's own; past the end of every table if it is common.
    ///
    /// So the paths of the usual case find no common slot, and need not ask whose slot they free.
    #[inline]
    pub(super) const fn own_index(self) -> u32 {
        // With a mark it is past the end of every table.
        (self.0 & (GENERATION - 1)) as u32
    }

    /// Its slot, be it common or not.
    #[inline]
    pub(crate) const fn index(self) -> u32 {
        (self.0 & (MEMBER - 1)) as u32
    }

    /// Whether its slot is one of those that all channels share.
    pub(crate) const fn is_common(self) -> bool {
        self.0 & COMMON != 0
    }
}

/// A slot, `S` being a success and `B` a buffer: two cache lines, as the channels have it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot<S, B> {
    /// The `wr_id` of its operation, with a mark if a request of it has failed.
    pub(super) stamp: u64,
    /// Without credits once the operation has completed. A free slot has any: its stamp is no operation's.
    pub(super) reservation: Reservation,
    /// The next free slot of the channel, or the next free common one; or the next ready one.
    pub(super) next: u32,
    /// The ready slot before it.
    pub(super) prev: u32,
    /// The next of all slots of the channel; never changes, unless the slot is common.
    pub(super) sibling: u32,
    /// The slot whose `sibling` a common slot is.
    pub(super) prev_sibling: u32,
    /// When its operation failed, counted in failures.
    pub(super) failed_at: u32,
    /// The flags of its requests, for the text of a failure: a failed completion has no opcode. 0 if its requests
    /// are in the buffer; those of an earlier operation if this one is a receive.
    pub(super) flags: u32,
    /// The success, if it may be taken; or the failure, of the operation or of a request of its batch.
    /// A free slot may have a success here, and no failure.
    pub(super) outcome: SlotOutcome<S>,
    /// The buffer that the operation owns.
    pub(super) buffer: Option<B>,
}

/// The outcome that a slot holds.
// Not a `Result` in an `Option`: to take one out of there is to copy its tag as well, and then the
// compiler looks at the copy again.
#[derive(Debug)]
pub(super) enum SlotOutcome<S> {
    Nothing,
    Success(S),
    Failure(TransportError),
}

impl<S, B> Slot<S, B> {
    /// Whether a work request of its operation has this `wr_id`.
    #[inline]
    pub(super) const fn has_request(&self, wr_id: u64) -> bool {
        let id = self.id();
        id.0 == wr_id || id.member_wr_id() == wr_id & (NEXT - 1)
    }

    #[inline]
    pub(super) const fn id(&self) -> Id {
        Id(self.stamp & !MEMBER)
    }

    #[inline]
    pub(super) const fn is_in_flight(&self) -> bool {
        self.reservation.credits > 0
    }

    pub(super) const fn is_in_use(&self) -> bool {
        self.stamp & GENERATION != 0
    }

    /// Whether it is one of those that all channels share.
    pub(super) const fn is_common(&self) -> bool {
        self.stamp & COMMON != 0
    }

    #[inline]
    pub(super) const fn failure(&self) -> Option<TransportError> {
        match self.outcome {
            SlotOutcome::Failure(error) => Some(error),
            _ => None,
        }
    }

    /// Frees it, the slot at this index, and makes it the top of a stack of free slots. Its stamp has no
    /// mark: what ends its operation takes it away.
    #[inline(always)]
    pub(super) const fn free(&mut self, top: &mut u32, index: u32) {
        debug_assert!(self.stamp & (MEMBER | GENERATION) == GENERATION);
        self.stamp = self.stamp.wrapping_add(GENERATION);
        self.next = *top;
        *top = index;
    }
}

#[cfg(test)]
mod tests {
    use super::super::BufferOwner;
    use super::super::tests::{ABORTED, reservation, table_with_common};
    use super::*;
    use crate::error::Queue;

    #[test]
    fn requests_of_an_operation_are_found_in_every_generation() {
        let mut table = table_with_common::<()>(1, 1);
        // The last generations that fit, and those around the bits that all requests have.
        for generations in [1 << 34, 1 << 18, 1 << 17, 0].map(|half| 2 * half) {
            for slot in &mut table.slots.slots {
                let place = slot.stamp & (GENERATION - 1);
                slot.stamp = place
                    | GENERATION
                        .wrapping_mul(generations)
                        .wrapping_sub(4 * GENERATION);
            }
            for _ in 0..4 {
                let (own, common) = (0, 1);
                let ids =
                    [own, common].map(|_| table.take(reservation(0, BufferOwner::Slot)).unwrap());
                for id in ids {
                    for place in [0, 1, 65_533] {
                        let wr_id = id.member_wr_id() + place * NEXT;
                        assert_eq!(table.slots.owner(wr_id), Some((0, Queue::Send)));
                        assert_eq!(Id::place_of(wr_id), usize::try_from(place).ok());
                        assert_eq!(shared_place(wr_id), None);
                        assert!(table.slots.buffer_before_failure(wr_id).is_some());
                    }
                    let earlier = Id(id.0.wrapping_sub(2 * GENERATION));
                    assert_eq!(table.slots.owner(earlier.member_wr_id()), None);
                    assert_eq!(Id::place_of(id.wr_id()), None);
                    assert_eq!(shared_place(id.wr_id()), None);
                    let wr_id = id.member_wr_id() + 3 * NEXT;
                    assert!(table.fail(wr_id, ABORTED).is_none(), "it is in flight");
                    assert!(table.slots.buffer_before_failure(wr_id).is_none());
                    assert!(table.succeed(id.wr_id()).is_some());
                    assert!(table.slots.buffer_before_failure(wr_id).is_none());
                    assert_eq!(table.release(id).unwrap(), Err(ABORTED));
                }
            }
        }
    }
}
