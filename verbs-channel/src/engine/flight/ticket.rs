//! Tickets, and the outcomes that are taken by them.

use std::mem;
use std::slice;

use verbs_core::WorkSuccess;

use super::id::Id;
use crate::buffer::{Leaked, OwnedBuffer};
use crate::channel_id::ChannelId;
use crate::error::{Result, TransportError};
use crate::request::{OwnedChain, OwnedRequest};

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
        let mut completed = Self {
            ticket,
            channel: ticket.channel(),
            result: outcome.result,
            buffer: None,
            batch: None,
            chain: None,
        };
        match outcome.owned {
            Some(SlotBuffer::Buffer(buffer)) => completed.buffer = Some(buffer),
            Some(SlotBuffer::Batch(batch)) => completed.batch = Some(batch),
            Some(SlotBuffer::Chain(chain)) => completed.chain = Some(chain),
            None => {}
        }
        completed
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
    /// The flags of a request of several that has failed, together with those of others if it may be any of them;
    /// `None` if this is one buffer. `at` is `None` for the last.
    #[cold]
    pub(crate) fn flags(&self, at: Option<usize>) -> Option<u32> {
        let requests = match (self, at) {
            (Self::Buffer(_), _) => return None,
            (Self::Chain(chain), at) => chain.in_flight(at).map(slice::from_ref),
            (Self::Batch(requests), None) => requests.last().map(slice::from_ref),
            // All but the last have the same `wr_id`.
            (Self::Batch(requests), Some(_)) => requests.split_last().map(|(_, others)| others),
        };
        let flags = requests.unwrap_or_default().iter();
        Some(flags.fold(0, |all, request| all | request.op.flags()))
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
