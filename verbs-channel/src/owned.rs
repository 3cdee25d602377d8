//! Owned buffers: given to the channel by value, returned with the result.
#![expect(unsafe_code, reason = "hands buffers to the card that the slot keeps")]

use std::time::Duration;

use verbs_core::{RemoteMemoryRegion, ScatterElement, WorkSuccess};

use crate::buffer::OwnedBuffer;
use crate::channel::{Channel, Hold};
use crate::channel_id::ChannelId;
use crate::engine::Engine;
use crate::error::{DownReason, Queue, Refusal, Rejected, Result, TransportError};
use crate::slots::{BufferOwner, Id, Reservation};
use crate::work::{Incoming, IncomingSaid, Outgoing, OutgoingSaid};

/// Work on a buffer that the channel owns meanwhile: the buffer, and all that is said about it.
///
/// Made by `into()` from an [`Outgoing`] or [`Incoming`] of a buffer, or by
/// [`receive`](Self::receive).
///
/// ```
/// # use verbs_channel::{Incoming, Outgoing, OwnedWork, PoolBuffer, verbs_core::RemoteMemoryRegion};
/// # fn of(block: PoolBuffer, another: PoolBuffer, third: PoolBuffer, remote: RemoteMemoryRegion) {
/// let batch: Vec<OwnedWork> = vec![
///     Outgoing::write(block, remote).into(),
///     Incoming::read(another, remote).fence().into(),
///     Outgoing::send(third).immediate(7).into(),
/// ];
/// # }
/// ```
#[derive(Debug)]
#[must_use = "work does nothing until it is started"]
pub struct OwnedWork {
    pub(crate) buffer: OwnedBuffer,
    pub(crate) said: Said,
}

/// What is said about work on an owned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said {
    Outgoing(OutgoingSaid),
    Incoming(IncomingSaid),
    Receive,
}

impl OwnedWork {
    /// A receive into the buffer's range.
    pub fn receive(buffer: impl Into<OwnedBuffer>) -> Self {
        Self {
            buffer: buffer.into(),
            said: Said::Receive,
        }
    }

    /// The queue that it goes to.
    #[must_use]
    pub const fn queue(&self) -> Queue {
        match self.said {
            Said::Outgoing(_) | Said::Incoming(_) => Queue::Send,
            Said::Receive => Queue::Receive,
        }
    }

    /// The buffer.
    #[must_use]
    pub const fn buffer(&self) -> &OwnedBuffer {
        &self.buffer
    }

    /// The buffer, to fill it or to set its range.
    #[must_use]
    pub const fn buffer_mut(&mut self) -> &mut OwnedBuffer {
        &mut self.buffer
    }

    /// The buffer, back.
    #[must_use]
    pub fn into_buffer(self) -> OwnedBuffer {
        self.buffer
    }
}

impl<B: Into<OwnedBuffer>> From<Outgoing<B>> for OwnedWork {
    fn from(work: Outgoing<B>) -> Self {
        Self {
            buffer: work.list.into(),
            said: Said::Outgoing(work.said),
        }
    }
}

impl<B: Into<OwnedBuffer>> From<Incoming<B>> for OwnedWork {
    fn from(work: Incoming<B>) -> Self {
        Self {
            buffer: work.list.into(),
            said: Said::Incoming(work.said),
        }
    }
}

/// Names an operation on an owned buffer. Its result can be taken once, in any order.
///
/// Losing a ticket loses nothing:
/// [`next_completed`](crate::Channel::next_completed) finds what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a ticket is how the buffer comes back"]
pub struct Ticket {
    pub(crate) channel: ChannelId,
    pub(crate) id: Id,
}

impl Ticket {
    /// The number of its slot: for a table of the caller's own, beside the channel's.
    ///
    /// It is below the number of operations that can be in flight in both queues, of all channels of
    /// a group, and of those that were removed with results left; [`reserve`] adds to that. Once the
    /// result has been taken, another operation gets it.
    ///
    /// [`reserve`]: crate::ChannelGroup::reserve
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

/// An operation on an owned buffer that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Which operation it was.
    pub ticket: Ticket,
    /// The channel that it was on.
    pub channel: ChannelId,
    /// How it ended. A receive's length is its
    /// [`byte_len`](verbs_core::WorkSuccess::byte_len).
    pub result: Result<WorkSuccess, TransportError>,
    /// The buffer, back; `None` if the result is [`Stuck`](TransportError::Stuck), and for a batch.
    pub buffer: Option<OwnedBuffer>,
    /// A batch, back as it was started; `None` if the result is [`Stuck`](TransportError::Stuck), and
    /// for everything else.
    pub batch: Option<Vec<OwnedWork>>,
}

