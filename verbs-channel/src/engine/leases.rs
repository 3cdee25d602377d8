//! Leases of an engine's channels: the requests that grant them and take them back.
#![expect(
    unsafe_code,
    reason = "posts requests that have no memory of their own"
)]

use std::slice;
use std::sync::Arc;

use verbs_core::__private::set_options;
use verbs_core::codes::WcOpcode;
use verbs_core::error::Rejected;
use verbs_core::verbs_sys::IBV_SEND_SIGNALED;

use super::{Afterwards, BufferOwner, Engine, Leak, Lender, Reservation, SlotBuffer, Ticket};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Queue, RejectReason};
use crate::lease::{Lease, Post};
use crate::request::opcode_flag;

impl Engine {
    /// Makes the leases of its channels.
    #[must_use]
    pub const fn lender(&self) -> &Arc<Lender> {
        &self.leases
    }

    /// Posts the request that grants a lease which is a [window](crate::lease::LeaseKind::Window), and takes one place in the
    /// send queue.
    ///
    /// The lease is returned by the operation, in [`Completed::lease`](crate::Completed::lease). It is granted if the operation succeeds.
    /// One that fails is to be dropped, or to be [ended](Lease::end).
    ///
    /// # Errors
    ///
    /// The lease, with the reason: the queue is full or the channel is down, or the driver rejected the request. It is
    /// not granted. It is `None` if the driver failed within the post and then to destroy the queue pair.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn start_lease(
        &mut self,
        channel: ChannelId,
        lease: Lease,
    ) -> Result<Ticket, Rejected<Option<Lease>, RejectReason>> {
        self.post_lease(self.place_or_none(channel), lease, Post::Bind)
    }

    /// Posts the request that takes a lease back, as [`start_lease`](Self::start_lease) does.
    ///
    /// When the operation has succeeded, no access with the lease's key succeeds any more, and [`Lease::end`] returns
    /// its memory without a system call. If it fails or is rejected, `end` makes them.
    ///
    /// # Errors
    ///
    /// As [`start_lease`](Self::start_lease); [`RejectReason::Down`] also if the lease belongs to another channel or is
    /// a registration.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn start_revoke(
        &mut self,
        channel: ChannelId,
        lease: Lease,
    ) -> Result<Ticket, Rejected<Option<Lease>, RejectReason>> {
        self.post_lease(self.place_or_none(channel), lease, Post::Invalidate)
    }

    pub(crate) fn post_lease(
        &mut self,
        at: u32,
        lease: Lease,
        what: Post,
    ) -> Result<Ticket, Rejected<Option<Lease>, RejectReason>> {
        let its = self.member(at).map(|member| member.id);
        if its != Some(lease.channel()) {
            return Err(Rejected::new(RejectReason::GONE, Some(lease)));
        }
        let opcode = match what {
            Post::Bind => WcOpcode::BIND_MW,
            Post::Invalidate => WcOpcode::LOCAL_INV,
        };
        let reservation = Reservation::new(at, Queue::Send, BufferOwner::Slot);
        let Some((ticket, qp)) = self.flight.take(reservation, opcode_flag(opcode), 0) else {
            let reason = self.rejection(at, Queue::Send, reservation.credits);
            return Err(Rejected::new(reason, Some(lease)));
        };
        let posted = lease.post(what, |request| {
            set_options(request, ticket.id.wr_id(), IBV_SEND_SIGNALED.0);
            // SAFETY: the request has no elements. The lease keeps the window, and the region that it is bound to.
            let posted = unsafe { qp.post(slice::from_mut(request)) };
            posted.map_err(RejectReason::Post)
        });
        let owned = SlotBuffer::Lease(lease);
        match posted {
            Ok(()) => {
                self.flight.store_buffer(ticket.id, owned);
                Ok(ticket)
            }
            Err(reason) => {
                let reason = self.rejected(ticket.id, reason);
                let lease = match self.end_half_posted(at, reason, owned) {
                    Some(SlotBuffer::Lease(lease)) => Some(lease),
                    _ => None,
                };
                Err(Rejected::new(reason, lease))
            }
        }
    }

    /// Ends the leases of a member, or those that a scope has granted, by system calls.
    pub(crate) fn end_leases(&mut self, at: u32, only_scoped: bool) {
        let Some(member) = self.member(at) else {
            return;
        };
        if let Some((buffers, error)) = self.leases.end_all(member.id, only_scoped) {
            let reason = DownReason::Device(error.errno().unwrap_or(0));
            let leak = Leak { buffers, error };
            self.afterwards.push(Afterwards::Leak(leak));
            if only_scoped {
                self.destroy_now(at, reason);
            }
        }
    }

    /// Takes channels down whose leases could not be ended.
    pub(crate) fn end_failed_leases(&mut self) {
        while let Some((channel, errno)) = self.leases.next_failed() {
            if let Some(at) = self.place(channel) {
                self.destroy_at(at, DownReason::Device(errno));
            }
        }
    }
}
