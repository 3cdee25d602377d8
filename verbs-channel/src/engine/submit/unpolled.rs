//! Posts of requests whose buffers an `unsafe` caller keeps.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use verbs_core::error::Rejected;

use crate::engine::{BufferOwner, Engine, Ticket};
use crate::error::{DownReason, RejectReason};
use crate::request::Request;

impl Engine {
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
            .or_else(|reason| self.end_half_unpolled(at, reason).ok_or(reason))
            .map_err(|reason| Rejected::new(reason, request))
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
