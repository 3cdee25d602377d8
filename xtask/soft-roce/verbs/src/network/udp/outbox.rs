//! Packets on their way to other processes.

use std::net::{Ipv6Addr, UdpSocket};
use std::sync::Arc;

use log::Level;

use super::system::{BATCH, LARGEST, Outgoing, send};
use crate::errno::Errno;
use crate::later;

/// Bytes that are sent before there are more of them, so that the peer has some to take meanwhile.
const FULL: usize = BATCH * LARGEST;

/// Bytes, and packets, that the kernel takes as one and parts.
const MOST_BYTES: usize = 65_000;
const MOST_PACKETS: usize = 64;

/// Packets that a card sends one after the other, until they are a batch.
pub(crate) struct Outbox {
    sockets: Arc<[UdpSocket]>,
    /// Whether the kernel parts what is longer than a packet.
    has_segments: bool,
    /// The card that sends them.
    from: usize,
    bytes: Vec<u8>,
    waiting: Vec<Outgoing>,
    /// Errors that are in the log.
    known: Vec<Errno>,
}

impl Outbox {
    pub(super) const fn new(sockets: Arc<[UdpSocket]>, has_segments: bool) -> Self {
        Self {
            sockets,
            has_segments,
            from: 0,
            bytes: Vec::new(),
            waiting: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Sends a packet from a card, now or with the next ones.
    pub(crate) fn push(&mut self, from: usize, to: Ipv6Addr, packet: &[u8]) {
        let is_full = self.bytes.len() + packet.len() > FULL || self.waiting.len() == BATCH;
        if is_full || from != self.from {
            self.flush();
        }
        self.from = from;
        self.bytes.extend_from_slice(packet);
        // The kernel counts the parts in IPv4's identification, which the CRC covers: soft-RoCE, which sees it, would
        // find the CRC wrong. At a loopback address is a card in user space, as this one has the port.
        let may_join = self.has_segments && to.to_ipv4_mapped().is_none_or(|v4| v4.is_loopback());
        match self.waiting.last_mut() {
            Some(last) if may_join && last.to == to && last.has_room_for(packet.len()) => {
                last.length += packet.len();
            }
            _ => self.waiting.push(Outgoing {
                to,
                each: packet.len(),
                length: packet.len(),
            }),
        }
    }

    /// Bytes of the packets that wait.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends all that wait. One that the kernel does not take is lost, as on any network.
    pub(crate) fn flush(&mut self) {
        let (mut sent, mut bytes) = (0, &self.bytes[..]);
        while sent < self.waiting.len() {
            let done = match send(&self.sockets[self.from], &self.waiting[sent..], bytes) {
                Ok(count) => count,
                Err(libc::EINTR) => 0,
                Err(errno) => {
                    report(&mut self.known, errno, self.waiting[sent].to);
                    1
                }
            };
            let gone = self.waiting[sent..][..done].iter();
            bytes = &bytes[gone.map(|message| message.length).sum()..];
            sent += done;
        }
        self.waiting.clear();
        self.bytes.clear();
    }
}

impl Outgoing {
    /// Whether another packet can go with these: all but the last are of one length.
    const fn has_room_for(&self, packet: usize) -> bool {
        self.length.is_multiple_of(self.each)
            && packet <= self.each
            && self.length + packet <= MOST_BYTES
            && self.length < self.each * MOST_PACKETS
    }
}

/// Each error is in the log once, for there may be many of them.
fn report(known: &mut Vec<Errno>, errno: Errno, to: Ipv6Addr) {
    if !known.contains(&errno) {
        known.push(errno);
        let to = to.to_canonical();
        later::line(
            Level::Error,
            format_args!("packets are lost: errno {errno} at a send to {to}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Place;
    use super::super::system::{BATCH, Incoming, has_segments, prepare, receive};
    use super::Outbox;
    use crate::sockaddr::gid;
    use std::array;

    #[test]
    fn packets_of_one_length_travel_together_and_arrive_one_by_one() {
        let bound = Place::Loopback.bind(std::process::id().into()).unwrap();
        let Ok([(_, from), (to, at)]) = <[_; 2]>::try_from(bound) else {
            panic!("two cards");
        };
        prepare(&at, true);
        let has_segments = [&from, &at].into_iter().all(has_segments);
        let lengths = [[1000; 21].as_slice(), &[500, 700, 700, 800]].concat();
        let packets: Vec<_> = (0_u8..).zip(lengths).map(|(n, len)| vec![n; len]).collect();
        let mut outbox = Outbox::new([from].into(), has_segments);
        for packet in &packets {
            outbox.push(0, gid(to), packet);
        }
        let together: Vec<usize> = outbox.waiting.iter().map(|it| it.length).collect();
        if has_segments {
            assert_eq!(together, [21_500, 1400, 800]);
        }
        outbox.flush();
        let mut room: [_; BATCH] = array::from_fn(|_| Incoming::empty());
        let mut arrived = Vec::new();
        while arrived.len() < packets.len() {
            let count = receive::<BATCH>(&at, &mut room);
            let messages = room[..count].iter();
            arrived.extend(messages.flat_map(|it| it.packets().map(<[u8]>::to_vec)));
        }
        assert_eq!(arrived, packets);
    }
}
