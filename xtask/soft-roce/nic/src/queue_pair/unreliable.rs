//! The responder of UC and UD: lost packets are not asked for again, and nothing is answered (9.8.2, 9.8.3).

use super::QueuePair;
use super::responder::{Message, Refusal, receive_status};
use crate::card::Card;
use crate::completion::CompletedOpcode;
use crate::memory::Fault;
use crate::packet::{Body, Extra, Header, NakCode, Route};

impl QueuePair {
    /// UC: a message of which a packet is missing is dropped as a whole, and its receive used for the next.
    pub(super) fn unreliable(&mut self, card: &mut Card, header: &Header, payload: &[u8]) {
        let (Body::Send(place, _) | Body::Write(place, ..)) = header.body else {
            return;
        };
        let is_expected = header.psn == self.responder.psn;
        self.responder.psn = header.psn.plus(1);
        let continues = !matches!(self.responder.message, Message::None);
        // 9.8.2: after a loss, the next message begins with a first packet.
        if continues && (!is_expected || place.starts()) {
            self.responder.message = Message::None;
        }
        if !place.starts() && matches!(self.responder.message, Message::None) {
            return;
        }
        match self.carry_out(card, header, payload) {
            Ok(_) => {}
            Err(Refusal::Nak(NakCode::RemoteOperationalError, status)) => {
                self.break_off(card, status);
            }
            Err(_) => self.responder.message = Message::None,
        }
    }

    /// UD: a message is one packet, and its receive begins with the GRH.
    pub(super) fn datagram(
        &mut self,
        card: &mut Card,
        route: &Route,
        header: &Header,
        payload: &[u8],
    ) {
        let Body::Send(_, extra) = header.body else {
            return;
        };
        if !self.take_receive(card) {
            return;
        }
        let Some(receive) = &self.responder.receive else {
            return;
        };
        // UDP's header, BTH, DETH, perhaps immediate data, payload, padding, CRC.
        let immediate = if extra == Extra::None { 0 } else { 4 };
        let udp_length = 8 + 12 + 8 + immediate + payload.len().next_multiple_of(4) + 4;
        let udp_length = u16::try_from(udp_length).unwrap_or(u16::MAX);
        let grh = route.grh(
            udp_length,
            card.profile.grh_padding,
            card.profile.grh_checksum,
        );
        let domain = self.options.domain;
        let written = card
            .memory
            .scatter(domain, &receive.elements, 0, &grh)
            .and_then(|()| card.memory.scatter(domain, &receive.elements, 40, payload));
        match written {
            Ok(()) => {
                self.responder.received = 40 + u64::try_from(payload.len()).unwrap_or_default();
                self.receive_done(card, header, CompletedOpcode::Receive, None);
            }
            Err(Fault::TooLong) if !card.profile.long_datagram_breaks => {}
            Err(fault) => {
                let status = receive_status(card, fault).1;
                self.break_off(card, status);
            }
        }
    }
}