/// What a slot keeps.
// With a tag of its own: one that hides in the vector's capacity takes longer to look at.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum Kept {
    Buffer(OwnedBuffer),
    Batch(Vec<OwnedWork>),
}

impl Kept {
    /// Takes what a slot keeps, if it is one buffer.
    #[inline(always)]
    pub(crate) fn take_buffer(place: &mut Option<Self>) -> Option<OwnedBuffer> {
        let Some(Self::Buffer(buffer)) = place else {
            return None;
        };
        let buffer = buffer.take();
        *place = None;
        Some(buffer)
    }

    /// Releases nothing of it, ever; how many buffers that is.
    #[expect(clippy::mem_forget, reason = "the card may still touch it")]
    pub(crate) fn leak(self) -> usize {
        let count = match &self {
            Self::Buffer(_) => 1,
            Self::Batch(works) => works.len(),
        };
        std::mem::forget(self);
        count
    }
}

impl<H: Hold> Channel<H> {
    /// Starts work on an owned buffer's range, with everything that can be said about it. The
    /// buffer comes back with the result, by its ticket, in any order.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the work: the queue is full, or the channel down;
    /// [`Refusal::RemoteTooShort`]; [`Refusal::Misaligned`] for an atomic whose range is not
    /// of 8 bytes. Its buffer is empty in one case: the driver took a part of the work, and
    /// refused to destroy the queue pair, so that the buffer had to be leaked.
    pub fn start(&mut self, work: impl Into<OwnedWork>) -> Result<Ticket, Rejected<OwnedWork>> {
        let mut work = work.into();
        self.start_from(&mut work)
            .map_err(|refusal| Rejected::new(refusal, work))
    }

    /// [`start`](Self::start) for work that stays where it is: its buffer is taken, and an
    /// [empty](OwnedBuffer::empty) one left; or it is as it was, if it is refused.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and why.
    #[inline(always)]
    pub fn start_from(&mut self, work: &mut OwnedWork) -> Result<Ticket, Refusal> {
        let (engine, at) = self.parts();
        engine.start(at, work)
    }

    /// Starts to send an owned buffer's range. It comes back with the result, by its ticket,
    /// in any order.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffer: the queue is full, or the channel down.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn start_send(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        self.start(Outgoing::send(buffer)).map_err(buffer_of)
    }

    /// [`start_send`](Self::start_send) with 32 bits for the peer's completion.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn start_send_with_immediate(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        imm_data: u32,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        let work = Outgoing::send(buffer).immediate(imm_data);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to receive into an owned buffer's range.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn start_receive(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        self.start(OwnedWork::receive(buffer)).map_err(buffer_of)
    }

    /// Starts to write an owned buffer's range to where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`start_send`](Self::start_send); [`Refusal::RemoteTooShort`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn start_write(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        self.start(Outgoing::write(buffer, remote))
            .map_err(buffer_of)
    }

    /// [`start_write`](Self::start_write) with 32 bits for the peer's completion.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn start_write_with_immediate(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        imm_data: u32,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        let work = Outgoing::write(buffer, remote).immediate(imm_data);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to read into an owned buffer's range, from where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`start_write`](Self::start_write).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn start_read(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        self.start(Incoming::read(buffer, remote))
            .map_err(buffer_of)
    }

    /// Starts a compare-and-swap of the 8 bytes at `remote`: if they are `compare`, they
    /// become `swap`. What they were comes into the buffer's range, of 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the buffer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn start_compare_swap(
        &mut self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        let work = Incoming::compare_and_swap(before, remote, compare, swap);
        self.start(work).map_err(buffer_of)
    }

    /// Starts to add to the 8 bytes at `remote`. What they were comes into the buffer's
    /// range, of 8 bytes.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with the buffer.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn start_fetch_add(
        &mut self,
        before: impl Into<OwnedBuffer>,
        remote: RemoteMemoryRegion,
        add: u64,
    ) -> Result<Ticket, Rejected<OwnedBuffer>> {
        self.start(Incoming::fetch_and_add(before, remote, add))
            .map_err(buffer_of)
    }

    /// Starts a batch: one doorbell, one completion, one ticket. All of it comes back, as it
    /// was, with the result, and can be started again. Its first failure is the batch's; what
    /// succeeded before that has been done.
    ///
    /// It is of work for the send queue: receives have a completion each, and are started one
    /// by one. Up to 32 long it allocates nothing.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), with all of the work; [`Refusal::BatchTooLong`] for more
    /// than the send queue can ever hold, [`Refusal::EmptyBatch`],
    /// [`Refusal::ReceiveInBatch`].
    #[doc(alias = "ibv_post_send")]
    pub fn start_batch(
        &mut self,
        works: Vec<OwnedWork>,
    ) -> Result<Ticket, Rejected<Vec<OwnedWork>>> {
        let (engine, at) = self.parts();
        engine.start_batch(at, works)
    }

    /// The result and the buffer of an operation, if it is done; polls once if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`](crate::Error::StaleTicket) if they were taken before, or the
    /// ticket is another channel's.
    #[inline]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        let (engine, at) = self.parts();
        engine.poll_ticket_of(at, ticket)
    }

    /// The result and the buffer of an operation, waited for; `None` if `timeout` passes
    /// first. It goes on then, and can be waited for again. Without a timeout it waits for
    /// ever.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn wait(&mut self, ticket: Ticket, timeout: Option<Duration>) -> Result<Option<Completed>> {
        let (engine, at) = self.parts();
        engine.wait_ticket_of(at, ticket, timeout)
    }
}

