//! Ids of operations, the `wr_id`s of their requests, and tickets, by which outcomes are taken.
//!
//! | bits of a `wr_id` | |
//! |---|---|
//! | 0 to 26 | index of the slot |
//! | 27 | `UNSIGNALED`: a request of a batch that is not its last |
//! | 28 | `COMMON`: the slot is common |
//! | 29 to 63 | generation; if `UNSIGNALED`, its last bits are in 29 to 47, and the request's place in the batch is in 48 to 63 |
//!
//! With all of 27 to 63 set it is a shared receive, and 0 to 26 are its place.

use std::mem;
use std::slice;

use verbs_core::WorkSuccess;

use crate::buffer::{Leaked, OwnedBuffer};
use crate::channel_id::ChannelId;
use crate::engine::member::NONE;
use crate::error::{Result, TransportError};
use crate::request::{Opcodes, OwnedChain, OwnedRequest};

/// Identifies an operation on an owned buffer. Its outcome can be taken once, in any order.
///
/// An operation whose ticket is lost is still returned by
/// [`next_completed`](crate::Channel::next_completed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) channel: ChannelId,
    pub(crate) id: Id,
}

impl Ticket {
    /// The number of its slot: for tables of your own.
    ///
    /// It is less than the number of slots. Each channel of a group has a slot for each operation that
    /// can be in flight in its two queues, and those that [`reserve`] has added. A channel that was removed
    /// counts until its outcomes have been taken. Once the outcome of an operation has been taken, another
    /// operation gets its slot.
    ///
    /// [`reserve`]: crate::engine::Engine::reserve
    #[doc(hidden)]
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.id.index() as usize
    }

    /// The channel that the operation is on.
    #[must_use]
    #[inline]
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }
}

/// An operation on owned buffers that has ended: its outcome, and its buffer, its batch or its chain.
///
/// It returns what it was started with: one of the three is there, unless the outcome is
/// [`Stuck`](TransportError::Stuck) or the operation was [posted unpolled](crate::Channel::post_unpolled), and
/// none of the others.
// Three fields, and not one of an enum: with a tag to be matched, what is returned would have to be in memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Which operation it was.
    pub ticket: Ticket,
    /// The channel that it was on.
    pub channel: ChannelId,
    /// How it ended: its outcome. The length of a received message is its
    /// [`byte_len`](verbs_core::WorkSuccess::byte_len).
    pub result: Result<WorkSuccess, TransportError>,
    /// The returned buffer; `None` if the outcome is [`Stuck`](TransportError::Stuck), and for a batch or
    /// a chain.
    pub buffer: Option<OwnedBuffer>,
    /// The returned batch, as it was started; `None` if the outcome is [`Stuck`](TransportError::Stuck), and
    /// for everything else.
    pub batch: Option<Vec<OwnedRequest>>,
    /// The returned chain, which can be started again: how many of its requests succeeded is
    /// [in it](OwnedChain::done). `None` if the outcome is [`Stuck`](TransportError::Stuck), and for
    /// everything else.
    pub chain: Option<OwnedChain>,
}

impl Completed {
    #[inline(always)]
    pub(crate) fn new(ticket: Ticket, outcome: Outcome) -> Self {
        let (buffer, batch, chain) = match outcome.owned {
            Some(SlotBuffer::Buffer(buffer)) => (Some(buffer), None, None),
            Some(SlotBuffer::Batch(batch)) => (None, Some(batch), None),
            Some(SlotBuffer::Chain(chain)) => (None, None, Some(chain)),
            None => (None, None, None),
        };
        Self {
            ticket,
            channel: ticket.channel(),
            result: outcome.result,
            buffer,
            batch,
            chain,
        }
    }

