//! Posts of requests on owned buffers, which go into their slots.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use verbs_core::ScatterElement;

use super::Engine;
use super::slots::{BufferOwner, Id, Reservation};
use super::ticket::{Kept, Ticket};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Refusal};
use crate::request::{Incoming, Op, Outgoing, OwnedWork};

impl Engine {
    /// Posts work on a buffer, which is moved to its slot.
    #[inline(always)]
    pub(crate) fn start_at(&mut self, at: u32, work: &mut OwnedWork) -> Result<Ticket, Refusal> {
        let reservation = Reservation::send(at).owned_by(BufferOwner::Slot);
        let mut element = work.buffer.element()?;
        let posted = match work.op {
            Op::Outgoing(options) => {
                // SAFETY: the slot keeps the buffer until it is done, and leaks it if the queue pair
                // cannot be destroyed; moving the buffer does not move its bytes.
                unsafe {
                    self.post_at::<Outgoing<ScatterElement<'_>>>(reservation, &mut element, options)
                }
            }
            Op::Incoming(options) => {
                // SAFETY: as above.
                unsafe {
                    self.post_at::<Incoming<ScatterElement<'_>>>(reservation, &mut element, options)
                }
            }
            Op::Receive => {
                let reservation = Reservation::receive(at).owned_by(BufferOwner::Slot);
                // SAFETY: as above.
                unsafe { self.post_receive_at(reservation, &mut element) }
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
        self.destroy_at(at, DownReason::Post(error));
        let kept = self.slots.take_buffer(id);
        let _aborted = self.release(at, id);
        kept
    }

    /// Names an operation of a channel.
    #[inline]
    pub(crate) fn ticket(&self, at: u32, id: Id) -> Ticket {
        let member = self.members.get(at as usize);
        let channel = member.map_or(ChannelId::NONE, |member| member.id);
        Ticket { channel, id }
    }
}
