//! Leases that are granted and revoked in one call.

use std::sync::Arc;
use std::time::Duration;

use verbs_core::AccessFlags;
use verbs_core::error::Rejected;

use super::Ladder;
use crate::buffer::SharedSlice;
use crate::channel_id::ChannelId;
use crate::engine::Ticket;
use crate::error::{DownReason, Error, Queue, Result, TransportError};
use crate::lease::{Lease, LeaseKind, Post};

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
        let (error, lease) =
            match self.step(|poller| poller.engine.post_lease(at, lease, Post::Bind)) {
                Ok(ticket) => match self.finish_lease(at, ticket, None) {
                    (Ok(()), Some(lease)) => return Ok(lease),
                    (Ok(()), None) => (TransportError::Stuck, None),
                    (Err(error), lease) => (error, lease),
                },
                Err(rejected) => {
                    let (reason, lease) = rejected.into_parts();
                    (self.rejected(reason).into(), lease)
                }
            };
        let slice = lease.and_then(|lease| lease.end().ok());
        // Without its memory, which has to be kept: an empty one.
        match slice.map_or_else(|| memory.slice(..0), Ok) {
            Ok(slice) => Err(Rejected::new(error.into(), slice)),
            Err(_) => unreachable!("no memory ends before its start"),
        }
    }

    fn revoke(
        &mut self,
        at: u32,
        lease: Lease,
        timeout: Option<Duration>,
    ) -> Result<SharedSlice, TransportError> {
        let posted = match lease.kind() {
            LeaseKind::Window => self
                .step(|poller| poller.engine.post_lease(at, lease, Post::Invalidate))
                .map_err(|rejected| {
                    let (reason, lease) = rejected.into_parts();
                    let _ends_otherwise = self.rejected(reason);
                    lease
                }),
            LeaseKind::Registration => Err(Some(lease)),
        };
        let lease = match posted {
            Ok(ticket) => self.finish_lease(at, ticket, timeout).1,
            Err(lease) => lease,
        };
        let lease = match lease.map(Lease::end) {
            Some(Ok(slice)) => return Ok(slice),
            Some(Err(lease)) => lease,
            None => return Err(TransportError::Stuck),
        };
        // The last step of the ladder: the peer has access by this queue pair only.
        let is_window = lease.kind() == LeaseKind::Window;
        self.step(|poller| poller.engine.end_failed_leases());
        self.finish_destroying();
        let is_destroyed = self.step(|poller| {
            let member = poller.engine.member(at);
            member.is_none_or(|member| matches!(member.destroyed(), Some(Ok(()))))
        });
        match is_window && is_destroyed {
            true => lease.into_slice().ok_or(TransportError::Stuck),
            false => Err(TransportError::Stuck),
        }
    }

    /// Waits for a request of a lease, up to the timeout, or the channel's own, and aborts the channel after that.
    fn finish_lease(
        &mut self,
        at: u32,
        ticket: Ticket,
        timeout: Option<Duration>,
    ) -> (Result<(), TransportError>, Option<Lease>) {
        let timeout = self.step(|poller| timeout.or(poller.config.timeout));
        if !self.wait_for(ticket.id, timeout) {
            let reason = DownReason::TimedOut {
                queue: Queue::Send,
                after: timeout.unwrap_or_default(),
            };
            self.abort(at, reason);
        }
        match self.step(|poller| poller.engine.take_outcome(ticket)) {
            Some(outcome) => (outcome.result.map(drop), outcome.lease),
            None => (Err(TransportError::CLOSED), None),
        }
    }
}

impl<S: Ladder> Lend for S {}
