//! The responder: takes requests, checks them in the order of the specification, and carries them out (9.7.4,
//! 9.9.3).

use std::collections::VecDeque;

use super::reply::{Done, Remembered, Reply};
use super::{QueuePair, QueuePairState};
use crate::card::Card;
use crate::completion::{CompletedOpcode, Completion, Status};
use crate::event::Event;
use crate::memory::{Access, Fault};
use crate::packet::{
    AtomicEth, Body, Extra, Header, NakCode, Place, Psn, Reth, Route, Syndrome, Transport,
};
use crate::request::{ReceiveRequest, RemoteAddress};

/// State of the receiving half: the place in the peer's sequence, and the answers to be sent.
#[derive(Default)]
pub(super) struct Responder {
    /// PSN that is expected next.
    pub(super) psn: Psn,
    /// Messages that are complete, 24 bits.
    pub(super) msn: u32,
    /// The message that a packet in the middle would continue.
    pub(super) message: Message,
    /// The receive that a message goes to; one that a lost message used is used again.
    pub(super) receive: Option<ReceiveRequest>,
    /// Bytes of the message that have come.
    pub(super) received: u64,
    /// Whether a refusal was sent, and the packet that was asked for has not come yet.
    is_refusing: bool,
    /// Whether the first packet has come.
    has_begun: bool,
    /// Answers to be sent.
    pub(super) replies: VecDeque<Reply>,
    /// The latest reads and atomics, to be answered again.
    pub(super) remembered: VecDeque<Remembered>,
}

/// A message of which a part has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Message {
    #[default]
    None,
    Send,
    Write {
        at: RemoteAddress,
        remaining: u32,
    },
}

/// Why a request is not carried out.
pub(super) enum Refusal {
    /// There is no receive.
    NotReady,
    /// For this reason, and with this status of the receive.
    Nak(NakCode, Status),
    /// It is acknowledged, and then the queue pair breaks.
    BadInvalidation,
    /// As if it had been lost.
    Lost,
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, Status::REM_INV_REQ_ERR);

impl QueuePair {
    /// Takes a request.
    pub(super) fn request_arrived(
        &mut self,
        card: &mut Card,
        route: &Route,
        header: &Header,
        payload: &[u8],
    ) {
        use QueuePairState::{Rtr, Rts, Sqd, Sqe};
        if !matches!(self.state, Rtr | Rts | Sqd | Sqe) {
            card.counters.strange += 1;
            return;
        }
        if !self.responder.has_begun {
            self.responder.has_begun = true;
            if self.state == Rtr && card.profile.communication_established {
                card.events
                    .push_back(Event::CommunicationEstablished(self.number));
            }
        }
        match self.options.transport {
            Transport::Rc => self.reliable(card, header, payload),
            Transport::Uc => self.unreliable(card, header, payload),
            Transport::Ud => self.datagram(card, route, header, payload),
        }
    }

    fn reliable(&mut self, card: &mut Card, header: &Header, payload: &[u8]) {
        let distance = header.psn.since(self.responder.psn);
        if distance < 0 {
            return self.duplicate(card, header);
        }
        if distance > 0 {
            // 9.7.5: one refusal, until the packet that is missing has come.
            if !std::mem::replace(&mut self.responder.is_refusing, true) {
                self.answer(self.responder.psn, Syndrome::Nak(NakCode::SequenceError));
            }
            return;
        }
        self.responder.is_refusing = false;
        match self.carry_out(card, header, payload) {
            Ok(packets) => {
                self.responder.psn = self.responder.psn.plus(packets);
                let is_answered = matches!(
                    header.body,
                    Body::ReadRequest(_) | Body::CompareSwap(_) | Body::FetchAdd(_)
                );
                if header.wants_ack && !is_answered {
                    self.answer(header.psn, Syndrome::ACK);
                }
            }
            Err(Refusal::Lost) => {}
            Err(Refusal::NotReady) => {
                card.counters.not_ready += 1;
                self.responder.is_refusing = true;
                let timer = self.attributes.min_rnr_timer;
                self.answer(header.psn, Syndrome::ReceiverNotReady(timer));
            }
            Err(Refusal::BadInvalidation) => {
                // As rxe (class J): the data has arrived, so it is acknowledged.
                self.responder.psn = self.responder.psn.plus(1);
                self.answer(header.psn, Syndrome::ACK);
                self.break_off(card, Status::REM_INV_REQ_ERR);
            }
            Err(Refusal::Nak(code, status)) => {
                self.answer(header.psn, Syndrome::Nak(code));
                if card.profile.request_error_events {
                    card.events.push_back(match code {
                        NakCode::RemoteAccessError => Event::QueuePairAccessError(self.number),
                        _ => Event::QueuePairRequestError(self.number),
                    });
                }
                self.break_off(card, status);
            }
        }
    }

