//! The 40 bytes before a datagram.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::codes::Gid;

/// The header before a received datagram (GRH): who sent it, and to which address.
///
/// A device writes [`Grh::LEN`] bytes before each datagram into the receive's buffer. They hold a
/// header if [`WorkSuccess::has_grh`](crate::WorkSuccess::has_grh) is `true`:
///
/// - On InfiniBand and on RoCE with IPv6 addresses, a header of 40 bytes.
/// - On RoCE v2 with IPv4 addresses, 20 bytes without meaning, and then the IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_grh")]
pub struct Grh {
    sgid: Gid,
    dgid: Gid,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

/// Where the IPv4 header begins, and its length without options, which RoCE v2 does not have.
const IPV4: usize = 20;

impl Grh {
    /// How many bytes there are before each datagram, whether or not they hold a header.
    pub const LEN: usize = 40;

    /// The header from its bytes; `None` if they have neither of its two forms.
    ///
    /// The bytes before an IPv4 header have no meaning. They may look like an IPv6 header, for example that of an
    /// earlier datagram, and some devices leave the IPv4 checksum 0. So each form is known by several of its fields.
    /// [`WorkSuccess::grh_in`](crate::WorkSuccess::grh_in) also compares the length of the datagram.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        Self::of_datagram(bytes, None)
    }

    /// The header before a datagram of this many bytes.
    pub(crate) fn of_datagram(bytes: &[u8; Self::LEN], len: Option<u32>) -> Option<Self> {
        let (_, ipv4) = bytes.split_first_chunk::<IPV4>()?;
        match Self::begins_late(bytes, len) {
            true => ipv4.first_chunk().map(Self::from_ipv4),
            false => (bytes[0] >> 4 == 6).then(|| Self::from_ipv6(bytes)),
        }
    }

    /// Whether the header before a datagram of this many bytes is IPv4's, behind bytes without meaning.
    pub(crate) fn begins_late(bytes: &[u8; Self::LEN], len: Option<u32>) -> bool {
        let (Some(ipv6), Some(ipv4)) = (bytes.first_chunk(), bytes.last_chunk()) else {
            return false;
        };
        match (is_ipv6_udp(ipv6), is_ipv4_udp(ipv4)) {
            (true, true) => fits(ipv4, 2, 52, len) || !fits(ipv6, 4, 24, len),
            (false, false) => ipv6[0] >> 4 != 6 && ipv4[0] >> 4 == 4,
            (_, is_ipv4) => is_ipv4,
        }
    }

    fn from_ipv6(bytes: &[u8; Self::LEN]) -> Self {
        let gid = |at: usize| {
            let mut raw = [0; 16];
            raw.copy_from_slice(&bytes[at..at + 16]);
            Gid::new(raw)
        };
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Self {
            sgid: gid(8),
            dgid: gid(24),
            traffic_class: first.to_be_bytes()[0] << 4 | bytes[1] >> 4,
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
        }
    }

    fn from_ipv4(bytes: &[u8; IPV4]) -> Self {
        let gid = |at: usize| {
            let address = Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
            Gid::from(address.to_ipv6_mapped())
        };
        Self {
            sgid: gid(12),
            dgid: gid(16),
            traffic_class: bytes[1],
            flow_label: 0,
            hop_limit: bytes[8],
        }
    }

    /// The sender's GID; on RoCE with IPv4 its address, as an IPv4-mapped GID.
    #[must_use]
    pub const fn sgid(&self) -> Gid {
        self.sgid
    }

    /// The GID that the datagram was sent to: one of this side's, or a multicast group's.
    #[must_use]
    pub const fn dgid(&self) -> Gid {
        self.dgid
    }

    /// The traffic class, or the type of service if the header is IPv4's.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// The flow label, 20 bits; 0 if the header is IPv4's.
    #[must_use]
    pub const fn flow_label(&self) -> u32 {
        self.flow_label
    }

    /// The hop limit that was left: how many more routers the datagram could have passed.
    #[must_use]
    #[doc(alias = "ttl")]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Whether the header is IPv4's.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.sgid).to_ipv4_mapped().is_some()
    }
}

/// Whether this is the begin of an IPv6 header before UDP, or of a GRH before the transport's own header.
const fn is_ipv6_udp(begin: &[u8; IPV4]) -> bool {
    begin[0] >> 4 == 6 && matches!(begin[6], UDP | BTH)
}

/// Whether this is an IPv4 header before UDP. A device may leave the checksum 0.
fn is_ipv4_udp(header: &[u8; IPV4]) -> bool {
    header[0] == 0x45 && header[9] == UDP && (header[10..12] == [0, 0] || is_summed(header))
}

/// Whether the length in a header, at this place, is that of a datagram: at least `overhead` bytes more. Immediate
/// data, the padding, and the UDP header of RoCE v2 are together at most 15 bytes.
fn fits(header: &[u8; IPV4], at: usize, overhead: u32, len: Option<u32>) -> bool {
    let found = u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
    len.is_some_and(|len| (overhead..overhead + 16).contains(&found.wrapping_sub(len)))
}

