//! The hash of a run: all packets that were sent, and all completions that were polled.

use std::net::Ipv6Addr;

use soft_nic::packet::{Body, Header};
use soft_nic::{Completion, Nic, RemoteAddress, Route};

/// Bytes of the base transport header, after which requests have their address.
const BTH: usize = 12;
/// Bytes of the invariant CRC, which depends on the addresses.
const ICRC: usize = 4;

/// A hash that is the same on each machine, and by each compiler.
pub(super) struct Hash(pub(super) u64);

impl Hash {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(u64::try_from(bytes.len()).unwrap_or_default());
    }

    /// A packet to a card, if it is one of the network's. Instead of an address it has the place within the region.
    pub(super) fn packet(&mut self, route: &Route, packet: &[u8], to: Option<&Nic>) {
        let ends = [route.source, route.destination].map(|gid: Ipv6Addr| gid.octets());
        self.bytes(ends.as_flattened());
        let end = packet.len().saturating_sub(ICRC);
        match Header::parse(packet).and_then(|(header, _)| remote(&header.body)) {
            None => self.bytes(&packet[..end]),
            Some(RemoteAddress { address, rkey }) => {
                self.bytes(&packet[..BTH]);
                let offset = to.and_then(|nic| nic.offset(rkey, address));
                self.word(offset.unwrap_or(u64::MAX));
                self.bytes(&packet[BTH + size_of::<u64>()..end]);
            }
        }
    }

    /// A completion that was polled; without its `wr_id`, which may be an address.
    pub(super) fn completion(&mut self, card: usize, completion: &Completion) {
        self.word(u64::try_from(card).unwrap_or_default() << 32 | u64::from(completion.queue_pair));
        let (status, opcode) = (completion.status as u64, completion.opcode as u64);
        self.word(status << 48 | opcode << 32 | u64::from(completion.byte_len));
    }
}

/// The address and key that a request has.
const fn remote(body: &Body) -> Option<RemoteAddress> {
    match body {
        Body::Write(_, Some(reth), _) | Body::ReadRequest(reth) => Some(reth.remote),
        Body::CompareSwap(atomic) | Body::FetchAdd(atomic) => Some(atomic.remote),
        _ => None,
    }
}
