//! Leases of a channel: granted to its peer, and revoked.

use std::sync::Arc;

use verbs_core::AccessFlags;
use verbs_core::error::Rejected;

use super::{Channel, Hold, PollingScope};
use crate::buffer::SharedSlice;
use crate::error::{DownReason, Error, Queue, RejectReason, Result, TransportError};
use crate::lease::{Lease, LeaseKind, LeaseRequest};
use crate::waiting::Steps;

impl<H: Hold> Channel<H> {
    /// Lends a part of shared memory to the peer, until the [`Lease`] ends.
    ///
    /// `access` is what the peer may do: flags of [`REMOTE`](AccessFlags::REMOTE). The region itself needs none of them,
    /// and without them, peers have access by leases only. It needs
    /// [`MW_BIND`](AccessFlags::MW_BIND), or else the lease is a [registration](crate::lease::LeaseKind::Registration).
    ///
    /// This posts one request, and waits for it as [`send`](Self::send) does. Nothing is allocated, unless the lease is
    /// a registration.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use verbs_channel::verbs_core::{AccessFlags, Context};
    /// use verbs_channel::{Channel, SharedMemory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).lease_windows(16).build()?;
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(5))?.channel;
    /// let memory = SharedMemory::register([&pd], vec![0_u8; 1 << 20], AccessFlags::MW_BIND)?;
    ///
    /// let lease = channel.lease(memory.slice(..4096)?, AccessFlags::REMOTE_WRITE)?;
    /// let request = pd.reg_mr(lease.remote().to_bytes().to_vec())?;
    /// channel.send(request.gather_element(..)?)?;
    /// // The peer writes its answer there, or is late.
    /// let page = channel.revoke(lease)?;
    /// # drop(page);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The memory, with the reason. It is an empty slice in one case: the driver failed and then failed to
    /// destroy the queue pair, so the memory has to be kept.
    ///
    /// - [`Error::Transport`]: the request was rejected, for example with [`RejectReason::NoWindow`],
    ///   [`RejectReason::LeaseAccess`] or [`RejectReason::OtherDomain`], or it failed. If it does not complete within
    ///   the channel's [timeout](crate::ChannelConfig::timeout), the channel is aborted.
    /// - [`Error::Core`]: the part is empty, or the registration failed. A part of a
    ///   [`DmabufRegion`](verbs_core::memory::DmabufRegion), or of a region with an `iova` of its own, cannot be registered once
    ///   more.
    ///
    /// [`RejectReason::NoWindow`]: crate::RejectReason::NoWindow
    /// [`RejectReason::LeaseAccess`]: crate::RejectReason::LeaseAccess
    /// [`RejectReason::OtherDomain`]: crate::RejectReason::OtherDomain
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn lease(
        &mut self,
        slice: SharedSlice,
        access: AccessFlags,
    ) -> Result<Lease, Rejected<SharedSlice, Error>> {
        let (poller, at) = self.parts();
        lease(poller, at, slice, access, false)
    }

    /// Ends a lease, and returns its memory: no access with its key succeeds any more.
    ///
    /// This posts one request, and waits for it. Accesses that the device has begun are done by then. The window is used for another lease. The
    /// request takes its turn in the send queue, after sends that wait for a receive of the peer.
    ///
    /// If the request does not complete within the channel's [`timeout`](crate::ChannelConfig::timeout), the channel is
    /// aborted. If it fails, which is so if the peer has given the lease back meanwhile, the channel is down. Then, or if the channel has no room for it, the window is deallocated, which is a system call; or,
    /// if the driver refuses that, the queue pair is destroyed. So after `Ok` the memory can be used again, and
    /// [`down_reason`](Self::down_reason) is whether the channel can.
    ///
    /// A lease of another channel, or of one that is closed, can be given to this, too.
    ///
    /// # Errors
    ///
    /// [`TransportError::Stuck`]: the driver has [refused](Lease#if-the-driver-refuses-to-end-it) all of this, or to
    /// deallocate the window of a channel that is not of this group and is up. **The peer may still have access.** The memory
    /// is kept.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn revoke(&mut self, lease: Lease) -> Result<SharedSlice, TransportError> {
        let (poller, at) = self.parts();
        revoke(poller, at, lease)
    }
}