/// The next protocol after an IP header, and after a GRH that no UDP header follows.
const UDP: u8 = 17;
const BTH: u8 = 0x1b;

/// Whether the checksum of an IPv4 header is right.
fn is_summed(header: &[u8; IPV4]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    // Ten words carry at most 9, and adding the carry causes no other one.
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 192.0.2.1 to 192.0.2.2, with a right checksum.
    const IPV4_HEADER: [u8; IPV4] = [
        0x45, 0x02, 0x00, 0x54, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0xa4, 0x5f, 192, 0, 2, 1, 192,
        0, 2, 2,
    ];

    fn after(garbage: [u8; IPV4]) -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        bytes[..IPV4].copy_from_slice(&garbage);
        bytes[IPV4..].copy_from_slice(&IPV4_HEADER);
        bytes
    }

    fn ipv6() -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        bytes[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf1, 0, 64, 0x1b, 7]);
        bytes[8..10].copy_from_slice(&[0xfe, 0x80]);
        bytes[23] = 1;
        bytes[24..26].copy_from_slice(&[0xfe, 0x80]);
        bytes[39] = 2;
        bytes
    }

    #[test]
    fn ipv4_header_is_behind_twenty_bytes_of_anything() {
        assert!(is_summed(&IPV4_HEADER));
        // Bytes that look like the begin of the other form, too.
        for garbage in [[0; IPV4], [0xff; IPV4], [0x60; IPV4]] {
            let grh = Grh::from_bytes(&after(garbage)).unwrap();
            assert_eq!(grh.sgid().to_string(), "::ffff:192.0.2.1");
            assert_eq!(grh.dgid().to_string(), "::ffff:192.0.2.2");
            assert_eq!((grh.hop_limit(), grh.traffic_class()), (64, 2));
            assert!(grh.is_ipv4());
        }
    }

    /// An IPv4 header whose device left the checksum out, behind the begin of an IPv6 header: that of an earlier
    /// datagram of `earlier` bytes.
    fn unsummed_after_ipv6(earlier: u16) -> [u8; Grh::LEN] {
        let mut bytes = after(*ipv6().first_chunk().unwrap());
        bytes[4..6].copy_from_slice(&(earlier + 32).to_be_bytes());
        bytes[6] = UDP;
        bytes[IPV4 + 10..IPV4 + 12].fill(0);
        bytes
    }

    #[test]
    fn ipv4_header_without_a_checksum_is_known_behind_an_earlier_ipv6_header() {
        // The earlier datagram was shorter, longer, and as long.
        for earlier in [0, 1000, 32] {
            let bytes = unsummed_after_ipv6(earlier);
            for len in [Some(32), None] {
                let grh = Grh::of_datagram(&bytes, len).unwrap();
                assert_eq!(grh.sgid().to_string(), "::ffff:192.0.2.1");
            }
        }
    }

    #[test]
    fn ipv6_addresses_that_look_like_an_ipv4_header_are_addresses() {
        // All that decides: version, protocol, and no checksum. The length is that of no datagram of 32 bytes.
        let mut bytes = ipv6();
        bytes[4..6].copy_from_slice(&64_u16.to_be_bytes());
        bytes[IPV4..IPV4 + 4].copy_from_slice(&[0x45, 0, 0x12, 0x34]);
        bytes[IPV4 + 8..IPV4 + 12].copy_from_slice(&[64, UDP, 0, 0]);
        assert!(!Grh::of_datagram(&bytes, Some(32)).unwrap().is_ipv4());
        // Without the protocol, the length is not needed.
        bytes[IPV4 + 9] = 6;
        assert!(!Grh::from_bytes(&bytes).unwrap().is_ipv4());
    }

    #[test]
    fn wrong_checksum_counts_only_where_both_forms_are_possible() {
        let mut bytes = after([0; IPV4]);
        bytes[IPV4 + 10..IPV4 + 12].fill(1);
        assert!(Grh::from_bytes(&bytes).unwrap().is_ipv4());
        bytes[0] = 0x60;
        assert!(!Grh::from_bytes(&bytes).unwrap().is_ipv4());
    }

    #[test]
    fn ipv6_header_has_all_forty_bytes() {
        let grh = Grh::from_bytes(&ipv6()).unwrap();
        assert_eq!(grh.sgid().to_string(), "fe80::1");
        assert_eq!(grh.dgid().to_string(), "fe80::2");
        assert_eq!((grh.traffic_class(), grh.flow_label()), (0xab, 0xc_def1));
        assert_eq!(grh.hop_limit(), 7);
        assert!(!grh.is_ipv4());
    }

    #[test]
    fn other_bytes_are_no_header() {
        for first in [0, 0x40, 0x50, 0xf0] {
            let mut bytes = [0; Grh::LEN];
            bytes[0] = first;
            assert_eq!(Grh::from_bytes(&bytes), None);
        }
    }
}
