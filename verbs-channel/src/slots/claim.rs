//! What an operation takes up, and who keeps its buffers.

use crate::error::{Queue, Refusal};

/// Who keeps the buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// Whoever lent them: the operation must end before the scope or the blocking call does.
    Lender,
    /// The same, of an operation of a scope whose handle was dropped: nobody will take the result.
    Detached,
    /// The slot itself.
    Slot,
    /// The slot itself, of an operation that is done and was named to whoever takes its result.
    Named,
    /// An `unsafe` caller.
    Caller,
}

/// What an operation takes up while it is in flight.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Claim {
    /// Places in its queue.
    pub(crate) credits: u16,
    /// Which queue it is in.
    pub(crate) queue: Queue,
    /// Who keeps its buffers.
    pub(crate) keeper: Keeper,
    /// Whose it is.
    pub(crate) member: u32,
}

impl PartialEq for Claim {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.word() == other.word()
    }
}

impl Eq for Claim {}

impl Claim {
    /// All of it in one word, as it stands in memory: derived, equality would look at each field.
    #[inline]
    const fn word(self) -> u64 {
        self.credits as u64
            | (self.queue as u64) << 16
            | (self.keeper as u64) << 24
            | (self.member as u64) << 32
    }

    /// Of a free slot.
    pub(crate) const NOTHING: Self = Self {
        credits: 0,
        ..Self::send(0)
    };

    /// Of one work request for the send queue, whose buffers are lent.
    #[inline]
    pub(crate) const fn send(member: u32) -> Self {
        Self {
            member,
            credits: 1,
            queue: Queue::Send,
            keeper: Keeper::Lender,
        }
    }

    /// Of a receive, whose buffers are lent.
    #[inline]
    pub(crate) const fn receive(member: u32) -> Self {
        let queue = Queue::Receive;
        Self {
            queue,
            ..Self::send(member)
        }
    }

    /// The same for buffers of another keeper.
    #[inline]
    pub(crate) const fn kept_by(self, keeper: Keeper) -> Self {
        Self { keeper, ..self }
    }

    /// The same for a batch of as many, if a claim can be that large.
    #[inline]
    pub(crate) fn times(self, count: usize) -> Result<Self, Refusal> {
        match u16::try_from(count) {
            Ok(credits) => Ok(Self { credits, ..self }),
            Err(_) => Err(Refusal::BatchTooLong {
                asked: u32::try_from(count).unwrap_or(u32::MAX),
                max: u16::MAX.into(),
            }),
        }
    }
}
