//! The multicast groups that an endpoint has joined.

use std::ops::RangeBounds;

use verbs_core::path::DatagramEndpoint;
use verbs_core::rdmacm::MulticastGroup;

use crate::error::Result;

/// The memberships of an endpoint. Their numbers ascend.
#[derive(Debug, Default)]
pub(super) struct Groups {
    // How many there have been: the number of the last one.
    added: u64,
    joined: Vec<Joined>,
}

/// One of them. `endpoint` stands for the group.
#[derive(Debug)]
struct Joined {
    number: u64,
    endpoint: DatagramEndpoint,
    group: MulticastGroup,
}

impl Groups {
    /// Returns the number.
    pub(super) fn add(&mut self, endpoint: DatagramEndpoint, group: MulticastGroup) -> u64 {
        self.added += 1;
        let number = self.added;
        self.joined.push(Joined {
            number,
            endpoint,
            group,
        });
        number
    }

    /// Puts back one that was taken out, with its number.
    pub(super) fn put_back(
        &mut self,
        endpoint: DatagramEndpoint,
        number: u64,
        group: MulticastGroup,
    ) {
        let at = self.joined.partition_point(|other| other.number < number);
        let joined = Joined {
            number,
            endpoint,
            group,
        };
        self.joined.insert(at, joined);
    }

    /// Takes those with these numbers out of the group that `endpoint` stands for.
    pub(super) fn take(
        &mut self,
        endpoint: &DatagramEndpoint,
        numbers: impl RangeBounds<u64>,
    ) -> Vec<(u64, MulticastGroup)> {
        let taken =
            |joined: &mut Joined| joined.endpoint == *endpoint && numbers.contains(&joined.number);
        let taken = self.joined.extract_if(.., taken);
        taken.map(|joined| (joined.number, joined.group)).collect()
    }

    /// The latest membership in the group that `endpoint` stands for.
    pub(super) fn find(&self, endpoint: &DatagramEndpoint) -> Option<&MulticastGroup> {
        let mut joined = self.joined.iter();
        let found = joined.rfind(|joined| joined.endpoint == *endpoint);
        found.map(|joined| &joined.group)
    }

    /// One that has ended by itself, and its number.
    pub(super) fn ended(&mut self) -> Result<Option<(DatagramEndpoint, u64)>> {
        let mut first_error = None;
        for joined in &mut self.joined {
            match joined.group.poll_ended() {
                Ok(true) => return Ok(Some((joined.endpoint, joined.number))),
                Ok(false) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(None), |error| Err(error.into()))
    }
}
