//! Addresses: the GID table of the port, and address vectors (11.2).

use std::net::Ipv6Addr;
use std::num::NonZero;

use crate::packet::Route;

/// The way to a peer, or to a multicast group (an address handle's contents, `ibv_ah_attr`).
///
/// A RoCE v2 GID is an IP address: IPv6's, or `::ffff:a.b.c.d` for IPv4's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressVector {
    /// GID of the peer.
    pub destination: Ipv6Addr,
    /// Entry of the own GID table to send from.
    pub source_index: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit; 0 stands for 64, because C's programs leave it so.
    pub hop_limit: u8,
}

impl AddressVector {
    /// The way to a peer from the first entry of the GID table, with usual values for all else.
    #[must_use]
    pub const fn to(destination: Ipv6Addr) -> Self {
        Self {
            destination,
            source_index: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }
}

impl Default for AddressVector {
    fn default() -> Self {
        Self::to(Ipv6Addr::UNSPECIFIED)
    }
}

/// The GIDs of the port.
#[derive(Default)]
pub(crate) struct GidTable {
    entries: Vec<Option<Ipv6Addr>>,
}

impl GidTable {
    pub(crate) fn get(&self, index: u8) -> Option<Ipv6Addr> {
        self.entries.get(usize::from(index)).copied().flatten()
    }

    pub(crate) fn set(&mut self, index: u8, gid: Option<Ipv6Addr>) {
        let index = usize::from(index);
        if index >= self.entries.len() {
            self.entries.resize(index + 1, None);
        }
        self.entries[index] = gid;
    }

    pub(crate) fn contains(&self, gid: Ipv6Addr) -> bool {
        self.entries.contains(&Some(gid))
    }

    /// The headers for a packet on this way; nothing if the own GID is gone.
    pub(crate) fn route(&self, path: &AddressVector, source_port: u16) -> Option<Route> {
        let source = self.get(path.source_index)?;
        Some(Route {
            source_port,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit: NonZero::new(path.hop_limit).map_or(64, NonZero::get),
            ..Route::new(source, path.destination)
        })
    }
}
