//! Batches of requests on owned buffers: one doorbell, one completion, one ticket.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use std::mem::MaybeUninit;
use std::ptr;

use verbs_core::{Rejected, WorkRequest};

use super::Engine;
use super::gate::Limits;
use super::member::NewOperation;
use super::slots::{BufferOwner, Reservation};
use super::ticket::{Several, SlotBuffer, Ticket};
use crate::buffer::{OwnedElement, PdTag};
use crate::error::RejectReason;
use crate::request::sealed::Sealed as _;
use crate::request::{Incoming, Needs, Op, Outgoing, OwnedRequest};

/// The longest chain that is built on the stack.
const LONG: usize = 32;

impl Engine {
    /// Posts a batch, which goes into its slot.
    pub(crate) fn start_batch_at(
        &mut self,
        at: u32,
        mut requests: Vec<OwnedRequest>,
    ) -> Result<Ticket, Rejected<Vec<OwnedRequest>, RejectReason>> {
        let posted = match requests.len() {
            0 => Err(RejectReason::EmptyBatch),
            len if len <= LONG => {
                let mut elements = [const { MaybeUninit::uninit() }; LONG];
                let mut built = [const { MaybeUninit::uninit() }; LONG];
                self.post_requests(at, &mut requests, &mut elements, &mut built)
            }
            len => {
                let (mut elements, mut built) = (Vec::new(), Vec::new());
                elements.resize_with(len, MaybeUninit::uninit);
                built.resize_with(len, MaybeUninit::uninit);
                self.post_requests(at, &mut requests, &mut elements, &mut built)
            }
        };
        match posted {
            Ok(ticket) => {
                self.slots
                    .store_buffer(ticket.id, SlotBuffer::Several(Several::Batch(requests)));
                Ok(ticket)
            }
            Err(reason) if reason.is_for_room() && self.makes_room_for(at, requests.len()) => {
                self.start_batch_at(at, requests)
            }
            Err(reason) => match self.end_half_posted(
                at,
                reason,
                SlotBuffer::Several(Several::Batch(requests)),
            ) {
                Some(SlotBuffer::Several(Several::Batch(requests))) => {
                    Err(Rejected::new(reason, requests))
                }
                _ => Err(Rejected::new(reason, Vec::new())),
            },
        }
    }

    /// Makes room for a batch of `count` requests if the channel can have it; whether it did.
    fn makes_room_for(&mut self, at: u32, count: usize) -> bool {
        let reservation = Reservation::send(at).times(count);
        reservation.is_ok_and(|reservation| self.make_room(reservation))
    }

    /// Posts a batch to a member's send queue, of which only the last request is signalled: one
    /// doorbell, and one slot for all. There is a place for each request.
    #[inline]
    fn post_requests<'a>(
        &mut self,
        at: u32,
        requests: &mut [OwnedRequest],
        elements: &'a mut [MaybeUninit<OwnedElement>],
        built: &mut [MaybeUninit<WorkRequest<'a>>],
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::send(at)
            .times(requests.len())?
            .owned_by(BufferOwner::Slot);
        let Some(member) = self.members.get_mut(at as usize) else {
            return Err(RejectReason::GONE);
        };
        let channel = member.id;
        let Some(NewOperation {
            qp,
            limits,
            id,
            flags,
            ..
        }) = member.take(&mut self.slots, reservation)
        else {
            return Err(self.rejection(reservation));
        };
        *flags = 0;
        let pd = self.pd_tag;
        let mut places = requests.iter().zip(elements).zip(built.iter_mut());
        let last = places.next_back();
        // The last is apart, so that what all others have in common is checked once.
        let count = build(places, pd, limits, id.member_wr_id(), false)
            .and_then(|others| Ok(others + build(last.into_iter(), pd, limits, id.wr_id(), true)?));
        let built = match count {
            Ok(count) => built.get_mut(..count).unwrap_or_default(),
            Err(reason) => return Err(self.rejected(reservation, id, reason)),
        };
        let built = ptr::from_mut(built) as *mut [WorkRequest<'_>];
        // SAFETY: the loop above has written to the first places, of which `built` consists.
        let built = unsafe { &mut *built };
        // SAFETY: the slot keeps the buffers until the last is done, and so all are, and leaks them
        // if the queue pair cannot be destroyed; moving a buffer does not move its bytes.
        match unsafe { qp.post(built) } {
            Ok(()) => Ok(Ticket { channel, id }),
            Err(error) => Err(self.rejected(reservation, id, RejectReason::Post(error))),
        }
    }
}

/// Builds requests in the places they are posted from; how many.
#[inline(always)]
fn build<'a, 'p, 'r>(
    places: impl Iterator<
        Item = (
            (&'r OwnedRequest, &'a mut MaybeUninit<OwnedElement>),
            &'p mut MaybeUninit<WorkRequest<'a>>,
        ),
    >,
    pd: PdTag,
    limits: &Limits,
    wr_id: u64,
    signaled: bool,
) -> Result<usize, RejectReason>
where
    'a: 'p,
{
    let mut built = 0;
    for ((request, element), place) in places {
        let element = element.write(request.buffer.element(pd, || request.op.is_inline())?);
        let write = |built| {
            place.write(built);
        };
        match request.op {
            Op::Outgoing(options) => {
                let mut needs = Needs::default();
                Outgoing::add_needs(element, options, &mut needs);
                limits.check(&needs)?;
                // SAFETY: a single element is not a wide list.
                unsafe { Outgoing::request(element, options, wr_id, signaled, write)? };
            }
            Op::Incoming(options) => {
                let mut needs = Needs::default();
                Incoming::add_needs(element, options, &mut needs);
                limits.check(&needs)?;
                // SAFETY: a single element is not a wide list.
                unsafe { Incoming::request(element, options, wr_id, signaled, write)? };
            }
            Op::Receive => return Err(RejectReason::ReceiveInBatch),
        }
        built += 1;
    }
    Ok(built)
}
