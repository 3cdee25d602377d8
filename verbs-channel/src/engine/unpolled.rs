//! Posts of requests whose buffers an `unsafe` caller keeps.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use verbs_core::Rejected;

use super::{BufferOwner, Engine, Reservation, SlotBuffer, Ticket};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, RejectReason};
use crate::request::{Request, ScatterList};

impl Engine {
    /// Posts a request whose buffers the caller manages: as
    /// [`Channel::post_unpolled`](crate::Channel::post_unpolled).
    ///
    /// # Errors
    ///
    /// As [`Channel::post_unpolled`](crate::Channel::post_unpolled), and
    /// [`RejectReason::Down`] if there is no such channel.
    ///
    /// # Safety
    ///
    /// As for [`Channel::post_unpolled`](crate::Channel::post_unpolled).
    #[doc(alias = "ibv_post_send")]
    pub unsafe fn post_unpolled<W: Request>(
        &mut self,
        channel: ChannelId,
        request: W,
    ) -> Result<Ticket, Rejected<W, RejectReason>> {
        match self.place(channel) {
            // SAFETY: the caller promises that the buffers stay until the operation is done.
            Some(at) => unsafe { self.post_unpolled_at(at, request) },
            None => Err(Rejected::new(RejectReason::GONE, request)),
        }
    }

    /// Posts a receive whose buffers the caller manages: as
    /// [`Channel::post_receive_unpolled`](crate::Channel::post_receive_unpolled).
    ///
    /// # Errors
    ///
    /// As [`Channel::post_receive_unpolled`](crate::Channel::post_receive_unpolled), and
    /// [`RejectReason::Down`] if there is no such channel.
    ///
    /// # Safety
    ///
    /// As for [`Channel::post_receive_unpolled`](crate::Channel::post_receive_unpolled).
    #[doc(alias = "ibv_post_recv")]
    pub unsafe fn post_receive_unpolled<L: ScatterList>(
        &mut self,
        channel: ChannelId,
        list: L,
    ) -> Result<Ticket, Rejected<L, RejectReason>> {
        match self.place(channel) {
            // SAFETY: the caller promises that the buffers stay until the receive is done.
            Some(at) => unsafe { self.post_receive_unpolled_at(at, list) },
            None => Err(Rejected::new(RejectReason::GONE, list)),
        }
    }

    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    pub(crate) unsafe fn post_unpolled_at<W: Request>(
        &mut self,
        at: u32,
        request: W,
    ) -> Result<Ticket, Rejected<W, RejectReason>> {
        let (mut list, options) = request.into_parts();
        let reservation = Reservation::send(at).owned_by(BufferOwner::Caller);
        // SAFETY: the caller promises that the buffers stay until the operation is done.
        match unsafe { self.post_at::<W, true>(reservation, &mut list, options, SlotBuffer::none) }
        {
            Ok(ticket) => Ok(ticket),
            Err(reason) => match self.end_half_unpolled(at, reason) {
                Some(ticket) => Ok(ticket),
                None => Err(Rejected::new(reason, W::from_parts(list, options))),
            },
        }
    }

    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    pub(crate) unsafe fn post_receive_unpolled_at<L: ScatterList>(
        &mut self,
        at: u32,
        mut list: L,
    ) -> Result<Ticket, Rejected<L, RejectReason>> {
        let reservation = Reservation::receive(at).owned_by(BufferOwner::Caller);
        // SAFETY: the caller promises that the buffers stay until the receive is done.
        match unsafe { self.post_receive_at::<_, true>(reservation, &mut list, SlotBuffer::none) } {
            Ok(ticket) => Ok(ticket),
            Err(reason) => match self.end_half_unpolled(at, reason) {
                Some(ticket) => Ok(ticket),
                None => Err(Rejected::new(reason, list)),
            },
        }
    }

    /// Ends an operation of which the device may have a part, and whose buffers the caller keeps:
    /// destroys the queue pair. Its outcome is whether the device is done with them.
    #[cold]
    #[inline(never)]
    pub(super) fn end_half_unpolled(&mut self, at: u32, reason: RejectReason) -> Option<Ticket> {
        let (Some(id), RejectReason::Post(error)) = (self.half_posted.take(), reason) else {
            return None;
        };
        self.destroy_now(at, DownReason::Post(error));
        Some(self.ticket(at, id))
    }
}
