//! The multicast groups that an endpoint is a member of.

use std::mem;
use std::sync::Arc;

use verbs_core::rdmacm::MulticastGroup;
use verbs_core::{DatagramEndpoint, DatagramQueuePair};

use super::engine::DatagramEngine;
use crate::error::Result;

/// The queue pair of an endpoint, to be attached to multicast groups and detached from them, by
/// [`DatagramEngine::memberships`].
///
/// Each is a system call, which may wait for the device, but for no peer. While this exists, the queue pair is
/// not destroyed.
#[derive(Clone, Debug)]
pub struct Memberships {
    qp: Arc<DatagramQueuePair>,
}

impl Memberships {
    /// Attaches the queue pair to a group.
    ///
    /// # Errors
    ///
    /// Those of [`MulticastGroup::attach`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, group: &MulticastGroup) -> Result<()> {
        group.attach(&self.qp)?.keep();
        Ok(())
    }

    /// Detaches the queue pair from a group.
    ///
    /// # Errors
    ///
    /// Those of [`detach_mcast`](DatagramQueuePair::detach_mcast): it is still attached then.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, group: &MulticastGroup) -> Result<()> {
        Ok(group.detach(&self.qp)?)
    }
}

/// Memberships in multicast groups.
impl DatagramEngine {
    /// What attaches the queue pair to groups without a lock. There is no
    /// [ending](Self::take_ending) until it is dropped.
    ///
    /// One thread at a time attaches and detaches: another may have a group detached that was just joined
    /// again.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`](crate::RejectReason::Down).
    pub fn memberships(&self) -> Result<Memberships> {
        match &self.qp {
            Some(qp) => Ok(Memberships { qp: Arc::clone(qp) }),
            None => Err(self.is_down().into()),
        }
    }

    /// Keeps a group to which the queue pair was [attached](Memberships::attach), which `endpoint` stands for
    /// ([`joined`](crate::exchange::rdmacm::joined) returns both), until the endpoint ends. Returns a former
    /// membership in the same group, or `group` itself if the endpoint is down, to be dropped where it may
    /// block.
    #[must_use = "it is dropped where it may block"]
    pub fn add_group(
        &mut self,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Option<MulticastGroup> {
        if self.qp.is_none() {
            return Some(group);
        }
        let former = self.groups.iter_mut().find(|(of, _)| *of == endpoint);
        match former {
            Some((_, former)) => Some(mem::replace(former, group)),
            None => {
                self.groups.push((endpoint, group));
                None
            }
        }
    }

    /// Takes out the group that `endpoint` stands for, to be [detached](Memberships::detach) from; `None` if
    /// the endpoint is no member, or down.
    #[must_use = "it is dropped where it may block"]
    pub fn take_group(&mut self, endpoint: &DatagramEndpoint) -> Option<MulticastGroup> {
        let at = self.groups.iter().position(|(of, _)| of == endpoint)?;
        let (_, group) = self.groups.swap_remove(at);
        Some(group)
    }

    /// A group that the endpoint is a member of, and whose membership has [ended by
    /// itself](MulticastGroup::poll_ended). [Take](Self::take_group) it out. It makes a system call for each group,
    /// and does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`MulticastGroup::poll_ended`].
    pub fn ended_group(&mut self) -> Result<Option<DatagramEndpoint>> {
        let mut first_error = None;
        for (endpoint, group) in &mut self.groups {
            match group.poll_ended() {
                Ok(true) => return Ok(Some(*endpoint)),
                Ok(false) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(None), |error| Err(error.into()))
    }

    /// Makes the endpoint a member of a group: it receives what is sent there until it
    /// [leaves](Self::leave) the group, or ends.
    pub(crate) fn join(&mut self, endpoint: DatagramEndpoint, group: MulticastGroup) -> Result<()> {
        self.memberships()?.attach(&group)?;
        drop(self.add_group(endpoint, group));
        Ok(())
    }

    /// Ends the membership in the group that `endpoint` stands for. Returns whether there was one. After an
    /// error it is still a member.
    pub(crate) fn leave(&mut self, endpoint: &DatagramEndpoint) -> Result<bool> {
        let Some(group) = self.take_group(endpoint) else {
            return Ok(false);
        };
        let detached = self.memberships()?.detach(&group);
        if detached.is_err() {
            drop(self.add_group(*endpoint, group));
        }
        detached.map(|()| true)
    }
}
