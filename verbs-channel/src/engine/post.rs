//! Posts: a reservation, the gate, and the driver.
#![expect(unsafe_code, reason = "hands buffers to the device")]

use std::mem::MaybeUninit;
use std::ptr;

use verbs_core::{ReceiveWorkRequest, WorkRequest, WorkSuccess};

use super::gate::Limits;
use super::member::{Member, NewOperation};
use super::slots::Slots;
use super::ticket::SlotBuffer;
use super::{BufferOwner, Engine, Id, Reservation, Ticket};
use crate::error::{DownReason, Queue, RejectReason};
use crate::request::{List as _, Needs, Request, ScatterList};

/// Takes a slot and credits of `$member`, one of `$members`: those that are free, or, if `$makes_room`, those
/// that [`take_slowly`] finds. Returns the rejection from the function around it if there are none.
// No function can do it: it would return a borrow of the members on one path, and use them again on another.
macro_rules! take_operation {
    ($engine:ident, $members:ident, $member:ident, $reservation:ident, $makes_room:expr) => {
        match $member.take(&mut $engine.slots, $reservation) {
            Some(operation) => operation,
            None if !$makes_room => return Err($engine.rejection($reservation)),
            None => {
                let id =
                    $crate::engine::post::take_slowly($members, &mut $engine.slots, $reservation);
                let member = $members.get($reservation.member as usize);
                match member.and_then(|member| member.taken(&mut $engine.slots, id)) {
                    Some(operation) => operation,
                    None => return Err($engine.rejection($reservation)),
                }
            }
        }
    };
}
pub(super) use take_operation;

impl Engine {
    /// Posts a request to a member's send queue, with a completion. If it is posted, `store` may put
    /// the buffer that the operation owns in its place in the slot. Without `MAKES_ROOM`, a channel whose
    /// share has no room does not look for common room: that is for [`start_again`](Self::start_again).
    ///
    /// # Safety
    ///
    /// - The buffers that the request names stay as [`QueuePair::post`] wants them until the slot is
    ///   done.
    #[inline(always)]
    pub(crate) unsafe fn post_at<W: Request, const MAKES_ROOM: bool>(
        &mut self,
        reservation: Reservation,
        list: &mut W::List,
        options: W::Options,
        store: impl FnOnce(&mut Option<SlotBuffer>),
    ) -> Result<Ticket, RejectReason> {
        let members = &mut *self.members;
        let Some(member) = members.get_mut(reservation.member as usize) else {
            return Err(RejectReason::GONE);
        };
        let mut needs = Needs::default();
        W::add_needs(list, options, &mut needs);
        member.limits.check(&needs)?;
        if W::List::IS_WIDE && !list.is_of(&self.pd) {
            return Err(RejectReason::OtherDomain);
        }
        let channel = member.id;
        let NewOperation {
            qp,
            id,
            flags,
            buffer,
            ..
        } = take_operation!(self, members, member, reservation, MAKES_ROOM);
        *flags = needs.flags;
        // SAFETY: all are of this domain.
        unsafe { list.put_side_by_side() };
        let post = |request| {
            // SAFETY: the caller promises that the buffers stay until the slot is done, which it is
            // when the completion is polled, or the queue pair destroyed.
            unsafe { qp.post(&mut [request]) }
        };
        // SAFETY: the list was put side by side above, if it is wide.
        let posted = unsafe { W::request(list, options, id.wr_id(), true, post) };
        // SAFETY: the list was put side by side above, and its elements are of this domain.
        unsafe { list.restore(&self.pd) };
        match posted {
            Ok(Ok(())) => {
                store(buffer);
                Ok(Ticket { channel, id })
            }
            Ok(Err(error)) => Err(self.rejected(reservation, id, RejectReason::Post(error))),
            Err(reason) => Err(self.rejected(reservation, id, reason)),
        }
    }

