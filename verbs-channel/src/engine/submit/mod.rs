//! Posts: the gate, credits with a slot, and the driver.
#![expect(unsafe_code, reason = "hands buffers to the device")]

use std::mem::MaybeUninit;
use std::ptr;

use verbs_core::__private::set_options;
use verbs_core::ReceiveWorkRequest;
use verbs_core::error::Rejected;
use verbs_core::memory::Sge;
use verbs_core::work_request::WorkRequest;

use super::{BufferOwner, Engine, Id, Reservation, Ticket};
use crate::error::{DownReason, Queue, RejectReason};
use crate::request::{List, Needs, Op, Opcodes, Place, Request, Sealed as _};

mod chain;
mod owned;

impl Engine {
    /// Posts a request over these elements to a member's queue, with a completion.
    ///
    /// # Safety
    ///
    /// - The buffers that the elements name stay as
    ///   [`QueuePair::post`](verbs_core::QueuePair::post) wants them until the operation has ended, which it
    ///   has when its completion is polled, or the queue pair destroyed. If this is an error, that is after
    ///   [`end_half_posted`](Self::end_half_posted).
    #[inline(always)]
    pub(crate) unsafe fn post_at(
        &mut self,
        reservation: Reservation,
        elements: &mut [Sge],
        is_shared: bool,
        op: Op,
    ) -> Result<Ticket, RejectReason> {
        let Some(member) = self.flight.members.get(reservation.member as usize) else {
            return Err(RejectReason::GONE);
        };
        let (needs, queue) = (op.needs(elements, is_shared), op.queue());
        member.limits.check(queue, &needs)?;
        let Some((ticket, qp, cells)) = self.flight.take(reservation) else {
            return Err(self.rejection(reservation.member, queue, reservation.credits));
        };
        let id = ticket.id;
        let mut place = MaybeUninit::uninit();
        let (reason, bytes) = match queue {
            Queue::Send => {
                cells.post(1, needs.len);
                let reason = match op.build(elements, id.wr_id(), &mut place) {
                    Ok(request) => {
                        set_options(request, id.wr_id(), op.signaled());
                        // SAFETY: the caller promises that the buffers stay until the operation has ended.
                        match unsafe { qp.post(request) } {
                            Ok(()) => return Ok(ticket),
                            Err(error) => RejectReason::Post(error),
                        }
                    }
                    Err(reason) => reason,
                };
                // Added up again: `needs` would be in memory for this, where the request is posted, too.
                (reason, op.needs(elements, is_shared).len)
            }
            Queue::Receive => {
                cells.post(1, 0);
                let request = ReceiveWorkRequest::new(elements).wr_id(id.wr_id());
                // SAFETY: the caller promises that the buffers stay until the operation has ended. A queue
                // pair on a shared receive queue has no credits for receives.
                match unsafe { qp.post_receive(&mut [request]) } {
                    Ok(()) => return Ok(ticket),
                    Err(error) => (RejectReason::Post(error), 0),
                }
            }
        };
        Err(self.rejected(id, reason, bytes))
    }

    /// [`post_at`](Self::post_at) with a list of elements.
    ///
    /// # Safety
    ///
    /// - As for [`post_at`](Self::post_at).
    #[inline(always)]
    pub(crate) unsafe fn post_list<L: List>(
        &mut self,
        at: u32,
        owner: BufferOwner,
        list: &mut L,
        op: Op,
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::new(at, op.opcodes(), owner);
        let mut place = Place::new();
        let elements = list.sges(&self.pd, &mut place)?;
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        unsafe { self.post_at(reservation, elements, L::IS_SHARED, op) }
    }