    /// Carries out a request that is in sequence; returns how many PSNs it and its answer take.
    pub(super) fn carry_out(
        &mut self,
        card: &mut Card,
        header: &Header,
        payload: &[u8],
    ) -> Result<u32, Refusal> {
        let is_in_order = match (header.body, self.responder.message) {
            (Body::Send(place, _), Message::Send)
            | (Body::Write(place, ..), Message::Write { .. }) => !place.starts(),
            (Body::Send(place, _) | Body::Write(place, ..), Message::None) => place.starts(),
            (_, message) => matches!(message, Message::None),
        };
        if !is_in_order {
            return Err(INVALID);
        }
        match header.body {
            Body::Send(place, extra) => self.send(card, header, place, extra, payload).map(|()| 1),
            Body::Write(place, reth, _) => {
                self.write(card, header, place, reth, payload).map(|()| 1)
            }
            Body::ReadRequest(reth) => self.read_request(card, header.psn, &reth),
            Body::CompareSwap(atomic) | Body::FetchAdd(atomic) => {
                self.atomic_request(card, header, &atomic)
            }
            _ => Err(INVALID),
        }
    }

    fn send(
        &mut self,
        card: &mut Card,
        header: &Header,
        place: Place,
        extra: Extra,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let (length, mtu) = (payload_length(payload), self.mtu(card));
        let is_sized = match place {
            Place::First | Place::Middle => length == mtu,
            Place::Last => 0 < length && length <= mtu,
            Place::Only => length <= mtu,
        };
        if !is_sized {
            return Err(INVALID);
        }
        if place.starts() {
            if !self.take_receive(card) {
                return Err(Refusal::NotReady);
            }
            self.responder.received = 0;
        }
        let Some(receive) = &self.responder.receive else {
            return Err(INVALID);
        };
        let (elements, skip) = (&receive.elements, self.responder.received);
        let written = card
            .memory
            .scatter(self.options.domain, elements, skip, payload);
        if let Err(fault) = written {
            let (code, status) = receive_status(card, fault);
            return Err(Refusal::Nak(code, status));
        }
        self.responder.received += u64::from(length);
        if !place.ends() {
            self.responder.message = Message::Send;
            return Ok(());
        }
        self.responder.message = Message::None;
        self.message_done();
        let mut invalidated = None;
        if let Extra::Invalidate(key) = extra {
            if !card
                .memory
                .invalidate(self.options.domain, self.number, key)
            {
                return Err(Refusal::BadInvalidation);
            }
            invalidated = Some(key);
        }
        self.receive_done(card, header, CompletedOpcode::Receive, invalidated);
        Ok(())
    }

    fn write(
        &mut self,
        card: &mut Card,
        header: &Header,
        place: Place,
        reth: Option<Reth>,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if !self.attributes.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        let has_immediate = matches!(header.body, Body::Write(_, _, Some(_)));
        if has_immediate && !self.take_receive(card) {
            return Err(Refusal::NotReady);
        }
        let by = self.accessor(Access::REMOTE_WRITE);
        let (at, remaining) = match (reth, self.responder.message) {
            (Some(reth), _) => {
                let is_allowed = card.memory.check(by, reth.remote, reth.length.into());
                is_allowed.map_err(access_refusal)?;
                self.responder.received = 0;
                (reth.remote, reth.length)
            }
            (None, Message::Write { at, remaining }) => (at, remaining),
            (None, _) => return Err(INVALID),
        };
        let (length, mtu) = (payload_length(payload), self.mtu(card));
        // 9.7.4: full packets, and a last one that ends where the message does.
        if length != remaining.min(mtu) || place.ends() != (remaining <= mtu) {
            return Err(INVALID);
        }
        let written = card.memory.write(by, at, payload);
        written.map_err(access_refusal)?;
        self.responder.received += u64::from(length);
        if !place.ends() {
            self.responder.message = Message::Write {
                at: at.plus(length.into()),
                remaining: remaining - length,
            };
            return Ok(());
        }
        self.responder.message = Message::None;
        self.message_done();
        if has_immediate {
            self.receive_done(
                card,
                header,
                CompletedOpcode::ReceiveWriteWithImmediate,
                None,
            );
        }
        Ok(())
    }

    fn read_request(&mut self, card: &Card, psn: Psn, reth: &Reth) -> Result<u32, Refusal> {
        self.may_answer(Access::REMOTE_READ)?;
        if reth.length > card.profile.max_message {
            return Err(INVALID);
        }
        let by = self.accessor(Access::REMOTE_READ);
        let is_allowed = card.memory.check(by, reth.remote, reth.length.into());
        is_allowed.map_err(access_refusal)?;
        self.message_done();
        let packets = reth.length.div_ceil(self.mtu(card)).max(1);
        self.remember(Remembered {
            first: psn,
            packets,
            done: Done::Read(*reth),
        });
        self.answer_read(psn, reth);
        Ok(packets)
    }

