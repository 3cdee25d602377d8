//! Multicast groups that a queue pair receives from.

use std::mem::ManuallyDrop;

use super::DatagramQueuePair;
use super::attachments::log_failure;
use crate::codes::Gid;
use crate::codes::macros::man;
use crate::error::Result;
use crate::ffi::ret;

/// A queue pair's attachment to a multicast group, which ends when this value is dropped.
///
/// It borrows the queue pair, which cannot be destroyed while it is attached. Whoever has both in
/// one struct [keeps](Self::keep) the attachment instead.
#[derive(Debug)]
#[must_use = "dropping it detaches the queue pair from the group"]
pub struct Attachment<'q> {
    qp: &'q DatagramQueuePair,
    gid: Gid,
    lid: u16,
}

impl DatagramQueuePair {
    /// Attaches the queue pair to a multicast group, until the last attachment to the group ends.
    ///
    /// It then receives those datagrams of the group that reach its port and carry its
    /// [`QKey`](super::QKey).
    ///
    /// **This alone delivers nothing from the network.** It only sets a filter of this device. The
    /// fabric sends the group's packets to this port only after the port has joined the group, at a
    /// switch or a subnet manager: `rdma_join_multicast` of librdmacm does that
    /// (`rdmacm::MulticastGroup`, with the feature `rdmacm`). The group's GID begins with 0xff. On
    /// InfiniBand `lid` is the group's, on RoCE it is 0.
    ///
    /// To send to a group, no attachment is needed. Create an address handle for its GID or LID
    /// ([`ProtectionDomain::create_ah`](crate::ProtectionDomain::create_ah)), and send to the queue pair
    /// number 0xffffff.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if the GID is not that of a multicast group.
    #[doc = man!("ibv_attach_mcast")]
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, gid: Gid, lid: u16) -> Result<Attachment<'_>> {
        self.attached.attach(gid, lid)?;
        Ok(Attachment { qp: self, gid, lid })
    }

    /// Detaches the queue pair from a group to which it is [kept](Attachment::keep) attached.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if it is not kept attached to the group. After any other it still is.
    #[doc = man!("ibv_attach_mcast")]
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, gid: Gid, lid: u16) -> Result<()> {
        match self.attached.detach(gid, lid, true)? {
            true => Ok(()),
            false => ret::errno("ibv_detach_mcast", libc::EINVAL),
        }
    }
}

impl Attachment<'_> {
    /// The group's GID.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Detaches the queue pair and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// The errno. The queue pair is still attached then, and detached again before it is destroyed.
    #[doc = man!("ibv_attach_mcast")]
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(self) -> Result<()> {
        ManuallyDrop::new(self).end()
    }

    /// Leaves the queue pair attached: until [`detach_mcast`](DatagramQueuePair::detach_mcast), or until it is
    /// destroyed, which detaches it first.
    pub fn keep(self) {
        let this = ManuallyDrop::new(self);
        this.qp.attached.keep(this.gid, this.lid);
    }

    fn end(&self) -> Result<()> {
        let detached = self.qp.attached.detach(self.gid, self.lid, false);
        detached.map(drop)
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        log_failure(self.end(), self.gid);
    }
}
