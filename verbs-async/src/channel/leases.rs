//! Leases of a channel: granted to its peer, and revoked.

use std::future::Future;
use std::sync::Arc;

use verbs_channel::buffer::SharedSlice;
use verbs_channel::lease::{Lease, LeaseKind};
use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::verbs_core::error::Rejected;
use verbs_channel::{Error, RejectReason, TransportError};

use super::{AsyncChannel, Operation};
use crate::driver::Request;

impl AsyncChannel {
    /// Lends a part of shared memory to the peer, until the [`Lease`] ends: as
    /// [`Channel::lease`](verbs_channel::Channel::lease).
    ///
    /// The request is posted at once, or waits in the backlog of the send queue. The windows are those of the group's
    /// [`lease_windows`](verbs_channel::ChannelConfig::lease_windows). A lease that is a
    /// [registration](LeaseKind::Registration) takes system calls here and now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the lease, by a system call once its request has completed.
    ///
    /// # Errors
    ///
    /// As [`Channel::lease`](verbs_channel::Channel::lease), with the memory.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn lease(
        &self,
        slice: SharedSlice,
        access: AccessFlags,
    ) -> impl Future<Output = Result<Lease, Rejected<SharedSlice, Error>>> + Send + use<> {
        let memory = slice.memory();
        let begun = self.begin_lease(slice, access);
        // It is granted without the lock: the channel may have ended its leases before this one was among them.
        let down = self.down_reason();
        async move {
            let Begun { operation, lease } = begun?;
            let granted = match (operation, down) {
                (Some(operation), _) => operation.await.0.map(|_| lease.completed()),
                (None, Some(reason)) => Err(RejectReason::Down(reason).into()),
                (None, None) => Ok(()),
            };
            match granted {
                Ok(()) => Ok(lease),
                Err(reason) => Err(lease.refused(&memory, reason)),
            }
        }
    }

    /// A lease, and the operation that grants it, unless it is a registration.
    fn begin_lease(
        &self,
        slice: SharedSlice,
        access: AccessFlags,
    ) -> Result<Begun, Rejected<SharedSlice, Error>> {
        if let Some(reason) = self.down_reason() {
            let error = TransportError::Rejected(RejectReason::Down(reason));
            return Err(Rejected::new(error.into(), slice));
        }
        // Without the lock: it may make system calls.
        let lender = self
            .driver()
            .with_engine(|engine| Arc::clone(engine.lender()));
        let lease = lender.lease(self.at, slice, access)?;
        Ok(self.begin_of_lease(lease, true))
    }

    fn begin_of_lease(&self, lease: Lease, is_bind: bool) -> Begun {
        let operation = (lease.kind() == LeaseKind::Window).then(|| {
            let request = Request::Lease(lease.request(is_bind));
            let submission = self.driver().start_any(self.at, request, self.backlog);
            Operation::new(Arc::clone(&self.shared), submission)
        });
        Begun { operation, lease }
    }

    /// Ends a lease, and returns its memory: no access with its key succeeds any more. As
    /// [`Channel::revoke`](verbs_channel::Channel::revoke).
    ///
    /// The request is posted at once, or waits in the backlog of the send queue; it takes its turn there after sends that
    /// wait for a receive of the peer. If it fails or is rejected, or the channel is down, the lease is ended by a system
    /// call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the lease, which ends all the same: once the request has completed, or by a system call
    /// if it was not posted. A timeout of your runtime around `&mut` of the future can be followed by
    /// [`abort`](Self::abort), after which it completes.
    ///
    /// # Errors
    ///
    /// [`TransportError::Stuck`]: the driver has refused all of this, and the lease's channel is being closed. **The peer may
    /// still have access** until then. The memory is kept.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn revoke(
        &self,
        lease: Lease,
    ) -> impl Future<Output = Result<SharedSlice, TransportError>> + Send + use<> {
        let begun = self.begin_of_lease(lease, false);
        async move {
            let Begun { operation, lease } = begun;
            if let Some(operation) = operation
                && operation.await.0.is_ok()
            {
                lease.completed();
            }
            lease.end().map_err(|_kept| TransportError::Stuck)
        }
    }
}

/// The request of a lease, if it has one, and the lease.
struct Begun {
    // First: it is not posted any more when the lease is dropped.
    operation: Option<Operation>,
    lease: Lease,
}
