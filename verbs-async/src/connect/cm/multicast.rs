//! Multicast groups of datagrams, joined by `rdma_cm`, with any notifier and any executor.

use std::net::IpAddr;
use std::time::Duration;

use verbs_channel::verbs_core::path::DatagramEndpoint;

use super::super::deadline::Deadline;
use super::ended;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::threads;

/// Multicast groups, joined by `rdma_cm`. Needs the feature `rdmacm`.
///
/// The endpoints of all members have the key
/// [`QKey::RDMA_UDP`](verbs_channel::verbs_core::path::QKey::RDMA_UDP). Other members may be programs that do not use
/// this crate. iWARP has no datagrams.
impl AsyncDatagrams {
    /// Joins a multicast group, within `timeout`, with the port of the RDMA device that has the address `local`:
    /// that of this endpoint. Returns the endpoint that stands for all members, to send to. See
    /// [`Datagrams::join_cm`](verbs_channel::Datagrams::join_cm).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the endpoint is no member, unless it was one before or
    /// another clone joins the group, too. A call that a helper thread is making then is undone when it returns.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::join_cm`](verbs_channel::Datagrams::join_cm), and
    /// [`Error::Thread`](crate::Error::Thread).
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "ibv_attach_mcast")]
    pub async fn join_cm(
        &self,
        local: IpAddr,
        group: IpAddr,
        timeout: Duration,
    ) -> Result<DatagramEndpoint> {
        self.check_is_up()?;
        let ours = self.by_manager();
        let deadline = Deadline::after(timeout, self.events());
        let joined = async {
            let begins = ours.clone();
            let joining = threads::run(move || begins.join(local, group)).await??;
            let group = ended(self.events(), joining, timeout).await?;
            let joined = group.call(None, move |group| {
                ours.joined(&group).map(|joined| (group, joined))
            });
            let (group, (endpoint, handle)) = joined.await??;
            self.join(endpoint, group).await?;
            Ok((endpoint, handle))
        };
        let (endpoint, handle) = deadline.bound("answer", joined).await?;
        self.add_handle(&endpoint, handle);
        Ok(endpoint)
    }

    /// Leaves the group that `group` stands for: its datagrams no longer arrive here. Returns whether the
    /// endpoint was a member.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the membership ends, also if the future is dropped.
    ///
    /// # Errors
    ///
    /// The errno: it is still a member then.
    #[doc(alias = "rdma_leave_multicast")]
    #[doc(alias = "ibv_detach_mcast")]
    pub async fn leave_cm(&self, group: &DatagramEndpoint) -> Result<bool> {
        self.leave(*group, ..).await
    }

    /// A group that the endpoint was a member of until the network or the device ended that. See
    /// [`Datagrams::ended_group_cm`](verbs_channel::Datagrams::ended_group_cm): nothing else reports it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the end is not returned again, and the endpoint is no member.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    pub async fn ended_group_cm(&self) -> Result<Option<DatagramEndpoint>> {
        while let Some((ended, number)) = self.ended_group()? {
            // Otherwise another clone was faster.
            if self.leave(ended, number..=number).await? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }
}
