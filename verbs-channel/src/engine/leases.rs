//! Leases of an engine's channels: the requests that grant them and take them back.
#![expect(
    unsafe_code,
    reason = "posts requests that have no memory of their own"
)]

use std::slice;
use std::sync::Arc;

use verbs_core::__private::set_options;
use verbs_core::verbs_sys::IBV_SEND_SIGNALED;

use super::{
    Afterwards, BufferOwner, Engine, Leak, Lender, Member, Reservation, SlotBuffer, Ticket,
};
use crate::buffer::Leaked;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Queue, RejectReason};
use crate::lease::LeaseRequest;
use crate::request::Opcodes;

impl Engine {
    /// Makes the leases of its channels.
    #[doc(hidden)]
    #[must_use]
    pub const fn lender(&self) -> &Arc<Lender> {
        &self.leases
    }

    /// Posts a request of a lease, which takes one place in the send queue.
    ///
    /// If the operation succeeds, that is to be [recorded](crate::lease::Lease::completed).
    ///
    /// # Errors
    ///
    /// The queue is full or the channel is down; or the lease has ended, belongs to another channel or is a registration;
    /// or the driver rejected the request.
    #[doc(hidden)]
    pub fn start_lease(
        &mut self,
        channel: ChannelId,
        request: &LeaseRequest,
    ) -> Result<Ticket, RejectReason> {
        let Some(at) = self.place(channel).filter(|_| channel == request.channel()) else {
            return Err(RejectReason::GONE);
        };
        let opcodes = Opcodes::of(request.opcode());
        let reservation = Reservation::new(at, opcodes, BufferOwner::Slot);
        let Some((ticket, qp, cells)) = self.flight.take(reservation) else {
            return Err(self.rejection(at, Queue::Send, reservation.credits));
        };
        cells.post(1, 0);
        let (posted, kept) = request.post(|request| {
            set_options(request, ticket.id.wr_id(), IBV_SEND_SIGNALED.0);
            // SAFETY: the request has no elements. The entry of the lease keeps the window, and the region that it is bound
            // to, until the window has ended.
            let posted = unsafe { qp.post(slice::from_mut(request)) };
            posted.map_err(RejectReason::Post)
        });
        let posted = self.settle(ticket, posted, 0);
        // The lease has its memory, if it was not posted.
        self.keep(posted, || SlotBuffer::Buffer(kept))
            .map_err(|(reason, _)| reason)
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
    #[doc(hidden)]
    pub fn end_failed_leases(&mut self) {
        while let Some((channel, errno)) = self.leases.next_failed() {
            if let Some(at) = self.place(channel) {
                self.destroy_at(at, DownReason::Device(errno));
            }
            // It may have ended before.
            let member = self.member_of(channel);
            let ended = member.map_or(Some(Ok(())), Member::destroyed);
            if let Some(destroyed) = ended {
                self.queue_pair_ended(channel, destroyed.is_ok());
            }
        }
    }

    /// The queue pair of a channel is destroyed, or stuck.
    pub(super) fn queue_pair_ended(&mut self, channel: ChannelId, is_destroyed: bool) {
        let mut leaked = Leaked::default();
        let has_dropped = self
            .leases
            .queue_pair_ended(channel, is_destroyed, &mut leaked);
        self.afterwards.wake(leaked);
        if has_dropped {
            let lender = Arc::clone(&self.leases);
            self.afterwards.push(Afterwards::DroppedLeases(lender));
        }
    }
}
