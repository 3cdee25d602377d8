//! The IP and UDP headers that carry a packet, and the GRH that a datagram's receiver sees (annex A17).

use std::net::Ipv6Addr;

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// UDP, in IP's protocol field.
pub(super) const UDP: u8 = 17;

/// Don't fragment, in IPv4's flags: RoCE v2 packets are never fragmented.
pub(super) const DONT_FRAGMENT: u16 = 0x4000;

/// The IP and UDP headers of a packet, as far as a card needs them.
///
/// Addresses are GIDs: an IPv6 address, or `::ffff:a.b.c.d` for IPv4's `a.b.c.d`, in which case the packet
/// travels with an IPv4 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// GID of the card that sends.
    pub source: Ipv6Addr,
    /// GID of the card that receives, or of a multicast group.
    pub destination: Ipv6Addr,
    /// UDP port that the packet is sent from; the destination's is 4791.
    pub source_port: u16,
    /// Traffic class of IPv6, or type of service of IPv4.
    pub traffic_class: u8,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: u32,
    /// Hop limit of IPv6, or time to live of IPv4.
    pub hop_limit: u8,
    /// Identification of IPv4. `None` if it is not known, as of a packet that comes out of a UDP socket: the
    /// invariant CRC covers it, and is checked with all that it could be then, at half its strength. A packet to be
    /// sent has 0, with the flag DF, which is what Linux sends through a UDP socket that is not connected.
    pub identification: Option<u16>,
}

impl Route {
    /// The headers between two GIDs, with usual values for all else.
    #[must_use]
    pub const fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self {
            source,
            destination,
            source_port: ROCE_PORT,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            identification: Some(0),
        }
    }

    /// The IP and UDP headers in front of a packet of `length` bytes, as a wire has them; UDP's checksum is left out.
    #[must_use]
    pub fn headers(&self, length: u16) -> Vec<u8> {
        let udp_length = length.saturating_add(8);
        let start = if self.is_v4() { 20 } else { 0 };
        let mut headers = self.grh(udp_length, 0, true)[start..].to_vec();
        headers.extend(self.source_port.to_be_bytes());
        headers.extend(ROCE_PORT.to_be_bytes());
        headers.extend(udp_length.to_be_bytes());
        headers.extend([0, 0]);
        headers
    }

    pub(super) fn is_v4(&self) -> bool {
        let mut ends = [self.source, self.destination].into_iter();
        ends.all(|ip| ip.to_ipv4_mapped().is_some())
    }

    /// The 40 bytes that precede a datagram's payload in the receiver's memory: IPv6's header, or 20 bytes
    /// `padding` and IPv4's. `udp_length` counts UDP's header and all after it; without `with_checksum`, that
    /// of IPv4 is 0, as on some cards.
    pub(crate) fn grh(&self, udp_length: u16, padding: u8, with_checksum: bool) -> [u8; 40] {
        let mut grh = [padding; 40];
        match self.v4_header(udp_length) {
            None => grh.copy_from_slice(&self.v6_header(udp_length)),
            Some(mut header) => {
                if with_checksum {
                    let sum = checksum(&header);
                    header[10..12].copy_from_slice(&sum.to_be_bytes());
                }
                grh[20..].copy_from_slice(&header);
            }
        }
        grh
    }

    /// IPv4's header with a checksum of 0, if both addresses are IPv4's.
    pub(super) fn v4_header(&self, udp_length: u16) -> Option<[u8; 20]> {
        let [source, destination] = [self.source, self.destination].map(|ip| ip.to_ipv4_mapped());
        let mut header = [0; 20];
        header[0] = 0x45;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&udp_length.saturating_add(20).to_be_bytes());
        header[4..6].copy_from_slice(&self.identification.unwrap_or_default().to_be_bytes());
        header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        header[8] = self.hop_limit;
        header[9] = UDP;
        header[12..16].copy_from_slice(&source?.octets());
        header[16..20].copy_from_slice(&destination?.octets());
        Some(header)
    }

    /// IPv6's header.
    pub(super) fn v6_header(&self, udp_length: u16) -> [u8; 40] {
        let mut header = [0; 40];
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        header[0..4].copy_from_slice(&word.to_be_bytes());
        header[4..6].copy_from_slice(&udp_length.to_be_bytes());
        header[6] = UDP;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.octets());
        header[24..40].copy_from_slice(&self.destination.octets());
        header
    }
}

/// The checksum of an IPv4 header whose own field is 0.
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from(!sum & 0xffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Route, checksum};
    use std::net::Ipv4Addr;

    #[test]
    fn a_grh_of_ipv4_has_the_header_in_its_last_20_bytes() {
        let gid = |last| Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped();
        let route = Route::new(gid(1), gid(2));
        let grh = route.grh(40, 0xaa, true);
        assert_eq!(grh[..20], [0xaa; 20]);
        assert_eq!(grh[20..24], [0x45, 0, 0, 60]);
        assert_eq!(grh[32..], [127, 0, 0, 1, 127, 0, 0, 2]);
        // The checksum over a header with its own checksum is 0.
        assert_eq!(checksum(&grh[20..].try_into().unwrap()), 0);
        assert_eq!(route.grh(40, 0, false)[30..32], [0, 0]);
    }

    #[test]
    fn a_grh_of_ipv6_is_the_header() {
        let route = Route::new("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let grh = route.grh(40, 0xaa, true);
        assert_eq!(grh[..8], [0x60, 0, 0, 0, 0, 40, 17, 64]);
        assert_eq!(grh[23], 1);
        assert_eq!(grh[39], 2);
    }
}
