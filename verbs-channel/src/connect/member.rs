//! The channels of a group, when they are connected.

use std::os::fd::OwnedFd;

use verbs_core::QueuePair;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use super::{Connected, sealed};
use crate::buffer::OwnedBuffer;
use crate::engine::{ConnectedMember, MemberParts};
use crate::error::{Queue, RejectReason, Result};

impl Connected for ConnectedMember {}

impl sealed::Connected for ConnectedMember {
    type Rest = MemberParts;

    fn max_recv_wr(parts: &MemberParts) -> u32 {
        parts.capacities[Queue::Receive as usize]
    }

    fn no_receive(parts: &MemberParts) -> RejectReason {
        match parts.claim {
            Some(_) => RejectReason::SharedReceives,
            None => RejectReason::full(Queue::Receive, Self::max_recv_wr(parts) as usize),
        }
    }

    fn begin(parts: &mut MemberParts) {
        if let Some(claim) = &mut parts.claim {
            claim.begin();
        }
    }

    fn assemble(qp: QueuePair, parts: MemberParts, receives: Vec<OwnedBuffer>) -> Result<Self> {
        Ok(Self::new(qp, parts, receives))
    }

    fn watch(&mut self, descriptor: OwnedFd) -> Result<()> {
        self.watch_peer(descriptor)
    }

    #[cfg(feature = "rdmacm")]
    fn watch_connection(&mut self, connection: Connection) -> Result<()> {
        Self::watch_connection(self, connection);
        Ok(())
    }
}
