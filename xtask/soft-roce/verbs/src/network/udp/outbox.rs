//! Packets on their way to other processes.

use std::net::{Ipv6Addr, UdpSocket};
use std::sync::Arc;

use log::Level;

use super::system::{BATCH, Outgoing, send};
use crate::errno::Errno;
use crate::later;

/// Packets that a card sends one after the other, until they are a batch.
#[derive(Debug)]
pub(in crate::network) struct Outbox {
    sockets: Arc<[UdpSocket]>,
    /// The card that sends them.
    from: usize,
    /// Those that wait are the first; the others' memory is kept.
    packets: Vec<Outgoing>,
    waiting: usize,
    /// Errors that are in the log.
    known: Vec<Errno>,
}

impl Outbox {
    pub(super) const fn new(sockets: Arc<[UdpSocket]>) -> Self {
        Self {
            sockets,
            from: 0,
            packets: Vec::new(),
            waiting: 0,
            known: Vec::new(),
        }
    }

    /// Sends a packet from a card, now or with the next ones.
    pub(in crate::network) fn push(&mut self, from: usize, to: Ipv6Addr, packet: &[u8]) {
        if self.waiting == BATCH || from != self.from {
            self.flush();
        }
        self.from = from;
        if self.waiting == self.packets.len() {
            let bytes = Vec::new();
            self.packets.push(Outgoing { to, bytes });
        }
        let place = &mut self.packets[self.waiting];
        place.to = to;
        place.bytes.clear();
        place.bytes.extend_from_slice(packet);
        self.waiting += 1;
    }

    /// Sends all that wait. One that the kernel does not take is lost, as on any network.
    pub(in crate::network) fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.waiting {
            match send(&self.sockets[self.from], &self.packets[sent..self.waiting]) {
                Ok(count) => sent += count,
                Err(libc::EINTR) => {}
                Err(errno) => {
                    self.report(errno, sent);
                    sent += 1;
                }
            }
        }
        self.waiting = 0;
    }

    /// Each error is in the log once, for there may be many of them.
    fn report(&mut self, errno: Errno, place: usize) {
        if !self.known.contains(&errno) {
            self.known.push(errno);
            let to = self.packets[place].to;
            let to = to.to_canonical();
            let text = format_args!("packets are lost: errno {errno} at a send to {to}");
            later::line(Level::Error, text);
        }
    }
}
