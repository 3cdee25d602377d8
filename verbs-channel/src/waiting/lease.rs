//! Leases that are granted and revoked in one call.

use std::sync::Arc;

use verbs_core::AccessFlags;
use verbs_core::error::Rejected;

use super::Ladder;
use crate::buffer::SharedSlice;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Error, Queue, Result, TransportError};
use crate::lease::{Lease, LeaseKind, LeaseRequest};

/// Grants leases, and takes them back.
pub(crate) trait Lend: Ladder {
    fn lease(
        &mut self,
        at: u32,
        slice: SharedSlice,
        access: AccessFlags,
        is_scoped: bool,
    ) -> Result<Lease, Rejected<SharedSlice, Error>> {
        let (lender, channel) = self.step(|poller| {
            let member = poller
                .engine
                .member(at)
                .filter(|member| member.down().is_none());
            let channel = member.map_or(ChannelId::NONE, |member| member.id);
            (Arc::clone(poller.engine.lender()), channel)
        });
        if channel == ChannelId::NONE {
            let down = self.step(|poller| poller.engine.member(at)?.down());
            let reason = down.unwrap_or(DownReason::Closed);
            let error = TransportError::Rejected(crate::RejectReason::Down(reason));
            return Err(Rejected::new(error.into(), slice));
        }
        let memory = slice.memory();
        let lease = lender.lease_in(channel, slice, access, is_scoped)?;
        if lease.kind() == LeaseKind::Registration {
            return Ok(lease);
        }
        match self.run_lease(at, &lease.request(true)) {
            Ok(()) => {
                lease.completed();
                Ok(lease)
            }
            Err(reason) => Err(lease.refused(&memory, reason)),
        }
    }

    fn revoke(&mut self, at: u32, lease: Lease) -> Result<SharedSlice, TransportError> {
        if lease.kind() == LeaseKind::Window {
            let revoked = self.run_lease(at, &lease.request(false));
            // If it has failed, it ends otherwise.
            if revoked.is_ok() {
                lease.completed();
            }
        }
        let lease = match lease.end() {
            Ok(slice) => return Ok(slice),
            Err(lease) => lease,
        };
        // The last step of the ladder: the peer has access by a window through this queue pair only.
        self.step(|poller| poller.engine.end_failed_leases());
        self.finish_destroying();
        lease.end().map_err(|_kept| TransportError::Stuck)
    }

    /// Posts a request of a lease, and waits for it, up to the channel's timeout. After that it aborts the channel.
    fn run_lease(&mut self, at: u32, request: &LeaseRequest) -> Result<(), TransportError> {
        let ticket = match self.step(|poller| poller.engine.post_lease(at, request)) {
            Ok(ticket) => ticket,
            Err(reason) => return Err(self.rejected(reason).into()),
        };
        let timeout = self.step(|poller| poller.config.timeout);
        if !self.wait_for(ticket.id, timeout) {
            let reason = DownReason::TimedOut {
                queue: Queue::Send,
                after: timeout.unwrap_or_default(),
            };
            self.abort(at, reason);
        }
        match self.step(|poller| poller.engine.release(ticket.id)) {
            Some(outcome) => outcome.result.map(drop),
            None => Err(TransportError::CLOSED),
        }
    }
}

impl<S: Ladder> Lend for S {}
