//! The multicast groups that an endpoint is a member of.

use std::mem;

use verbs_core::DatagramEndpoint;
use verbs_core::rdmacm::MulticastGroup;

use super::engine::DatagramEngine;
use crate::error::Result;

impl DatagramEngine {
    /// Makes the endpoint a member of a group, which `endpoint` stands for
    /// ([`joined`](crate::exchange::rdmacm::joined) returns both): it receives what is sent there until it
    /// [leaves](Self::leave) the group, or ends.
    ///
    /// It makes a system call, which may wait for the device, but for no peer. It takes `group`, and puts a former membership in the same
    /// group in its place, to be dropped where it may block.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`](crate::RejectReason::Down), and those of [`MulticastGroup::attach`]. `group` is
    /// not taken then.
    pub fn join(
        &mut self,
        endpoint: DatagramEndpoint,
        group: &mut Option<MulticastGroup>,
    ) -> Result<()> {
        let Some(qp) = &self.qp else {
            return Err(self.is_down().into());
        };
        if let Some(group) = group {
            group.attach(qp)?.keep();
        }
        let former = self.groups.iter_mut().find(|(of, _)| *of == endpoint);
        match (former, group.take()) {
            (Some((_, former)), Some(new)) => *group = Some(mem::replace(former, new)),
            (None, Some(new)) => self.groups.push((endpoint, new)),
            (_, None) => {}
        }
        Ok(())
    }

    /// A group that the endpoint is a member of, and whose membership has [ended by
    /// itself](MulticastGroup::poll_ended). [`leave`](Self::leave) it. It makes a system call for each group,
    /// and does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`MulticastGroup::poll_ended`].
    pub fn ended_group(&mut self) -> Result<Option<DatagramEndpoint>> {
        for (endpoint, group) in &mut self.groups {
            if group.poll_ended()? {
                return Ok(Some(*endpoint));
            }
        }
        Ok(None)
    }

    /// Ends the membership in the group that `endpoint` stands for. Returns it, to be dropped where it may
    /// block; `None` if the endpoint is no member.
    ///
    /// # Errors
    ///
    /// Those of [`detach_mcast`](verbs_core::DatagramQueuePair::detach_mcast): it is still a member then.
    #[must_use = "it is dropped where it may block"]
    pub fn leave(&mut self, endpoint: &DatagramEndpoint) -> Result<Option<MulticastGroup>> {
        let at = self.groups.iter().position(|(of, _)| of == endpoint);
        let (Some(qp), Some(at)) = (&self.qp, at) else {
            return Ok(None);
        };
        let (_, group) = &self.groups[at];
        group.detach(qp)?;
        let (_, group) = self.groups.swap_remove(at);
        Ok(Some(group))
    }
}