impl Engine {
    /// Posts work on a buffer, which is moved to its slot.
    #[inline(always)]
    pub(crate) fn start(&mut self, at: u32, work: &mut OwnedWork) -> Result<Ticket, Refusal> {
        let reservation = Reservation::send(at).owned_by(BufferOwner::Slot);
        let mut element = work.buffer.element()?;
        let posted = match work.said {
            Said::Outgoing(said) => {
                // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue pair
                // cannot be destroyed; moving the buffer does not move its bytes.
                unsafe {
                    self.post::<Outgoing<ScatterElement<'_>>>(reservation, &mut element, said)
                }
            }
            Said::Incoming(said) => {
                // SAFETY: as above.
                unsafe {
                    self.post::<Incoming<ScatterElement<'_>>>(reservation, &mut element, said)
                }
            }
            Said::Receive => {
                let reservation = Reservation::receive(at).owned_by(BufferOwner::Slot);
                // SAFETY: as above.
                unsafe { self.post_receive(reservation, &mut element) }
            }
        };
        match posted {
            Ok(ticket) => {
                let buffer = work.buffer.take();
                self.slots.keep(ticket.id, Kept::Buffer(buffer));
                Ok(ticket)
            }
            Err(refusal) => {
                if self.half_posted.is_some() {
                    work.buffer = self.not_started(at, refusal, work.buffer.take());
                }
                Err(refusal)
            }
        }
    }

    // Of the buffer alone: work that something points to would have to be in memory.
    #[cold]
    #[inline(never)]
    fn not_started(&mut self, at: u32, refusal: Refusal, buffer: OwnedBuffer) -> OwnedBuffer {
        match self.end_half_posted(at, refusal, Kept::Buffer(buffer)) {
            Some(Kept::Buffer(buffer)) => buffer,
            _ => OwnedBuffer::empty(),
        }
    }

    /// Ends an operation of which the device may have a part, and that was to own its buffers:
    /// destroys the queue pair, and gives them back; or leaks them, if the driver refuses that.
    pub(crate) fn end_half_posted(
        &mut self,
        at: u32,
        refusal: Refusal,
        kept: Kept,
    ) -> Option<Kept> {
        let (Some(id), Refusal::Post(error)) = (self.half_posted.take(), refusal) else {
            return Some(kept);
        };
        self.slots.keep(id, kept);
        self.destroy(at, DownReason::Post(error));
        let kept = self.slots.take_buffer(id);
        let _aborted = self.release(at, id);
        kept
    }

    /// Ends an operation of which the device may have a part, and whose buffers the caller keeps:
    /// destroys the queue pair. Its outcome tells whether the device is done with them.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_half_unpolled(&mut self, at: u32, refusal: Refusal) -> Option<Ticket> {
        let (Some(id), Refusal::Post(error)) = (self.half_posted.take(), refusal) else {
            return None;
        };
        self.destroy(at, DownReason::Post(error));
        Some(self.ticket(at, id))
    }

    /// Names an operation of a channel.
    #[inline]
    pub(crate) fn ticket(&self, at: u32, id: Id) -> Ticket {
        let member = self.members.get(at as usize);
        let channel = member.map_or(ChannelId::NONE, |member| member.id);
        Ticket { channel, id }
    }
}

/// What was refused, without what was said about it.
#[cold]
fn buffer_of(rejected: Rejected<OwnedWork>) -> Rejected<OwnedBuffer> {
    let refusal = rejected.refusal();
    Rejected::new(refusal, rejected.into_given().buffer)
}