    /// The message that arrived, if this was a receive.
    ///
    /// It is `None` for all other operations, for a receive that a write with immediate completed, and for
    /// a failure. To keep the message, take the [`buffer`](Self::buffer) out: the message is its first
    /// [`byte_len`] bytes. After that this is `None`.
    ///
    /// [`byte_len`]: verbs_core::WorkSuccess::byte_len
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        let success = self.result.as_ref().ok()?;
        success.message_in(self.buffer.as_ref()?)
    }

    /// Converts into the success and the buffer, for an operation on one buffer.
    ///
    /// If the operation failed, its buffer is dropped: to reuse it, take it out of the field. For a batch
    /// or a chain the returned buffer is empty.
    ///
    /// # Errors
    ///
    /// How the operation failed.
    pub fn into_success(self) -> Result<(WorkSuccess, OwnedBuffer), TransportError> {
        Ok((self.result?, self.buffer.unwrap_or_default()))
    }
}

/// How an operation ended, and the buffer, the batch or the chain that it owned.
///
/// Functions that are not inlined return it, and not a [`Completed`]: that would be written to memory
/// and read back, field by field.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<WorkSuccess, TransportError>,
    pub(crate) owned: Option<SlotBuffer>,
}

// One word.
const _: () = assert!(size_of::<Option<OwnedChain>>() == size_of::<usize>());

/// The buffer, the batch or the chain that an operation owns: in its slot.
#[derive(Debug)]
pub(crate) enum SlotBuffer {
    Buffer(OwnedBuffer),
    Batch(Vec<OwnedRequest>),
    Chain(OwnedChain),
}

impl SlotBuffer {
    /// The opcode of a request of several that has failed, together with those of others if it may be any of them;
    /// `None` if this is one buffer. `at` is `None` for the last.
    #[cold]
    pub(crate) fn opcodes(&self, at: Option<usize>) -> Option<Opcodes> {
        let requests = match (self, at) {
            (Self::Buffer(_), _) => return None,
            (Self::Chain(chain), at) => chain.in_flight(at).map(slice::from_ref),
            (Self::Batch(requests), None) => requests.last().map(slice::from_ref),
            // All but the last have the same `wr_id`.
            (Self::Batch(requests), Some(_)) => requests.split_last().map(|(_, others)| others),
        };
        let opcodes = requests.unwrap_or_default().iter();
        let opcodes = opcodes.map(|request| request.op.opcodes());
        Some(opcodes.fold(Opcodes::IN_BUFFERS, Opcodes::or))
    }

    /// Leaks it. Returns how many buffers that is, and adds their memory.
    #[expect(clippy::mem_forget, reason = "the device may still touch it")]
    pub(crate) fn leak(self, leaked: &mut Leaked) -> usize {
        let mut count = 0;
        let mut leak = |buffer: &OwnedBuffer| {
            buffer.announce_leak(leaked);
            count += 1;
        };
        match &self {
            Self::Buffer(buffer) => leak(buffer),
            Self::Batch(requests) => requests.iter().for_each(|request| leak(&request.buffer)),
            Self::Chain(chain) => {
                let requests = (0..chain.len()).filter_map(|index| chain.request(index));
                requests.for_each(|request| leak(&request.buffer));
            }
        }
        mem::forget(self);
        count
    }
}

/// An operation: the index of its slot, and the slot's generation.
///
/// A generation has 35 bits, so an `Id` comes again after 34 thousand million operations in one slot. One that
/// old could be taken for another operation's, of which it could take the outcome. So a handle forgets its `Id`
/// when its outcome is taken; a ticket, which can be kept, reaches nothing but an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(super) u64);

/// Marks the `wr_id` of a request that is not the last of its batch.
pub(super) const UNSIGNALED: u64 = 1 << 27;

/// Marks the ids of operations with a common slot.
pub(super) const COMMON: u64 = 1 << 28;

/// One generation.
pub(super) const GENERATION: u64 = 1 << 29;

/// One work request in the `wr_id`s of those that are not the last.
pub(crate) const NEXT: u64 = 1 << 48;

/// How many shared receives have a `wr_id`.
pub(crate) const SHARED_PLACES: u32 = 1 << 27;

