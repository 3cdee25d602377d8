//! The requester: makes packets of what is posted to the send queue (9.7.2, 9.7.3, 10.8.3).

use std::time::Duration;

use super::send_queue::Entry;
use super::{QueuePair, QueuePairAttributes, QueuePairState};
use crate::card::Card;
use crate::completion::Status;
use crate::memory::Fault;
use crate::packet::{
    AtomicEth, Body, Deth, Extra, Header, Place, Psn, Reth, Route, Transport, pad,
};
use crate::request::{RemoteAddress, SendOpcode};

impl QueuePair {
    /// Whether packets may be sent, or answers be taken.
    pub(super) const fn is_sending(&self) -> bool {
        matches!(self.state, QueuePairState::Rts | QueuePairState::Sqd)
    }

    /// Makes the next packet of the send queue.
    pub(super) fn request(&mut self, card: &mut Card, buffer: &mut Vec<u8>) -> Option<Route> {
        while self.is_sending() && self.requester.rnr_until.is_none() {
            let next = self.requester.next;
            let entry = self.requester.queue.get(next)?;
            match entry.outcome {
                // Bound or invalidated, before the queue went back.
                Some(Status::SUCCESS) => {
                    self.requester.next += 1;
                    self.requester.packet = 0;
                    continue;
                }
                Some(_) => return None,
                None => {}
            }
            let is_waiting = self.state == QueuePairState::Sqd && !entry.is_started
                // 10.8.3.3: a fence waits for reads and atomics.
                || entry.request.is_fenced && self.requester.outstanding > 0
                // 10.6.5.1: an invalidation waits for all that is before it.
                || matches!(entry.request.opcode, SendOpcode::LocalInvalidate(_)) && next > 0;
            if is_waiting {
                return None;
            }
            let local = match entry.request.opcode {
                SendOpcode::BindWindow(bind) if self.options.transport != Transport::Ud => {
                    self.has_bound = true;
                    let bound = card.memory.bind(self.options.domain, self.number, &bind);
                    Some((bound.is_some(), Status::MW_BIND_ERR))
                }
                SendOpcode::LocalInvalidate(key) if self.options.transport == Transport::Rc => {
                    let is_done = card
                        .memory
                        .invalidate(self.options.domain, self.number, key);
                    Some((is_done, Status::LOC_QP_OP_ERR))
                }
                _ => None,
            };
            if let Some((is_done, error)) = local {
                self.end_entry(card, next, if is_done { Status::SUCCESS } else { error });
                continue;
            }
            match self.make_packet(card, buffer) {
                Ok(route) => return route,
                Err(status) => self.end_entry(card, next, status),
            }
        }
        None
    }

    /// Makes a packet of the next entry; nothing if it has to wait; an error if it can't be.
    fn make_packet(
        &mut self,
        card: &mut Card,
        packet: &mut Vec<u8>,
    ) -> Result<Option<Route>, Status> {
        let transport = self.options.transport;
        let mtu = self.mtu(card);
        let requester = &mut self.requester;
        let entry = &mut requester.queue[requester.next];
        let path = match (transport, entry.request.to) {
            (Transport::Ud, Some(to)) => to.path,
            _ => self.attributes.path,
        };
        let route = card.gids.route(&path, card.profile.source_port);
        let route = route.ok_or(Status::LOC_QP_OP_ERR)?;
        if entry.length > card.profile.max_message {
            return Err(Status::LOC_LEN_ERR);
        }
        if transport == Transport::Ud && entry.length > mtu {
            // C10-93.1.1: no packet, and no error.
            return Err(Status::SUCCESS);
        }
        entry.number(requester.fresh, mtu);
        let index = requester.packet;
        let (psn, skip) = (entry.first.plus(index), index * mtu);
        let ends = index + 1 == entry.packets;
        let body = body(entry, Place::of(index == 0, ends), skip);
        let body = body.filter(|body| has(transport, body));
        let body = body.ok_or(Status::LOC_QP_OP_ERR)?;
        let unacked = psn.since(requester.unacked);
        let window = i32::from(card.profile.max_unacknowledged >> requester.halvings);
        let has_to_wait = transport == Transport::Rc && unacked >= window
            || entry.is_read_or_atomic()
                && requester.outstanding >= self.attributes.max_rd_atomic.into();
        if has_to_wait {
            return Ok(None);
        }
        let length = match body.has_payload() {
            true => usize::try_from((entry.length - skip).min(mtu)).unwrap_or_default(),
            false => 0,
        };
        let mut header = self.header(card, self.requester.next, body, psn);
        header.wants_ack = self.wants_ack(card, unacked + 1 >= window, ends);
        header.write(length, packet);
        let entry = &self.requester.queue[self.requester.next];
        let copied = entry.copy(&card.memory, self.options.domain, skip, length, packet);
        if let Err(fault) = copied {
            packet.clear();
            return Err(status_of(fault, card.profile.local_fault));
        }
        pad(length, packet);
        self.requester.packet_sent(psn, ends);
        match transport {
            Transport::Rc if self.requester.ack_deadline.is_none() => {
                self.requester.ack_deadline = answer_due(&self.attributes, card);
            }
            Transport::Uc | Transport::Ud if ends => {
                self.end_entry(card, self.requester.next - 1, Status::SUCCESS);
            }
            _ => {}
        }
        Ok(Some(route))
    }

