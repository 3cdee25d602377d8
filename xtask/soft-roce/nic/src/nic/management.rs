//! Management datagrams, which queue pair 1 takes and sends (volume 1, 13.5).

use super::Nic;
use crate::card::Random;
use crate::packet::{Body, Deth, Extra, Header, Place, Psn, Route, Transport};

/// The queue pair of general services.
pub(super) const QUEUE_PAIR: u32 = 1;

/// Its `Q_Key`, which all know.
const QKEY: u32 = 0x8001_0000;

/// This number of datagrams wait to be taken; further ones are dropped.
const ROOM: usize = 256;

/// A management datagram: its header and its data.
pub type ManagementDatagram = [u8; 256];

impl Nic {
    /// Takes a management datagram that has come, and the headers that it came with.
    pub fn poll_management(&mut self) -> Option<(Route, ManagementDatagram)> {
        self.management.pop_front()
    }

    /// Sends a management datagram to queue pair 1 of the route's destination.
    pub fn send_management(&mut self, route: Route, datagram: ManagementDatagram) {
        self.outgoing.push_back((route, datagram));
    }

    pub(super) fn manage(&mut self, route: &Route, header: &Header, payload: &[u8]) {
        let has_key = header.deth.is_some_and(|deth| deth.qkey == QKEY);
        match payload.try_into() {
            Ok(datagram) if has_key && self.management.len() < ROOM => {
                self.card.counters.received += 1;
                self.management.push_back((*route, datagram));
            }
            _ => self.card.counters.strange += 1,
        }
    }
}

/// The header of a datagram to be sent; nobody looks at its sequence number.
pub(super) fn header(random: &mut Random) -> Header {
    let psn = u32::try_from(random.number() >> 40).unwrap_or_default();
    let body = Body::Send(Place::Only, Extra::None);
    Header {
        deth: Some(Deth {
            qkey: QKEY,
            source_queue_pair: QUEUE_PAIR,
        }),
        ..Header::new(Transport::Ud, body, QUEUE_PAIR, Psn::new(psn))
    }
}