/// The `wr_id` of the first shared receive. Among operations, only the 65,536th request of a batch could have it, and
/// only if it were not the last: a batch has 65,535 at most.
const SHARED: u64 = !(UNSIGNALED - 1);

const _: () = assert!(SHARED_PLACES as u64 == UNSIGNALED && SHARED / NEXT > u16::MAX as u64 - 2);

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

impl Id {
    /// Identifies no operation: its slot is past the end of every table.
    pub(crate) const NONE: Self = Self(!COMMON);

    /// The operation whose last, or only, work request has this `wr_id`, if it is one's.
    #[inline]
    pub(crate) const fn of(wr_id: u64) -> Self {
        Self(wr_id)
    }

    /// The next operation in its slot.
    #[inline(always)]
    pub(super) const fn next(self) -> Self {
        Self(self.0.wrapping_add(GENERATION))
    }

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
    pub(crate) const fn unsignaled_wr_id(self) -> u64 {
        self.0 & (NEXT - 1) | UNSIGNALED
    }

    /// Which of the operation's work requests this `wr_id` belongs to; `None` if to the last one.
    pub(crate) fn place_of(wr_id: u64) -> Option<usize> {
        let is_unsignaled = wr_id & UNSIGNALED != 0;
        is_unsignaled.then(|| usize::try_from(wr_id / NEXT).unwrap_or(usize::MAX))
    }

    /// Whether one of the operation's work requests has this `wr_id`.
    #[inline]
    pub(super) const fn has_request(self, wr_id: u64) -> bool {
        self.0 == wr_id || self.unsignaled_wr_id() == wr_id & (NEXT - 1)
    }

    /// The index of its slot, if that is a channel's own; past the end of every table if it is common.
    ///
    /// So the paths of the usual case find no common slot.
    #[inline]
    pub(super) const fn own_index(self) -> u32 {
        (self.0 & (GENERATION - 1)) as u32
    }

    /// The index of its slot, be it common or not.
    #[inline]
    pub(crate) const fn index(self) -> u32 {
        (self.0 & (UNSIGNALED - 1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::BufferOwner;
    use super::super::tests::{ABORTED, batch, table_with_common};
    use super::*;
    use crate::error::Queue;

    #[test]
    fn requests_of_an_operation_are_found_in_every_generation() {
        let mut table = table_with_common(1, 1);
        // The last generations that fit, and those around the bits that all requests have.
        for generations in [1 << 35, 1 << 19, 1 << 18, 4] {
            for slot in &mut table.0.slots {
                let place = slot.id.0 & (GENERATION - 1);
                slot.id = Id(place
                    | GENERATION
                        .wrapping_mul(generations)
                        .wrapping_sub(4 * GENERATION));
            }
            for _ in 0..8 {
                let (own, common) = (0, 1);
                let ids = [own, common].map(|_| table.take(batch(0, BufferOwner::Slot)).unwrap());
                for id in ids {
                    for place in [0, 1, 65_533] {
                        let wr_id = id.unsignaled_wr_id() + place * NEXT;
                        assert_eq!(table.0.owner(wr_id), Some((0, Queue::Send)));
                        assert_eq!(Id::place_of(wr_id), usize::try_from(place).ok());
                        assert_eq!(shared_place(wr_id), None);
                    }
                    let earlier = Id(id.0.wrapping_sub(GENERATION));
                    assert_eq!(table.0.owner(earlier.unsignaled_wr_id()), None);
                    assert_eq!(Id::place_of(id.wr_id()), None);
                    assert_eq!(shared_place(id.wr_id()), None);
                    let wr_id = id.unsignaled_wr_id() + 3 * NEXT;
                    assert!(!table.fail(wr_id, ABORTED), "it is in flight");
                    assert!(table.succeed(id.wr_id()));
                    assert_eq!(table.release(id).unwrap(), Err(ABORTED));
                }
            }
        }
    }
}