    /// The header of a packet of the entry at `index`.
    fn header(&self, card: &Card, index: usize, body: Body, psn: Psn) -> Header {
        let entry = &self.requester.queue[index];
        let transport = self.options.transport;
        let mut header = Header::new(transport, body, self.attributes.dest_qp_num, psn);
        header.is_migrated = card.profile.is_migrated;
        header.is_solicited = entry.request.is_solicited && takes_receive(&body);
        if let (Transport::Ud, Some(to)) = (transport, entry.request.to) {
            // 10.2.5: the highest bit stands for the own key.
            let qkey = match to.qkey >> 31 {
                1 => self.attributes.qkey,
                _ => to.qkey,
            };
            header.queue_pair = to.queue_pair;
            header.deth = Some(Deth {
                qkey,
                source_queue_pair: self.number,
            });
        }
        header
    }

    /// Whether a packet asks for an acknowledgement: the last of a message, one after some others, and one after which
    /// none may be sent.
    fn wants_ack(&mut self, card: &Card, fills_window: bool, ends: bool) -> bool {
        if self.options.transport != Transport::Rc {
            return false;
        }
        let profile = &card.profile;
        self.requester.unrequested += 1;
        let wants_ack =
            ends || self.requester.unrequested >= profile.packets_per_ack || fills_window;
        if wants_ack {
            self.requester.unrequested = 0;
        }
        wants_ack
    }
}

/// When an answer is late: 4.096 µs · 2^timeout from now; never for 0 (9.7.6).
pub(super) fn answer_due(attributes: &QueuePairAttributes, card: &Card) -> Option<Duration> {
    let timeout = attributes.timeout;
    (timeout != 0).then(|| card.now + Duration::from_nanos(4096 << timeout))
}

/// The kind of packet at a place of an entry; `skip` bytes went with packets before.
fn body(entry: &Entry, place: Place, skip: u32) -> Option<Body> {
    let reth = |remote: RemoteAddress| Reth {
        remote: remote.plus(skip.into()),
        length: entry.length - skip,
    };
    let at_end = |extra| if place.ends() { extra } else { Extra::None };
    Some(match entry.request.opcode {
        SendOpcode::Send => Body::Send(place, Extra::None),
        SendOpcode::SendWithImmediate(immediate) => {
            Body::Send(place, at_end(Extra::Immediate(immediate)))
        }
        SendOpcode::SendWithInvalidate(key) => Body::Send(place, at_end(Extra::Invalidate(key))),
        SendOpcode::Write(remote) => Body::Write(place, place.starts().then(|| reth(remote)), None),
        SendOpcode::WriteWithImmediate(remote, immediate) => Body::Write(
            place,
            place.starts().then(|| reth(remote)),
            place.ends().then_some(immediate),
        ),
        SendOpcode::Read(remote) => Body::ReadRequest(reth(remote)),
        SendOpcode::CompareSwap {
            remote,
            compare,
            swap,
        } => Body::CompareSwap(AtomicEth {
            remote,
            swap_or_add: swap,
            compare,
        }),
        SendOpcode::FetchAdd { remote, add } => Body::FetchAdd(AtomicEth {
            remote,
            swap_or_add: add,
            compare: 0,
        }),
        SendOpcode::BindWindow(_) | SendOpcode::LocalInvalidate(_) => return None,
    })
}

/// Whether a transport has this kind of request (9.2).
const fn has(transport: Transport, body: &Body) -> bool {
    match transport {
        Transport::Rc => true,
        Transport::Uc => matches!(
            body,
            Body::Send(_, Extra::None | Extra::Immediate(_)) | Body::Write(..)
        ),
        Transport::Ud => matches!(body, Body::Send(_, Extra::None | Extra::Immediate(_))),
    }
}

/// Whether a receive ends with this packet, so that it may be solicited.
const fn takes_receive(body: &Body) -> bool {
    match body {
        Body::Send(place, _) => place.ends(),
        Body::Write(_, _, immediate) => immediate.is_some(),
        _ => false,
    }
}

/// The status of a request whose own memory could not be accessed.
pub(super) const fn status_of(fault: Fault, denied: Status) -> Status {
    match fault {
        Fault::Denied => denied,
        Fault::TooLong => Status::LOC_LEN_ERR,
        Fault::Unmapped => Status::LOC_PROT_ERR,
    }
}