    /// Posts a batch to a member's send queue: one doorbell, and a completion for the last only.
    /// The reservation is for `N` requests.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post_at).
    #[inline]
    pub(crate) unsafe fn post_batch_at<W: Request, const N: usize>(
        &mut self,
        reservation: Reservation,
        requests: &mut [W; N],
    ) -> Result<Ticket, RejectReason> {
        const { assert!(N > 0, "a batch has requests in it") };
        let members = &mut *self.members;
        let Some(member) = members.get_mut(reservation.member as usize) else {
            return Err(RejectReason::GONE);
        };
        // All of it, before any is built: among that it would cost twice as much.
        let mut needs = Needs::default();
        for request in requests.iter_mut() {
            let (list, options) = request.parts();
            W::add_needs(list, options, &mut needs);
        }
        if !member.limits.admit(&needs) {
            check_each(requests, &member.limits)?;
        }
        if W::List::IS_WIDE
            && !requests
                .iter_mut()
                .all(|each| each.parts().0.is_of(&self.pd))
        {
            return Err(RejectReason::OtherDomain);
        }
        let channel = member.id;
        let NewOperation { qp, id, flags, .. } =
            take_operation!(self, members, member, reservation, true);
        *flags = needs.flags;
        for request in requests.iter_mut() {
            // SAFETY: all are of this domain.
            unsafe { request.parts().0.put_side_by_side() };
        }
        let mut places = [const { MaybeUninit::<WorkRequest<'_>>::uninit() }; N];
        let mut pairs = places.iter_mut().zip(requests.iter_mut());
        // The last is apart, so that what all others have in common is checked once.
        let last = pairs.next_back();
        // SAFETY: all were put so above.
        let built = unsafe { build(pairs, id.member_wr_id(), false) };
        // SAFETY: each list was put side by side above, if it is wide.
        let built = built.and_then(|()| unsafe { build(last.into_iter(), id.wr_id(), true) });
        let posted = built.and_then(|()| {
            let built = ptr::from_mut(&mut places).cast::<[WorkRequest<'_>; N]>();
            // SAFETY: the loop has written to every place.
            let built = unsafe { &mut *built };
            // SAFETY: the caller promises that the buffers stay until the slot is done; when the
            // last of a chain is done, so are the others.
            unsafe { qp.post(built) }.map_err(RejectReason::Post)
        });
        for request in requests.iter_mut() {
            // SAFETY: the list was put side by side above, and its elements are of this domain.
            unsafe { request.parts().0.restore(&self.pd) };
        }
        match posted {
            Ok(()) => Ok(Ticket { channel, id }),
            Err(reason) => Err(self.rejected(reservation, id, reason)),
        }
    }

    /// Posts a receive to a member's receive queue. If it is posted, `store` may put the
    /// buffer that the operation owns in its place in the slot.
    ///
    /// # Safety
    ///
    /// - The buffers that the list names stay as [`QueuePair::post_receive`] wants them until the
    ///   slot is done.
    #[inline(always)]
    pub(crate) unsafe fn post_receive_at<L: ScatterList, const MAKES_ROOM: bool>(
        &mut self,
        reservation: Reservation,
        list: &mut L,
        store: impl FnOnce(&mut Option<SlotBuffer>),
    ) -> Result<Ticket, RejectReason> {
        let members = &mut *self.members;
        let Some(member) = members.get_mut(reservation.member as usize) else {
            return Err(RejectReason::GONE);
        };
        // `take` already rejected queue pairs on a shared receive queue.
        member.limits.check_receive(list)?;
        if L::IS_WIDE && !list.is_of(&self.pd) {
            return Err(RejectReason::OtherDomain);
        }
        let channel = member.id;
        let NewOperation { qp, id, buffer, .. } =
            take_operation!(self, members, member, reservation, MAKES_ROOM);
        // SAFETY: all are of this domain.
        unsafe { list.put_side_by_side() };
        // SAFETY: the list was put side by side above, if it is wide; a request writes nothing but
        // their order.
        let elements = unsafe { list.elements() };
        let request = ReceiveWorkRequest::new(elements).wr_id(id.wr_id());
        // SAFETY: the caller promises that the buffers stay until the slot is done.
        let posted = unsafe { qp.post_receive(&mut [request]) };
        // SAFETY: the list was put side by side above, and its elements are of this domain.
        unsafe { list.restore(&self.pd) };
        match posted {
            Ok(()) => {
                store(buffer);
                Ok(Ticket { channel, id })
            }
            Err(error) => Err(self.rejected(reservation, id, RejectReason::Post(error))),
        }
    }

    /// Makes common room for an operation that found none in its channel's share. The next
    /// [`take`](super::Member::take) finds it. `false` if there is none.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self, reservation: Reservation) -> bool {
        let member = self.members.get_mut(reservation.member as usize);
        member.is_some_and(|member| member.make_room(&mut self.slots, reservation))
    }

    /// The reason why an operation got no slot and no credits.
    #[cold]
    #[inline(never)]
    pub(crate) fn rejection(&mut self, reservation: Reservation) -> RejectReason {
        let Some(member) = self.members.get(reservation.member as usize) else {
            return RejectReason::GONE;
        };
        let (queue, credits) = (reservation.queue, u32::from(reservation.credits));
        let max = member.capacity(queue, &self.slots.budget);
        let free = member.max(queue) - member.in_flight(queue);
        match member.down() {
            Some(reason) => RejectReason::Down(reason),
            None if reservation.queue == Queue::Receive && self.shared.is_some() => {
                RejectReason::SharedReceives
            }
            None if max == 0 => RejectReason::NoCapacity(queue),
            None if credits > max => RejectReason::BatchTooLong {
                asked: credits,
                max,
            },
            None if credits > free => RejectReason::Backpressure(queue),
            None if credits > member.credits(queue, &self.slots.budget) => {
                RejectReason::Budget(queue)
            }
            None => RejectReason::Untaken,
        }
    }

    /// Frees the slot and the credits of a rejected operation.
    ///
    /// If the device has, or may have, a part of it, no completion shows when it is done with that:
    /// then only destroying the queue pair makes the buffers safe to return.
    #[cold]
    #[inline(never)]
    pub(crate) fn rejected(
        &mut self,
        reservation: Reservation,
        id: Id,
        reason: RejectReason,
    ) -> RejectReason {
        match reason {
            // The caller has the buffers, and ends it: see `end_half_posted`.
            RejectReason::Post(error)
                if error.posted() > 0
                    && matches!(reservation.owner, BufferOwner::Slot | BufferOwner::Caller) =>
            {
                self.half_posted = Some(id);
            }
            RejectReason::Post(error) if error.posted() > 0 => {
                self.destroy_now(reservation.member, DownReason::Post(error));
                // If the device has refused that, `end_half_borrowed` does it.
                if self.release(reservation.member, id).is_none() {
                    self.half_posted = Some(id);
                }
            }
            _ => self.not_posted(reservation, id),
        }
        reason
    }

    /// Frees the slot and the credits of an operation of which the device has nothing.
    fn not_posted(&mut self, reservation: Reservation, id: Id) {
        if let Some(member) = self.members.get_mut(reservation.member as usize) {
            self.slots.cancel(&mut member.slots, id);
            member.settle(&mut self.slots.budget, reservation);
        }
    }
}

/// Takes a slot and credits where [`take`](Member::take) found none: common ones. Returns the id, or
/// [`Id::NONE`].
// Returns few words, and its caller keeps `members`: so what is in registers stays there.
#[cold]
#[inline(never)]
pub(super) fn take_slowly(
    members: &mut [Member],
    slots: &mut Slots<WorkSuccess, SlotBuffer>,
    reservation: Reservation,
) -> Id {
    let member = members.get_mut(reservation.member as usize);
    member.map_or(Id::NONE, |member| member.take_common(slots, reservation))
}

/// Checks the requests of a batch one by one.
#[cold]
#[inline(never)]
fn check_each<W: Request>(requests: &mut [W], limits: &Limits) -> Result<(), RejectReason> {
    requests.iter_mut().try_for_each(|request| {
        let (list, options) = request.parts();
        let mut needs = Needs::default();
        W::add_needs(list, options, &mut needs);
        limits.check(&needs)
    })
}

/// Builds requests in the places they are posted from.
///
/// # Safety
///
/// - If their lists are wide, the elements have been put side by side.
#[inline(always)]
unsafe fn build<'l, 'p, W: Request + 'l>(
    places: impl Iterator<Item = (&'p mut MaybeUninit<WorkRequest<'l>>, &'l mut W)>,
    wr_id: u64,
    signaled: bool,
) -> Result<(), RejectReason>
where
    'l: 'p,
{
    for (place, request) in places {
        let (list, options) = request.parts();
        let write = |built| {
            place.write(built);
        };
        // SAFETY: the caller promises that wide lists have been put side by side.
        unsafe { W::request(list, options, wr_id, signaled, write)? };
    }
    Ok(())
}
