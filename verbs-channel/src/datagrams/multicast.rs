//! The multicast groups that an endpoint is a member of.

use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::Rejected;
use verbs_core::path::DatagramEndpoint;
use verbs_core::rdmacm::MulticastGroup;

use super::close::Membership;
use super::engine::DatagramEngine;
use crate::error::{Error, Result};

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
///
/// An endpoint is a member of a group while it has at least one membership in it. Their numbers ascend.
impl DatagramEngine {
    /// Attaches the queue pair to groups without a lock. There is no [ending](Self::take_ending)
    /// until it is dropped.
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
    /// until the endpoint ends. Returns the number of this membership.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`](crate::RejectReason::Down), with the group, to be dropped where it may block.
    #[expect(clippy::result_large_err, reason = "gives back the group")]
    pub fn add_group(
        &mut self,
        endpoint: DatagramEndpoint,
        group: MulticastGroup,
    ) -> Result<u64, Rejected<MulticastGroup, Error>> {
        if self.qp.is_none() {
            return Err(Rejected::new(self.is_down().into(), group));
        }
        self.joined += 1;
        let number = self.joined;
        self.memberships.push(Membership {
            number,
            endpoint,
            group,
        });
        Ok(number)
    }

    /// Keeps a group again that was [taken out](Self::take_groups) with this number, as the queue pair could not
    /// be detached.
    ///
    /// # Errors
    ///
    /// Those of [`add_group`](Self::add_group).
    #[expect(clippy::result_large_err, reason = "gives back the group")]
    pub fn put_back_group(
        &mut self,
        endpoint: DatagramEndpoint,
        (number, group): (u64, MulticastGroup),
    ) -> Result<(), Rejected<MulticastGroup, Error>> {
        if self.qp.is_none() {
            return Err(Rejected::new(self.is_down().into(), group));
        }
        let earlier = |other: &Membership| other.number < number;
        let at = self.memberships.partition_point(earlier);
        let membership = Membership {
            number,
            endpoint,
            group,
        };
        self.memberships.insert(at, membership);
        Ok(())
    }

    /// Takes out the memberships with these numbers in the group that `endpoint` stands for, and returns them with
    /// their numbers. If that leaves [none](Self::has_group), the queue pair is to be
    /// [detached](Memberships::detach).
    #[must_use = "they are dropped where it may block"]
    pub fn take_groups(
        &mut self,
        endpoint: &DatagramEndpoint,
        numbers: impl RangeBounds<u64>,
    ) -> Vec<(u64, MulticastGroup)> {
        let taken =
            |its: &mut Membership| its.endpoint == *endpoint && numbers.contains(&its.number);
        let taken = self.memberships.extract_if(.., taken);
        taken.map(|its| (its.number, its.group)).collect()
    }

    /// Whether the endpoint is a member of the group that `endpoint` stands for. It is of none when it is down.
    #[must_use]
    pub fn has_group(&self, endpoint: &DatagramEndpoint) -> bool {
        self.latest_in(endpoint).is_some()
    }

    /// The latest membership in the group that `endpoint` stands for.
    pub(super) fn latest_in(&self, endpoint: &DatagramEndpoint) -> Option<&Membership> {
        let mut all = self.memberships.iter();
        all.rfind(|its| its.endpoint == *endpoint)
    }

    /// A membership that has [ended by itself](MulticastGroup::poll_ended): the group's endpoint and the number.
    /// [Take](Self::take_groups) it out. It makes a system call for each membership, and does not wait.
    ///
    /// # Errors
    ///
    /// Those of [`MulticastGroup::poll_ended`].
    pub fn ended_group(&mut self) -> Result<Option<(DatagramEndpoint, u64)>> {
        let mut first_error = None;
        for its in &mut self.memberships {
            match its.group.poll_ended() {
                Ok(true) => return Ok(Some((its.endpoint, its.number))),
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
        let number = self.add_group(endpoint, group)?;
        drop(self.take_groups(&endpoint, ..number));
        Ok(())
    }

    /// Ends the membership in the group that `endpoint` stands for. Returns whether there was one. After an
    /// error it is still a member.
    pub(crate) fn leave(&mut self, endpoint: &DatagramEndpoint) -> Result<bool> {
        // No more than one: see `join`.
        let Some(taken) = self.take_groups(endpoint, ..).pop() else {
            return Ok(false);
        };
        let detached = self.memberships()?.detach(&taken.1);
        if detached.is_err() {
            drop(self.put_back_group(*endpoint, taken));
        }
        detached.map(|()| true)
    }
}