impl PollingScope<'_, '_> {
    /// Lends a part of shared memory to the peer, until the lease or the scope ends: as [`Channel::lease`].
    ///
    /// Leases that exist when the scope ends have no access from then on, even if they are leaked. They still have their
    /// memory, which [`Channel::revoke`] returns at once.
    ///
    /// # Errors
    ///
    /// As [`Channel::lease`].
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn lease(
        &self,
        slice: SharedSlice,
        access: AccessFlags,
    ) -> Result<Lease, Rejected<SharedSlice, Error>> {
        self.has_leases.set(true);
        let mut this = self;
        lease(&mut this, self.at, slice, access, true)
    }

    /// Ends a lease, and returns its memory: as [`Channel::revoke`].
    ///
    /// # Errors
    ///
    /// As [`Channel::revoke`].
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn revoke(&self, lease: Lease) -> Result<SharedSlice, TransportError> {
        let mut this = self;
        revoke(&mut this, self.at, lease)
    }
}

/// Grants a lease.
fn lease(
    steps: &mut impl Steps,
    at: u32,
    slice: SharedSlice,
    access: AccessFlags,
    is_scoped: bool,
) -> Result<Lease, Rejected<SharedSlice, Error>> {
    let (lender, channel) = steps.step(|poller| {
        let engine = &poller.engine;
        let channel = match engine.member(at) {
            Some(member) => member.down().map_or(Ok(member.id), Err),
            None => Err(DownReason::Closed),
        };
        (Arc::clone(engine.lender()), channel)
    });
    let channel = match channel {
        Ok(channel) => channel,
        Err(reason) => {
            let error = TransportError::Rejected(RejectReason::Down(reason));
            return Err(Rejected::new(error.into(), slice));
        }
    };
    let memory = slice.memory();
    let lease = lender.lease_in(channel, slice, access, is_scoped)?;
    if lease.kind() == LeaseKind::Registration {
        return Ok(lease);
    }
    match run_lease(steps, at, &lease.request(true)) {
        Ok(()) => {
            lease.completed();
            Ok(lease)
        }
        Err(reason) => Err(lease.refused(&memory, reason)),
    }
}

/// Takes a lease back.
fn revoke(steps: &mut impl Steps, at: u32, lease: Lease) -> Result<SharedSlice, TransportError> {
    if lease.kind() == LeaseKind::Window {
        let revoked = run_lease(steps, at, &lease.request(false));
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
    steps.step(|poller| poller.engine.end_failed_leases());
    steps.finish_destroying();
    lease.end().map_err(|_kept| TransportError::Stuck)
}

/// Posts a request of a lease, and waits for it, up to the channel's timeout. After that it aborts the channel.
fn run_lease(
    steps: &mut impl Steps,
    at: u32,
    request: &LeaseRequest,
) -> Result<(), TransportError> {
    let ticket = match steps.step(|poller| {
        let channel = poller.engine.id_at(at);
        poller.engine.start_lease(channel, request)
    }) {
        Ok(ticket) => ticket,
        Err(reason) => return Err(steps.rejected(reason).into()),
    };
    let timeout = steps.step(|poller| poller.config.timeout);
    if !steps.wait_for(ticket.id, timeout) {
        let reason = DownReason::TimedOut {
            queue: Queue::Send,
            after: timeout.unwrap_or_default(),
        };
        steps.abort(at, reason);
    }
    match steps.step(|poller| poller.engine.flight.release(ticket.id)) {
        Some(outcome) => outcome.result.map(drop),
        None => Err(TransportError::CLOSED),
    }
}