    /// # Safety
    ///
    /// As for [`Channel::post_unpolled`](crate::Channel::post_unpolled).
    pub(crate) unsafe fn post_unpolled_at<W: Request>(
        &mut self,
        at: u32,
        mut request: W,
    ) -> Result<Ticket, Rejected<W, RejectReason>> {
        let (list, op) = request.parts();
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        let posted = unsafe { self.post_list(at, BufferOwner::Caller, list, *op) };
        posted
            .or_else(|reason| self.end_half_posted(reason).ok_or(reason))
            .map_err(|reason| Rejected::new(reason, request))
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only.
    ///
    /// # Safety
    ///
    /// - As for [`post_at`](Self::post_at).
    #[inline]
    pub(crate) unsafe fn post_batch_at<W: Request, const N: usize>(
        &mut self,
        at: u32,
        requests: &mut [W; N],
    ) -> Result<Ticket, RejectReason> {
        const { assert!(N > 0, "a batch has requests in it") };
        let Some(member) = self.flight.member(at) else {
            return Err(RejectReason::GONE);
        };
        let (pd, limits) = (&self.pd, &member.limits);
        let mut bytes = 0;
        let needs_of = |request: &mut W| {
            let (list, op) = request.parts();
            let mut place = Place::new();
            let elements = list.sges(pd, &mut place)?;
            Ok::<_, RejectReason>(op.needs(elements, W::List::IS_SHARED))
        };
        // All at once: one by one takes twice as long.
        let mut all = Needs::default();
        for request in requests.iter_mut() {
            let needs = needs_of(request)?;
            bytes += needs.len;
            all.add(&needs);
        }
        if limits.check(Queue::Send, &all).is_err() {
            for request in requests.iter_mut() {
                limits.check(Queue::Send, &needs_of(request)?)?;
            }
        }
        let opcodes = Opcodes::in_these(all.flags);
        if opcodes.queue() == Queue::Receive {
            return Err(RejectReason::ReceiveInBatch);
        }
        let reservation = Reservation::batch(at, N, opcodes, BufferOwner::Borrowed)?;
        let Some((ticket, qp, cells)) = self.flight.take(reservation) else {
            return Err(self.rejection(at, Queue::Send, reservation.credits));
        };
        cells.post(reservation.credits, bytes);
        let mut places = [const { Place::new() }; N];
        let mut built = [const { MaybeUninit::uninit() }; N];
        let requests = requests
            .iter_mut()
            .zip(&mut places)
            .map(|(request, place)| {
                let (list, op) = request.parts();
                Ok((list.sges(pd, place)?, op))
            });
        let posted = build(requests, &mut built, ticket.id).and_then(|requests| {
            // SAFETY: the caller promises that the buffers stay until the operation has ended; when the last of
            // a batch has, so have the others.
            unsafe { qp.post(requests) }.map_err(RejectReason::Post)
        });
        self.settle(ticket, posted, bytes)
    }

    /// Why an operation gets no slot and no credits.
    #[cold]
    #[inline(never)]
    pub(super) fn rejection(&self, at: u32, queue: Queue, asked: u16) -> RejectReason {
        let Some(member) = self.member(at) else {
            return RejectReason::GONE;
        };
        if let Some(reason) = member.down() {
            return RejectReason::Down(reason);
        }
        let lacks = member.credits.lacks(&self.flight.budget, queue, asked);
        match lacks {
            Ok(_) => RejectReason::Untaken,
            Err(RejectReason::NoCapacity(Queue::Receive)) if self.shared.is_some() => {
                RejectReason::SharedReceives
            }
            Err(reason) => reason,
        }
    }

    /// The ticket of an operation that was posted, with this number of bytes; frees the slot and the credits of one that
    /// was rejected.
    #[inline(always)]
    pub(super) fn settle(
        &mut self,
        ticket: Ticket,
        posted: Result<(), RejectReason>,
        bytes: u64,
    ) -> Result<Ticket, RejectReason> {
        match posted {
            Ok(()) => Ok(ticket),
            Err(reason) => Err(self.rejected(ticket.id, reason, bytes)),
        }
    }

    /// Frees the slot and the credits of a rejected operation, unless it is [half posted](Self::end_half_posted).
    #[cold]
    #[inline(never)]
    fn rejected(&mut self, id: Id, reason: RejectReason, bytes: u64) -> RejectReason {
        match reason {
            RejectReason::Post(error) if error.posted() > 0 => self.half_posted = Some(id),
            _ => self.flight.cancel(id, bytes),
        }
        reason
    }

    /// If the device has, or may have, a part of the operation that was rejected just now, no completion shows when it is
    /// done with that: only destroying the queue pair makes the buffers safe to return. Returns the ticket of the operation, which has
    /// ended then, unless the device has [refused](Self::refusing_device) that.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_half_posted(&mut self, reason: RejectReason) -> Option<Ticket> {
        let (Some(id), RejectReason::Post(error)) = (self.half_posted.take(), reason) else {
            return None;
        };
        let (at, _) = self.flight.owner(id.wr_id())?;
        self.destroy_now(at, DownReason::Post(error));
        Some(self.ticket(at, id))
    }
}

/// Builds requests in the places that they are posted from, of which there are enough. Only the last has a
/// completion.
#[inline(always)]
fn build<'p, 'l, 'o>(
    requests: impl Iterator<Item = Result<(&'l mut [Sge], &'o Op), RejectReason>>,
    places: &'p mut [MaybeUninit<WorkRequest<'l>>],
    id: Id,
) -> Result<&'p mut [WorkRequest<'l>], RejectReason> {
    let (mut count, mut last_op) = (0, None);
    for (request, place) in requests.zip(places.iter_mut()) {
        let (elements, op) = request?;
        op.build(elements, id.unsignaled_wr_id(), place)?;
        (count, last_op) = (count + 1, Some(op));
    }
    let built = ptr::from_mut(places.get_mut(..count).unwrap_or_default());
    // SAFETY: the loop has written to these places, which are borrowed.
    let built = unsafe { &mut *(built as *mut [WorkRequest<'l>]) };
    if let (Some(last), Some(op)) = (built.last_mut(), last_op) {
        set_options(last, id.wr_id(), op.signaled());
    }
    Ok(built)
}
