//! Posts of requests on owned buffers, which go into their slots.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use std::mem::MaybeUninit;
use std::slice;

use verbs_core::error::Rejected;
use verbs_core::memory::Sge;
use verbs_core::work_request::WorkRequest;

use super::build;
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::engine::{BufferOwner, Engine, Id, Reservation, SlotBuffer, Ticket};
use crate::error::{Queue, RejectReason};
use crate::request::{Op, Opcodes, OwnedRequest};

/// The longest batch that is built on the stack.
const LONG: usize = 32;

impl Engine {
    /// Posts a request on an owned buffer: as [`Channel::start`](crate::Channel::start).
    ///
    /// The buffer is taken out of `request`, and an [empty](crate::OwnedBuffer::empty) one left there. If
    /// the request is rejected, it is unchanged.
    ///
    /// # Errors
    ///
    /// As [`Channel::start`](crate::Channel::start), and [`RejectReason::Down`] if there is no such
    /// channel.
    #[inline(always)]
    pub fn start(
        &mut self,
        channel: ChannelId,
        request: &mut OwnedRequest,
    ) -> Result<Ticket, RejectReason> {
        let at = self.place(channel).ok_or(RejectReason::GONE)?;
        self.start_at(at, &mut request.buffer, request.op)
    }

    /// The same by its parts.
    #[inline(always)]
    pub(crate) fn start_at(
        &mut self,
        at: u32,
        buffer: &mut OwnedBuffer,
        op: Op,
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::new(at, op.opcodes(), BufferOwner::Slot);
        // The usual case by itself: out of a `Result`, the element would be copied twice.
        let mut element = match buffer.element_in(self.pd_tag) {
            Some(element) => *element,
            None => buffer.element(self.pd_tag, op.is_inline())?,
        };
        let elements = slice::from_mut(&mut element);
        // SAFETY: the slot keeps the buffer until the operation has ended, and leaks it if the queue pair
        // cannot be destroyed; moving the buffer does not move its bytes.
        let posted = unsafe { self.post_at(reservation, elements, false, op) };
        self.keep(posted, || SlotBuffer::Buffer(buffer.take()))
            .map_err(|(reason, given)| {
                if let Some(SlotBuffer::Buffer(given)) = given {
                    *buffer = given;
                }
                reason
            })
    }

    /// Posts a batch of requests on owned buffers: as
    /// [`Channel::start_batch`](crate::Channel::start_batch).
    ///
    /// # Errors
    ///
    /// As [`Channel::start_batch`](crate::Channel::start_batch), and [`RejectReason::Down`] if there is no
    /// such channel.
    pub fn start_batch(
        &mut self,
        channel: ChannelId,
        requests: Vec<OwnedRequest>,
    ) -> Result<Ticket, Rejected<Vec<OwnedRequest>, RejectReason>> {
        let at = self.place_or_none(channel);
        let posted = match requests.len() {
            0 => Err(RejectReason::EmptyBatch),
            len if len <= LONG => {
                let mut elements = [const { MaybeUninit::uninit() }; LONG];
                let mut built = [const { MaybeUninit::uninit() }; LONG];
                self.post_requests(at, &requests, &mut elements, &mut built)
            }
            len => {
                let (mut elements, mut built) = (Vec::new(), Vec::new());
                elements.resize_with(len, MaybeUninit::uninit);
                built.resize_with(len, MaybeUninit::uninit);
                self.post_requests(at, &requests, &mut elements, &mut built)
            }
        };
        self.keep(posted, || SlotBuffer::Batch(requests))
            .map_err(|(reason, given)| match given {
                Some(SlotBuffer::Batch(requests)) => Rejected::new(reason, requests),
                _ => Rejected::new(reason, Vec::new()),
            })
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only. There is a
    /// place for each request.
    #[inline]
    fn post_requests<'l>(
        &mut self,
        at: u32,
        requests: &[OwnedRequest],
        elements: &'l mut [MaybeUninit<Sge>],
        built: &mut [MaybeUninit<WorkRequest<'l>>],
    ) -> Result<Ticket, RejectReason> {
        let reservation =
            Reservation::batch(at, requests.len(), Opcodes::IN_BUFFERS, BufferOwner::Slot)?;
        let Some(member) = self.member(at) else {
            return Err(RejectReason::GONE);
        };
        let (pd, limits) = (self.pd_tag, member.limits);
        let Some((ticket, qp, cells)) = self.flight.take(reservation) else {
            return Err(self.rejection(at, Queue::Send, reservation.credits));
        };
        let mut bytes = 0;
        let requests = requests.iter().zip(elements).map(|(request, place)| {
            let OwnedRequest { buffer, op } = request;
            let elements = slice::from_mut(place.write(buffer.element(pd, op.is_inline())?));
            let needs = op.needs(elements, false);
            limits.check(Queue::Send, &needs)?;
            bytes += needs.len;
            Ok((elements, op))
        });
        let built = build(requests, built, ticket.id);
        cells.post(reservation.credits, bytes);
        let posted = built.and_then(|requests| {
            // SAFETY: the slot keeps the buffers until the last request has ended, and so all have, and leaks
            // them if the queue pair cannot be destroyed; moving a buffer does not move its bytes.
            unsafe { qp.post(requests) }.map_err(RejectReason::Post)
        });
        self.settle(ticket, posted, bytes)
    }

    /// The operation has its buffers from now on, if it was posted. If not, they are handed back with the reason.
    ///
    /// If the device may have a part of it, the queue pair is destroyed before that; if the driver fails to destroy it,
    /// they are leaked.
    #[inline(always)]
    pub(crate) fn keep(
        &mut self,
        posted: Result<Ticket, RejectReason>,
        buffer: impl FnOnce() -> SlotBuffer,
    ) -> Result<Ticket, (RejectReason, Option<SlotBuffer>)> {
        match posted {
            Ok(ticket) => {
                self.flight.store_buffer(ticket.id, buffer());
                Ok(ticket)
            }
            Err(reason) => Err((reason, self.hand_back(reason, buffer()))),
        }
    }

    #[cold]
    fn hand_back(&mut self, reason: RejectReason, buffer: SlotBuffer) -> Option<SlotBuffer> {
        let Some(id) = self.half_posted else {
            return Some(buffer);
        };
        self.flight.store_buffer(id, buffer);
        let ended = self.end_half_posted(reason)?;
        self.flight.release(ended.id)?.owned
    }

    /// Names an operation of a channel.
    #[inline]
    pub(crate) fn ticket(&self, at: u32, id: Id) -> Ticket {
        let channel = self.id_at(at);
        Ticket { channel, id }
    }
}
