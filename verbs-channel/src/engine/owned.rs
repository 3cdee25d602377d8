//! Posts of requests on owned buffers, which go into their slots.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use std::mem::ManuallyDrop;

use super::Engine;
use super::slots::{BufferOwner, Id, Reservation};
use super::ticket::{SlotBuffer, Ticket};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, RejectReason};
use crate::request::{Incoming, Op, Outgoing, OwnedElement, OwnedRequest, Request};

impl Engine {
    /// Posts a request on a buffer, which is moved to its slot.
    #[inline(always)]
    pub(crate) fn start_at(
        &mut self,
        at: u32,
        request: &mut OwnedRequest,
    ) -> Result<Ticket, RejectReason> {
        match request.op {
            Op::Outgoing(options) => {
                self.start_as::<Outgoing<OwnedElement>>(at, &mut request.buffer, options)
            }
            Op::Incoming(options) => {
                self.start_as::<Incoming<OwnedElement>>(at, &mut request.buffer, options)
            }
            Op::Receive => self.start_receive_at(at, &mut request.buffer),
        }
    }

    /// Posts a request with these options on a buffer, which is moved to its slot.
    #[inline(always)]
    pub(crate) fn start_as<W: Request<List = OwnedElement>>(
        &mut self,
        at: u32,
        buffer: &mut OwnedBuffer,
        options: W::Options,
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::send(at).owned_by(BufferOwner::Slot);
        let mut element = buffer.element(self.pd_tag)?;
        // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue pair cannot
        // be destroyed; moving the buffer does not move its bytes.
        let posted =
            unsafe { self.post_at::<W>(reservation, &mut element, options, store(buffer)) };
        posted.inspect_err(|&reason| self.restore_buffer(at, reason, buffer))
    }

    /// Posts a receive into a buffer, which is moved to its slot.
    #[inline(always)]
    fn start_receive_at(
        &mut self,
        at: u32,
        buffer: &mut OwnedBuffer,
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::receive(at).owned_by(BufferOwner::Slot);
        let mut element = buffer.element(self.pd_tag)?;
        // SAFETY: as for `start_as`.
        let posted = unsafe { self.post_receive_at(reservation, &mut element, store(buffer)) };
        posted.inspect_err(|&reason| self.restore_buffer(at, reason, buffer))
    }

    /// A request was rejected. Its buffer is in its place, unless the device may have a part of the
    /// request.
    #[inline(always)]
    fn restore_buffer(&mut self, at: u32, reason: RejectReason, buffer: &mut OwnedBuffer) {
        if self.half_posted.is_some() {
            *buffer = self.not_started(at, reason, buffer.take());
        }
    }

    // By value: behind a reference, the buffer would have to be in memory.
    #[cold]
    #[inline(never)]
    fn not_started(&mut self, at: u32, reason: RejectReason, buffer: OwnedBuffer) -> OwnedBuffer {
        match self.end_half_posted(at, reason, SlotBuffer::Buffer(buffer)) {
            Some(SlotBuffer::Buffer(buffer)) => buffer,
            _ => OwnedBuffer::empty(),
        }
    }

    /// Ends an operation of which the device may have a part, and that was to own its buffers:
    /// destroys the queue pair, and returns them; or leaks them, if the driver fails to destroy it.
    pub(crate) fn end_half_posted(
        &mut self,
        at: u32,
        reason: RejectReason,
        buffer: SlotBuffer,
    ) -> Option<SlotBuffer> {
        let (Some(id), RejectReason::Post(error)) = (self.half_posted.take(), reason) else {
            return Some(buffer);
        };
        self.slots.store_buffer(id, buffer);
        self.destroy_at(at, DownReason::Post(error));
        let buffer = self.slots.take_buffer(id);
        let _aborted = self.release(at, id);
        buffer
    }

    /// Names an operation of a channel.
    #[inline]
    pub(crate) fn ticket(&self, at: u32, id: Id) -> Ticket {
        let member = self.members.get(at as usize);
        let channel = member.map_or(ChannelId::NONE, |member| member.id);
        Ticket { channel, id }
    }
}

/// Moves a buffer to its place in a slot.
#[inline(always)]
fn store(buffer: &mut OwnedBuffer) -> impl FnOnce(&mut Option<SlotBuffer>) {
    |place| {
        // The place is empty: to drop what is there would be one more test.
        let _empty = ManuallyDrop::new(place.replace(SlotBuffer::Buffer(buffer.take())));
    }
}
