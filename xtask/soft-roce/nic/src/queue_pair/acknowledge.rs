//! Answers to requests: acknowledgements, refusals, what was read, and the timers that wait for them (9.7.5,
//! 9.7.6, 9.9.2).

use std::time::Duration;

use super::QueuePair;
use super::requester::{answer_due, status_of};
use crate::card::Card;
use crate::completion::Status;
use crate::packet::{Body, Header, NakCode, Psn, Syndrome, rnr_timer};
use crate::request::SendOpcode;

impl QueuePair {
    /// Takes an answer.
    pub(super) fn response_arrived(&mut self, card: &mut Card, header: &Header, payload: &[u8]) {
        let psn = header.psn;
        // An answer to what was not asked yet, or is answered already, is ignored (9.9.2: ghosts).
        if !self.is_sending()
            || psn.since(self.requester.unacked) < 0
            || psn.since(self.requester.sent) >= 0
        {
            return;
        }
        match header.body {
            Body::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack(_) if self.advance(card, psn.plus(1)) => {}
                Syndrome::Ack(_) => self.retry(card, false),
                Syndrome::ReceiverNotReady(timer) => self.not_ready(card, psn, timer),
                Syndrome::Nak(code) => self.refused(card, psn, code),
            },
            Body::ReadResponse(place, _) => {
                self.answered(card, psn, true, place.ends(), payload);
            }
            Body::AtomicAcknowledge(_, original) => {
                self.answered(card, psn, false, true, &original.to_ne_bytes());
            }
            _ => {}
        }
    }

    /// Completes what ends before this packet. Returns false if the answer to a read or atomic before it is
    /// missing, so that it has to be asked for again.
    fn advance(&mut self, card: &mut Card, before: Psn) -> bool {
        let mut is_complete = true;
        let mut reached = before;
        for entry in &mut self.requester.queue {
            if entry.outcome.is_some() {
                continue;
            }
            if !entry.is_started || entry.first.since(before) >= 0 {
                break;
            }
            if entry.is_read_or_atomic() {
                // All of the answer before that packet may have come.
                let unacked = self.requester.unacked;
                let has_begun = unacked.since(entry.first) >= 0;
                reached = if has_begun { unacked } else { entry.first };
                is_complete = reached == before;
                break;
            }
            if entry.last().since(before) >= 0 {
                break;
            }
            entry.outcome = Some(Status::SUCCESS);
        }
        self.retire(card);
        self.progress(card, reached);
        is_complete
    }

    /// Notes that all before this packet is acknowledged.
    fn progress(&mut self, card: &Card, reached: Psn) {
        if self.is_sending() && reached.since(self.requester.unacked) > 0 {
            self.requester.unacked = reached;
            self.requester.skip_acknowledged();
            self.requester.restore_retries(&self.attributes);
            self.requester.halvings = self.requester.halvings.saturating_sub(1);
            self.requester.ack_deadline = match self.requester.unacked == self.requester.sent {
                true => None,
                false => answer_due(&self.attributes, card),
            };
        }
    }

    /// The peer had no receive (9.7.5).
    fn not_ready(&mut self, card: &mut Card, psn: Psn, timer: u8) {
        if self.requester.rnr_until.is_some() {
            return;
        }
        if !self.advance(card, psn) || !self.is_sending() {
            return self.retry(card, false);
        }
        if self.requester.rnr_retries_left == 0 {
            return self.end_oldest(card, Status::RNR_RETRY_EXC_ERR);
        }
        // 9.7.5: 7 is for ever.
        if self.attributes.rnr_retry != 7 {
            self.requester.rnr_retries_left -= 1;
        }
        self.requester.rnr_until = Some(card.now + rnr_timer(timer));
        self.requester.ack_deadline = None;
        self.requester.rewind();
    }

    /// The peer refused a request (9.7.5).
    fn refused(&mut self, card: &mut Card, psn: Psn, code: NakCode) {
        if !self.advance(card, psn) || code == NakCode::SequenceError {
            return self.retry(card, false);
        }
        let status = match code {
            NakCode::InvalidRequest => Status::REM_INV_REQ_ERR,
            NakCode::RemoteAccessError => Status::REM_ACCESS_ERR,
            NakCode::RemoteOperationalError | NakCode::SequenceError => Status::REM_OP_ERR,
        };
        self.end_oldest(card, status);
    }

    /// Takes a part of what was read, or the value from before an atomic operation, and acknowledges what is before it.
    fn answered(&mut self, card: &mut Card, psn: Psn, is_read: bool, ends: bool, bytes: &[u8]) {
        if !self.advance(card, psn) {
            return self.retry(card, false);
        }
        let (mtu, is_next) = (self.mtu(card), self.requester.unacked == psn);
        let Some(front) = self.requester.queue.front_mut() else {
            return;
        };
        let index = psn.since(front.first);
        let is_asked = front.is_started && index >= 0 && psn.since(front.last()) <= 0;
        if !is_asked || !is_next {
            return;
        }
        let skip = u32::try_from(index).unwrap_or_default() * mtu;
        let expected = match front.request.opcode {
            SendOpcode::Read(_) if is_read => front.length.saturating_sub(skip).min(mtu),
            SendOpcode::CompareSwap { .. } | SendOpcode::FetchAdd { .. } if !is_read => 8,
            _ => return self.end_oldest(card, Status::BAD_RESP_ERR),
        };
        let is_last = psn == front.last();
        if ends != is_last || u32::try_from(bytes.len()) != Ok(expected) {
            return self.end_oldest(card, Status::BAD_RESP_ERR);
        }
        let elements = front.request.data.elements();
        let domain = self.options.domain;
        if let Err(fault) = card.memory.scatter(domain, elements, skip.into(), bytes) {
            let status = status_of(fault, Status::LOC_PROT_ERR);
            return self.end_oldest(card, status);
        }
        if ends {
            front.outcome = Some(Status::SUCCESS);
        }
        self.retire(card);
        self.progress(card, psn.plus(1));
    }

    /// Goes back to the oldest packet that is not acknowledged, or gives up.
    fn retry(&mut self, card: &mut Card, is_late: bool) {
        // Answers to what was sent before it went back are not another reason.
        if !self.is_sending() || self.requester.is_retrying && !is_late {
            return;
        }
        if self.requester.retries_left == 0 {
            return self.end_oldest(card, Status::RETRY_EXC_ERR);
        }
        let is_for_ever = self.attributes.retry_cnt == 7 && card.profile.retries_seven_for_ever;
        if !is_for_ever {
            self.requester.retries_left -= 1;
        }
        card.counters.retries += 1;
        // Packets may only wait at a peer that is slow. If all of them were repeated each time, the one that is missing
        // would wait behind more and more that are not: fewer go again, and after a timeout one.
        let most = card.profile.max_unacknowledged.checked_ilog2().unwrap_or(0);
        self.requester.halvings = match is_late {
            true => most,
            false => most.min(self.requester.halvings + 1),
        };
        self.requester.is_retrying = true;
        self.requester.rewind();
        self.requester.ack_deadline = answer_due(&self.attributes, card);
    }

    /// Looks at the timers.
    pub(super) fn requester_expired(&mut self, card: &mut Card) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= card.now);
        if is_due(self.requester.rnr_until) {
            self.requester.rnr_until = None;
            self.requester.ack_deadline = answer_due(&self.attributes, card);
        }
        if is_due(self.requester.ack_deadline) {
            self.requester.ack_deadline = None;
            if self.requester.unacked != self.requester.sent {
                self.retry(card, true);
            }
        }
    }

    /// Ends the oldest request with an error.
    fn end_oldest(&mut self, card: &mut Card, status: Status) {
        let mut queue = self.requester.queue.iter_mut();
        if let Some(entry) = queue.find(|entry| entry.outcome.is_none()) {
            entry.outcome = Some(status);
        }
        self.retire(card);
    }
}
