//! The invariant CRC: of all that no router changes (annex A17).

use crc32fast::Hasher;

use super::Route;
use super::route::{DONT_FRAGMENT, ROCE_PORT, UDP};

/// Bytes of the CRC at the end of a packet.
pub(super) const SIZE: usize = 4;

/// The invariant CRC of a packet: `bytes` are all from the BTH to the padding.
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
    match route.v4() {
        Some((source, destination)) => {
            let mut header = route.v4_header(udp_length, source, destination);
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

/// Appends its CRC to a packet, least significant byte first.
pub(crate) fn seal(route: &Route, packet: &mut Vec<u8>) {
    let crc = icrc(route, packet);
    packet.extend_from_slice(&crc.to_le_bytes());
}

/// Whether a packet ends with its CRC, or that cannot be seen.
pub(crate) fn is_intact(route: &Route, packet: &[u8]) -> bool {
    if route.v4().is_some() && route.identification.is_none() {
        return true;
    }
    match packet.split_last_chunk::<SIZE>() {
        Some((bytes, crc)) => icrc(route, bytes) == u32::from_le_bytes(*crc),
        None => false,
    }
}
