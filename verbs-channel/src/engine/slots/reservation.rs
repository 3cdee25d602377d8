//! The room that an operation holds while it is in flight, and where its buffers belong.

use crate::error::{Queue, RejectReason};

/// Where the buffers of an operation belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferOwner {
    /// To the caller of a scope or of a blocking call, which ends only after the operation.
    Borrowed,
    /// The same, of an operation of a scope whose handle was dropped: its outcome is not taken.
    Detached,
    /// To the slot.
    Slot,
    /// To the slot, of a completed operation whose ticket was given out: it is not ready any more.
    Claimed,
    /// To an `unsafe` caller.
    Caller,
}

impl BufferOwner {
    /// Whether a borrow ends with the operation.
    pub(crate) const fn is_borrowed(self) -> bool {
        matches!(self, Self::Borrowed | Self::Detached)
    }
}

/// The room that an operation holds while it is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Reservation {
    /// Places in its queue.
    pub(crate) credits: u16,
    /// The queue that it is in.
    pub(crate) queue: Queue,
    /// Where its buffers belong.
    pub(crate) owner: BufferOwner,
    /// The channel that it is on.
    pub(crate) member: u32,
}

impl Reservation {
    /// All of it in one word, as it stands in memory: derived equality looks at each field.
    #[inline]
    pub(super) const fn word(self) -> u64 {
        self.credits as u64
            | (self.queue as u64) << 16
            | (self.owner as u64) << 24
            | (self.member as u64) << 32
    }

    /// The reservation of a free slot.
    pub(crate) const NOTHING: Self = Self {
        credits: 0,
        ..Self::new(0, Queue::Send)
    };

    /// For one work request, with borrowed buffers.
    #[inline(always)]
    pub(crate) const fn new(member: u32, queue: Queue) -> Self {
        Self {
            member,
            credits: 1,
            queue,
            owner: BufferOwner::Borrowed,
        }
    }

    /// The same for buffers that belong elsewhere.
    #[inline]
    pub(crate) const fn owned_by(self, owner: BufferOwner) -> Self {
        Self { owner, ..self }
    }

    /// The same for a batch of `count` requests, if a reservation can be that large.
    #[inline]
    pub(crate) fn times(self, count: usize) -> Result<Self, RejectReason> {
        match u16::try_from(count) {
            Ok(credits) => Ok(Self { credits, ..self }),
            Err(_) => Err(RejectReason::BatchTooLong {
                asked: u32::try_from(count).unwrap_or(u32::MAX),
                max: u16::MAX.into(),
            }),
        }
    }
}
