//! Multicast groups of datagrams, joined by `rdma_cm`.

use std::net::IpAddr;
use std::time::Duration;

use verbs_core::path::DatagramEndpoint;

use crate::datagrams::Datagrams;
use crate::error::Result;
use crate::exchange::ExchangeError;

/// Multicast groups, joined by `rdma_cm`. Needs the feature `rdmacm`.
///
/// The endpoints of all members have the key [`QKey::RDMA_UDP`](verbs_core::path::QKey::RDMA_UDP). Other members may
/// be programs that do not use this crate. iWARP has no datagrams.
impl Datagrams {
    /// Joins a multicast group, within `timeout`, with the port of the RDMA device that has the address `local`:
    /// that of this endpoint. Returns the endpoint that stands for all members, to send to.
    ///
    /// A datagram to the group arrives like any other, with its sender's endpoint. Whether a member
    /// receives what it has sent itself depends on the device. A network may take a moment to forward a new
    /// group.
    ///
    /// The endpoint is a member until it [leaves](Self::leave_cm) the group or is dropped, or the [network ends
    /// its membership](Self::ended_group_cm).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::verbs_core::Context;
    /// use verbs_channel::verbs_core::path::QKey;
    /// use verbs_channel::{BufferPool, Datagrams};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let mut datagrams = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP).build()?;
    /// let local = "192.0.2.1".parse()?;
    /// let all = datagrams.join_cm(local, "239.1.2.3".parse()?, Duration::from_secs(5))?;
    ///
    /// let pool = BufferPool::new(&pd, 1024, 16)?;
    /// let hello = pool.take_with(b"hello, all")?.ok_or("the pool is empty")?;
    /// datagrams.send_to(&all, hello)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`](crate::Error::Exchange): this endpoint has [another key](ExchangeError::OtherKey), the
    /// group was not joined in time ([`Manager`](ExchangeError::Manager)), or `local` is the address of
    /// [another device](ExchangeError::OtherDevice) or port, or of none. [`Error::Core`](crate::Error::Core): the
    /// device refuses. [`RejectReason::Down`](crate::RejectReason::Down): the endpoint has failed.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "ibv_attach_mcast")]
    pub fn join_cm(
        &mut self,
        local: IpAddr,
        group: IpAddr,
        timeout: Duration,
    ) -> Result<DatagramEndpoint> {
        let ours = self.by_manager()?;
        let joining = ours.join(local, group)?;
        let group = joining
            .wait(Some(timeout))
            .map_err(ExchangeError::Manager)?;
        let (endpoint, handle) = ours.joined(&group)?;
        self.engine_mut().join(endpoint, group)?;
        drop(self.engine_mut().add_handle(&endpoint, handle));
        Ok(endpoint)
    }

    /// Leaves the group that `group` stands for: its datagrams no longer arrive here. Returns whether the
    /// endpoint was a member.
    ///
    /// # Errors
    ///
    /// The errno: it is still a member then.
    #[doc(alias = "rdma_leave_multicast")]
    #[doc(alias = "ibv_detach_mcast")]
    pub fn leave_cm(&mut self, group: &DatagramEndpoint) -> Result<bool> {
        self.engine_mut().leave(group)
    }

    /// A group that the endpoint was a member of until the network or the device ended that: on InfiniBand when
    /// the port gets another LID, or the subnet manager starts anew. It does not wait.
    ///
    /// After that, datagrams to the group may not arrive any more, and nothing else reports that:
    /// call this from time to time, such as when nothing has arrived for a while, and
    /// [join](Self::join_cm) again. Each end is returned once. It makes a system call for each
    /// group.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    pub fn ended_group_cm(&mut self) -> Result<Option<DatagramEndpoint>> {
        let Some((ended, _)) = self.engine_mut().ended_group()? else {
            return Ok(None);
        };
        self.leave_cm(&ended)?;
        Ok(Some(ended))
    }
}