    fn atomic_request(
        &mut self,
        card: &Card,
        header: &Header,
        atomic: &AtomicEth,
    ) -> Result<u32, Refusal> {
        self.may_answer(Access::REMOTE_ATOMIC)?;
        if !atomic.remote.address.is_multiple_of(8) {
            return Err(INVALID);
        }
        let by = self.accessor(Access::REMOTE_ATOMIC);
        let changed = card
            .memory
            .change(by, atomic.remote, |before| match header.body {
                Body::FetchAdd(_) => before.wrapping_add(atomic.swap_or_add),
                _ if before == atomic.compare => atomic.swap_or_add,
                _ => before,
            });
        let original = changed.map_err(access_refusal)?;
        self.message_done();
        self.remember(Remembered {
            first: header.psn,
            packets: 1,
            done: Done::Atomic(original),
        });
        self.answer_atomic(header.psn, original);
        Ok(1)
    }

    /// Whether a read or atomic is allowed, and there is room for its answer.
    fn may_answer(&self, access: Access) -> Result<(), Refusal> {
        if !self.attributes.access.contains(access) || self.attributes.max_dest_rd_atomic == 0 {
            return Err(INVALID);
        }
        match self.has_room_for_replies() {
            true => Ok(()),
            false => Err(Refusal::Lost),
        }
    }

    fn message_done(&mut self) {
        self.responder.msn = self.responder.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Takes a receive for a message, unless there is one already; false if there is none.
    pub(super) fn take_receive(&mut self, card: &mut Card) -> bool {
        if self.responder.receive.is_some() {
            return true;
        }
        self.responder.receive = match self.options.shared_receives {
            None => self.receives.waiting.pop_front(),
            Some(id) => {
                let Some(shared) = card.shared_receives.get_mut(id.0) else {
                    return false;
                };
                let taken = shared.queue.waiting.pop_front();
                let waiting = u32::try_from(shared.queue.waiting.len());
                let is_below = waiting.is_ok_and(|waiting| waiting < shared.limit);
                if taken.is_some() && is_below {
                    // One event, until the limit is set again.
                    shared.limit = 0;
                    card.events.push_back(Event::SharedReceiveLimitReached(id));
                }
                taken
            }
        };
        self.responder.receive.is_some()
    }

    /// Completes the receive of a message that has arrived.
    pub(super) fn receive_done(
        &mut self,
        card: &mut Card,
        header: &Header,
        opcode: CompletedOpcode,
        invalidated: Option<u32>,
    ) {
        let Some(receive) = self.responder.receive.take() else {
            return;
        };
        let mut completion = Completion::new(self.number, receive.wr_id, Status::SUCCESS, opcode);
        completion.byte_len = u32::try_from(self.responder.received).unwrap_or(u32::MAX);
        completion.immediate = match header.body {
            Body::Send(_, Extra::Immediate(immediate)) => Some(immediate),
            Body::Write(_, _, immediate) => immediate,
            _ => None,
        };
        completion.invalidated = invalidated;
        if let Some(deth) = header.deth {
            completion.source_queue_pair = deth.source_queue_pair;
            completion.has_grh = true;
        }
        self.complete_receive(card, completion, header.is_solicited);
    }

    /// Completes a receive with an error.
    pub(super) fn fail_receive(
        &mut self,
        card: &mut Card,
        receive: ReceiveRequest,
        status: Status,
    ) {
        let opcode = CompletedOpcode::Receive;
        let completion = Completion::new(self.number, receive.wr_id, status, opcode);
        self.complete_receive(card, completion, true);
    }

    /// Completes the receive of a message that broke the queue pair, and goes to ERR.
    pub(super) fn break_off(&mut self, card: &mut Card, status: Status) {
        if let Some(receive) = self.responder.receive.take() {
            self.fail_receive(card, receive, status);
        }
        self.fail(card);
    }
}

fn payload_length(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}

const fn access_refusal(_: Fault) -> Refusal {
    Refusal::Nak(NakCode::RemoteAccessError, Status::REM_ACCESS_ERR)
}

/// How both sides learn that a message does not go into its receive.
pub(super) const fn receive_status(card: &Card, fault: Fault) -> (NakCode, Status) {
    match fault {
        Fault::TooLong if card.profile.long_message_is_operational => {
            (NakCode::RemoteOperationalError, Status::LOC_QP_OP_ERR)
        }
        Fault::TooLong => (NakCode::InvalidRequest, Status::LOC_LEN_ERR),
        Fault::Denied => (NakCode::RemoteOperationalError, card.profile.local_fault),
        Fault::Unmapped => (NakCode::RemoteOperationalError, Status::LOC_PROT_ERR),
    }
}
