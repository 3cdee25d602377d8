//! GIDs: 128-bit addresses of ports.
#![expect(unsafe_code, reason = "reads the union `ibv_gid`")]

use std::fmt;
use std::net::{AddrParseError, Ipv6Addr};
use std::str::FromStr;

use verbs_sys::ibv_gid;

use super::macros::open_enum;

/// A global identifier (GID): the address of a port, 128 bits.
///
/// It prints and parses as an IPv6 address. On RoCE it is one: an IPv4 address as `::ffff:192.0.2.1`.
///
/// ```
/// let gid: verbs_core::codes::Gid = "fe80::5054:ff:fe12:3456".parse()?;
/// assert!(gid.is_link_local());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "Ipv6Addr", into = "Ipv6Addr")
)]
#[doc(alias = "ibv_gid")]
pub struct Gid([u8; 16]);

impl Gid {
    /// A GID from its bytes, in network order.
    #[must_use]
    pub const fn new(raw: [u8; 16]) -> Self {
        Self(raw)
    }

    /// The GID's bytes, in network order.
    #[must_use]
    pub const fn raw(self) -> [u8; 16] {
        self.0
    }

    /// Whether the GID is all zeros, as an empty entry of the table is.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        u128::from_ne_bytes(self.0) == 0
    }

    /// Whether the GID is link-local (`fe80::/10`): valid on its own link only.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        matches!(self.0, [0xfe, 0x80..0xc0, ..])
    }

    /// Whether it is an IPv4 address: on RoCE, packets then have headers of IPv4.
    pub(crate) fn is_ipv4(self) -> bool {
        Ipv6Addr::from(self).to_ipv4_mapped().is_some()
    }

    /// How far it reaches: 0 for a routable address, 1 for a link-local one, 2 for the loopback's.
    pub(crate) fn confinement(self) -> u8 {
        let (link_local, loopback) = match Ipv6Addr::from(self).to_ipv4_mapped() {
            Some(ipv4) => (ipv4.is_link_local(), ipv4.is_loopback()),
            None => (self.is_link_local(), Ipv6Addr::from(self).is_loopback()),
        };
        if loopback { 2 } else { u8::from(link_local) }
    }

    /// Whether packets can go from one to the other: both are IPv4 addresses, or both IPv6 addresses, and a
    /// link-local address does not lead to a routable one.
    pub(crate) fn leads_to(self, remote: Self) -> bool {
        self.is_ipv4() == remote.is_ipv4() && self.confinement() <= remote.confinement()
    }

    pub(crate) const fn as_raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }

    pub(crate) fn from_raw(gid: ibv_gid) -> Self {
        // SAFETY: both fields of the union are the same 16 bytes.
        Self(unsafe { gid.raw })
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(*self), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse().map(|address: Ipv6Addr| address.into())
    }
}

open_enum! {
    /// The format of the packets that a GID is for.
    GidType(u32), "ibv_gid_type";
    /// InfiniBand packets.
    IB = IBV_GID_TYPE_IB "IBV_GID_TYPE_IB",
    /// RoCE v1: Ethernet frames, within one broadcast domain.
    ROCE_V1 = IBV_GID_TYPE_ROCE_V1 "IBV_GID_TYPE_ROCE_V1" "RoCE v1",
    /// RoCE v2: UDP, routable.
    ROCE_V2 = IBV_GID_TYPE_ROCE_V2 "IBV_GID_TYPE_ROCE_V2" "RoCE v2",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn gids_look_like_addresses() {
        let gid = Gid::from(Ipv4Addr::new(10, 10, 0, 1).to_ipv6_mapped());
        assert_eq!(gid.to_string(), "::ffff:10.10.0.1");
        assert!(!gid.is_link_local());
        assert!(Gid::new([0; 16]).is_zero());
        assert!("fe80::1".parse::<Gid>().unwrap().is_link_local());
    }

    #[test]
    fn gids_parse_in_c_s_long_form_too() {
        let gid: Gid = "fe80:0000:0000:0000:0000:00ff:fe00:0001".parse().unwrap();
        assert_eq!(gid.to_string().parse(), Ok(gid));
        assert!("10.0.0.1".parse::<Gid>().is_err());
    }
}
