//! Multicast groups, and the queue pairs that are attached to them (10.5).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::error::{Result, full, invalid};
use crate::profile::Profile;

/// The queue pairs that receive what is sent to a group.
#[derive(Default)]
pub(crate) struct Groups {
    attached: BTreeMap<Ipv6Addr, Vec<u32>>,
}

impl Groups {
    /// Attaches a queue pair; doing so twice changes nothing.
    pub(crate) fn attach(
        &mut self,
        group: Ipv6Addr,
        queue_pair: u32,
        profile: &Profile,
    ) -> Result<()> {
        if !group.to_canonical().is_multicast() {
            return Err(invalid("the GID is not that of a multicast group"));
        }
        let groups = self.attached.len();
        if !self.attached.contains_key(&group) && groups >= profile.max_multicast_groups {
            return Err(full("the card has no room for another multicast group"));
        }
        let members = self.attached.entry(group).or_default();
        if members.contains(&queue_pair) {
            return Ok(());
        }
        if members.len() >= profile.max_multicast_attached {
            return Err(full(
                "the multicast group has no room for another queue pair",
            ));
        }
        members.push(queue_pair);
        Ok(())
    }

    /// Detaches a queue pair.
    pub(crate) fn detach(&mut self, group: Ipv6Addr, queue_pair: u32) -> Result<()> {
        let no_member = invalid("the queue pair is not attached to this multicast group");
        let members = self.attached.get_mut(&group).ok_or(no_member)?;
        let place = members.iter().position(|member| *member == queue_pair);
        members.remove(place.ok_or(no_member)?);
        if members.is_empty() {
            self.attached.remove(&group);
        }
        Ok(())
    }

    /// Whether a queue pair is attached to any.
    pub(crate) fn have(&self, queue_pair: u32) -> bool {
        self.attached.values().any(|it| it.contains(&queue_pair))
    }

    /// The queue pairs of a group.
    pub(crate) fn members(&self, group: Ipv6Addr) -> &[u32] {
        self.attached.get(&group).map_or(&[], Vec::as_slice)
    }
}
