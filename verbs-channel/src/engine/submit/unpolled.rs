//! Posts of requests whose buffers an `unsafe` caller keeps.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use verbs_core::error::Rejected;

use crate::channel_id::ChannelId;
use crate::engine::{BufferOwner, Engine, Ticket};
use crate::error::{DownReason, RejectReason};
use crate::request::{List, Op, Request, ScatterList};

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
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        unsafe { self.post_unpolled_at(self.place_or_none(channel), request) }
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
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        unsafe { self.post_receive_unpolled_at(self.place_or_none(channel), list) }
    }

    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    pub(crate) unsafe fn post_unpolled_at<W: Request>(
        &mut self,
        at: u32,
        request: W,
    ) -> Result<Ticket, Rejected<W, RejectReason>> {
        let (mut list, op) = request.into_parts();
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        let posted = unsafe { self.post_list_unpolled(at, &mut list, op) };
        posted.map_err(|reason| Rejected::new(reason, W::from_parts(list, op)))
    }

    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    pub(crate) unsafe fn post_receive_unpolled_at<L: ScatterList>(
        &mut self,
        at: u32,
        mut list: L,
    ) -> Result<Ticket, Rejected<L, RejectReason>> {
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        let posted = unsafe { self.post_list_unpolled(at, &mut list, Op::RECEIVE) };
        posted.map_err(|reason| Rejected::new(reason, list))
    }

    /// # Safety
    ///
    /// As [`post_unpolled`](Self::post_unpolled).
    unsafe fn post_list_unpolled<L: List>(
        &mut self,
        at: u32,
        list: &mut L,
        op: Op,
    ) -> Result<Ticket, RejectReason> {
        // SAFETY: the caller promises that the buffers stay until the operation has ended.
        let posted = unsafe { self.post_list(at, BufferOwner::Caller, list, op) };
        posted.or_else(|reason| self.end_half_unpolled(at, reason).ok_or(reason))
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
