//! Posts of requests on owned buffers, which go into their slots.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use std::mem::ManuallyDrop;

use super::Engine;
use super::slots::{BufferOwner, Id, Reservation};
use super::ticket::{SlotBuffer, Ticket};
use crate::buffer::{OwnedBuffer, OwnedElement};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, RejectReason};
use crate::request::{Incoming, Op, Outgoing, OwnedRequest, Request};

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
        let mut element = buffer.element(self.pd_tag, || W::is_inline(options))?;
        // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue pair cannot
        // be destroyed; moving the buffer does not move its bytes.
        let posted =
            unsafe { self.post_at::<W, false>(reservation, &mut element, options, store(buffer)) };
        match posted {
            Ok(ticket) => Ok(ticket),
            Err(reason) => {
                let again = move |engine: &mut Self, buffer: &mut OwnedBuffer| {
                    engine.start_as::<W>(at, buffer, options)
                };
                let (started, given) = self.start_again(reservation, reason, buffer.take(), again);
                *buffer = given;
                started
            }
        }
    }

    /// Posts a receive into a buffer, which is moved to its slot.
    #[inline(always)]
    fn start_receive_at(
        &mut self,
        at: u32,
        buffer: &mut OwnedBuffer,
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::receive(at).owned_by(BufferOwner::Slot);
        let mut element = buffer.element(self.pd_tag, || false)?;
        // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue pair cannot
        // be destroyed.
        let posted =
            unsafe { self.post_receive_at::<_, false>(reservation, &mut element, store(buffer)) };
        match posted {
            Ok(ticket) => Ok(ticket),
            Err(reason) => {
                let again = move |engine: &mut Self, buffer: &mut OwnedBuffer| {
                    engine.start_receive_at(at, buffer)
                };
                let (started, given) = self.start_again(reservation, reason, buffer.take(), again);
                *buffer = given;
                started
            }
        }
    }

    /// A request was rejected. It is started again if there is common room for it now; its buffer is
    /// returned if not, unless the device may have a part of the request.
    // Takes the buffer by value, so that it need not be in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn start_again(
        &mut self,
        reservation: Reservation,
        reason: RejectReason,
        mut buffer: OwnedBuffer,
        again: impl FnOnce(&mut Self, &mut OwnedBuffer) -> Result<Ticket, RejectReason>,
    ) -> (Result<Ticket, RejectReason>, OwnedBuffer) {
        if reason.is_for_room() && self.make_room(reservation) {
            return (again(self, &mut buffer), buffer);
        }
        let at = reservation.member;
        let buffer = match self.end_half_posted(at, reason, SlotBuffer::Buffer(buffer)) {
            Some(SlotBuffer::Buffer(buffer)) => buffer,
            _ => OwnedBuffer::empty(),
        };
        (Err(reason), buffer)
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
        self.destroy_now(at, DownReason::Post(error));
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
