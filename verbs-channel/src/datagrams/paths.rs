//! The address handles of an engine, made elsewhere.

use std::sync::Arc;

use verbs_core::ProtectionDomain;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::{AddressHandle, AhAttr, DatagramEndpoint};

use super::engine::DatagramEngine;
use crate::error::Result;

impl DatagramEngine {
    /// Attributes of an address handle to a peer, for [`ProtectionDomain::create_ah`], which may
    /// take a second; `None` if the engine has one, so that [`send_to`](Self::send_to) makes none.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`](crate::RejectReason::Down), and those of [`DatagramQueuePair::path_to`].
    pub fn path_to(
        &mut self,
        peer: &DatagramEndpoint,
    ) -> Result<Option<(ProtectionDomain, AhAttr)>> {
        let Some(qp) = &self.qp else {
            return Err(self.is_down().into());
        };
        if self.handles.get(peer).is_some() {
            return Ok(None);
        }
        Ok(Some((qp.pd().clone(), self.attr_to(qp, peer)?)))
    }

    /// The path to a peer, or to a group in which this endpoint is a member: as `rdma_cm` has chosen it.
    pub(super) fn attr_to(
        &self,
        qp: &DatagramQueuePair,
        peer: &DatagramEndpoint,
    ) -> Result<AhAttr, verbs_core::Error> {
        #[cfg(feature = "rdmacm")]
        if let Some(membership) = self.latest_in(peer) {
            return Ok(membership.group.ah_attr());
        }
        qp.path_to(peer)
    }

    /// Keeps an address handle to a peer's port. Returns those that it replaces, or `handle` itself
    /// if it is of another protection domain, to be dropped without a lock.
    #[must_use = "they are dropped without a lock"]
    pub fn add_handle(
        &mut self,
        peer: &DatagramEndpoint,
        handle: AddressHandle,
    ) -> [Option<Arc<AddressHandle>>; 2] {
        let handle = Arc::new(handle);
        let is_ours = |qp: &DatagramQueuePair| qp.pd().as_ptr() == handle.pd().as_ptr();
        if self.qp.as_deref().is_some_and(is_ours) {
            self.handles.insert(peer, handle)
        } else {
            [Some(handle), None]
        }
    }

    /// Forgets the address handle to a peer's port. Returns it, to be dropped without a lock.
    #[must_use = "it is dropped without a lock"]
    pub fn forget(&mut self, peer: &DatagramEndpoint) -> Option<Arc<AddressHandle>> {
        self.handles.remove(peer)
    }
}
