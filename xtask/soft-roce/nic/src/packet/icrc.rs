//! The invariant CRC: of all that no router changes (annex A17).

use crc32fast::Hasher;

use super::Route;
use super::route::{DONT_FRAGMENT, ROCE_PORT, UDP};

/// Bytes of the CRC at the end of a packet.
pub(super) const SIZE: usize = 4;

/// The invariant CRC of a packet, which ends with it, least significant byte first: `bytes` are all from the BTH to the
/// padding.
///
/// In the headers below, the fields that routers change are all ones: type of service, time to live and
/// checksum of IPv4; traffic class, flow label and hop limit of IPv6; UDP's checksum; and FECN and BECN in
/// the BTH. Eight bytes of ones stand for a header that RoCE v2 does not have.
///
/// As rxe does it, which cards take; the specification agrees.
#[must_use]
pub fn icrc(route: &Route, bytes: &[u8]) -> u32 {
    let udp_length = u16::try_from(8 + bytes.len() + SIZE).unwrap_or(u16::MAX);
    let mut hasher = Hasher::new();
    hasher.update(&[0xff; 8]);
    match route.v4_header(udp_length) {
        Some(mut header) => {
            header[1] = 0xff;
            header[8] = 0xff;
            header[10..12].copy_from_slice(&[0xff; 2]);
            debug_assert_eq!(header[6..8], DONT_FRAGMENT.to_be_bytes());
            hasher.update(&header);
        }
        None => {
            let mut header = route.v6_header(udp_length);
            header[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
            header[7] = 0xff;
            debug_assert_eq!(header[6], UDP);
            hasher.update(&header);
        }
    }
    let mut udp = [0xff; 8];
    udp[0..2].copy_from_slice(&route.source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    hasher.update(&udp);
    if let Some((before, rest)) = bytes.split_at_checked(4)
        && let Some((_, after)) = rest.split_first()
    {
        hasher.update(before);
        hasher.update(&[0xff]);
        hasher.update(after);
    }
    hasher.finalize()
}

/// Whether a packet ends with its CRC. If IPv4's identification is not known, the one that makes it so is looked for,
/// which leaves 16 of the 32 bits to check the packet.
pub(crate) fn is_intact(route: &Route, packet: &[u8]) -> bool {
    let Some((bytes, crc)) = packet.split_last_chunk::<SIZE>() else {
        return false;
    };
    let difference = icrc(route, bytes) ^ u32::from_le_bytes(*crc);
    let is_known = !route.is_v4() || route.identification.is_some();
    difference == 0 || (!is_known && is_from_identification(difference, bytes.len()))
}

/// Whether another identification than 0 explains the difference of a CRC.
///
/// A CRC is linear: the difference is the CRC, begun with 0, of the identification and of zeros for all that comes after.
/// Taken back over all of these, the remainder has the identification's two bytes, and nothing else.
fn is_from_identification(difference: u32, length: usize) -> bool {
    /// The identification itself, what is left of IPv4's header, and UDP's.
    const BEFORE: usize = 2 + 14 + 8;
    let bytes = BEFORE + length;
    let powers = BACK.iter().enumerate();
    let powers = powers.filter(|(bit, _)| bytes >> bit & 1 == 1);
    bytes >> BACK.len() == 0
        && powers.fold(difference, |rest, (_, back)| product(rest, *back)) <= 0xffff
}

/// The polynomial of the CRC, lowest power first.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Factors that take a CRC back over 2<sup>k</sup> zero bytes.
const BACK: [u32; 16] = {
    // 1, divided by x eight times.
    let (mut power, mut bit) = (1 << 31, 0);
    while bit < 8 {
        power = match power >> 31 {
            1 => (power ^ POLYNOMIAL) << 1 | 1,
            _ => power << 1,
        };
        bit += 1;
    }
    let (mut back, mut place) = ([power; 16], 1);
    while place < back.len() {
        back[place] = product(back[place - 1], back[place - 1]);
        place += 1;
    }
    back
};

/// The product of two polynomials, modulo the CRC's.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        bit >>= 1;
        b = (b >> 1) ^ (POLYNOMIAL * (b & 1));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{icrc, is_intact};
    use crate::packet::Route;
    use std::net::Ipv4Addr;

    #[test]
    fn a_packet_of_an_unknown_identification_is_checked_with_any() {
        let gid = |last| Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped();
        let unknown = Route {
            identification: None,
            ..Route::new(gid(1), gid(2))
        };
        for length in [12, 100, 4160] {
            for number in [0, 1, 0x0100, 0xabcd, 0xffff] {
                let route = Route {
                    identification: Some(number),
                    ..unknown
                };
                let mut packet = vec![7; length];
                packet.extend(icrc(&route, &packet).to_le_bytes());
                assert!(is_intact(&route, &packet) && is_intact(&unknown, &packet));
                for place in [0, 11, length - 1, length, length + 3] {
                    packet[place] ^= 0x10;
                    assert!(!is_intact(&unknown, &packet), "{number} {place}");
                    packet[place] ^= 0x10;
                }
            }
        }
        assert!(!is_intact(&unknown, &[1, 2, 3]));
    }
}
