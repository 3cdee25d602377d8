//! The send queue: posted requests, and how far their packets have come (10.8).

use std::collections::VecDeque;
use std::time::Duration;

use super::{QueuePair, QueuePairAttributes, QueuePairState};
use crate::DomainId;
use crate::card::Card;
use crate::completion::{CompletedOpcode, Completion, Status};
use crate::error::{Result, full, invalid};
use crate::memory::{Fault, Memory};
use crate::packet::{Psn, Transport};
use crate::request::{Data, SendOpcode, SendRequest};

/// The send queue and how far it has come.
#[derive(Default)]
pub(super) struct Requester {
    /// Requests that are posted and not completed, oldest first.
    pub(super) queue: VecDeque<Entry>,
    /// The entry to be sent next, and the packet of it.
    pub(super) next: usize,
    pub(super) packet: u32,
    /// PSN of the oldest packet that is not acknowledged.
    pub(super) unacked: Psn,
    /// PSN after all packets that were ever sent; answers to reads count as sent with the request.
    pub(super) sent: Psn,
    /// PSN for the next entry that begins.
    pub(super) fresh: Psn,
    /// Reads and atomics that were sent and not answered.
    pub(super) outstanding: u32,
    /// Packets since the last that asked for an acknowledgement.
    pub(super) unrequested: u16,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// Whether it went back, and nothing was acknowledged since.
    pub(super) is_retrying: bool,
    /// How often the number of packets that may be unacknowledged is halved.
    pub(super) halvings: u32,
    pub(super) ack_deadline: Option<Duration>,
    /// Until when the peer has asked to wait.
    pub(super) rnr_until: Option<Duration>,
}

/// A request that is posted.
pub(super) struct Entry {
    pub(super) request: SendRequest,
    pub(super) length: u32,
    /// PSN of its first packet, once it has begun, and how many packets it has, answers to a read included.
    pub(super) is_started: bool,
    pub(super) first: Psn,
    pub(super) packets: u32,
    /// Whether it is a read or atomic that counts as outstanding.
    pub(super) is_outstanding: bool,
    /// How it ended; it is completed when all before it are.
    pub(super) outcome: Option<Status>,
}

impl Entry {
    pub(super) const fn is_read_or_atomic(&self) -> bool {
        matches!(
            self.request.opcode,
            SendOpcode::Read(_) | SendOpcode::CompareSwap { .. } | SendOpcode::FetchAdd { .. }
        )
    }

    pub(super) const fn last(&self) -> Psn {
        self.first.plus(self.packets - 1)
    }

    /// Gives it its PSNs, if it has none yet: `fresh` is the first that is free.
    pub(super) fn number(&mut self, fresh: Psn, mtu: u32) {
        if !self.is_started {
            self.first = fresh;
            self.packets = match self.request.opcode {
                SendOpcode::CompareSwap { .. } | SendOpcode::FetchAdd { .. } => 1,
                _ => self.length.div_ceil(mtu).max(1),
            };
        }
    }

    /// Appends `length` of its bytes to a packet; `skip` went with packets before.
    pub(super) fn copy(
        &self,
        memory: &Memory,
        domain: DomainId,
        skip: u32,
        length: usize,
        packet: &mut Vec<u8>,
    ) -> std::result::Result<(), Fault> {
        if length == 0 {
            return Ok(());
        }
        match &self.request.data {
            Data::Inline(bytes) => {
                let start = usize::try_from(skip).unwrap_or(usize::MAX);
                let rest = bytes.get(start..).ok_or(Fault::TooLong)?;
                packet.extend_from_slice(rest.get(..length).ok_or(Fault::TooLong)?);
                Ok(())
            }
            Data::Elements(elements) => {
                let start = packet.len();
                packet.resize(start + length, 0);
                memory.gather(domain, elements, skip.into(), &mut packet[start..])
            }
        }
    }

    const fn completed_as(&self) -> CompletedOpcode {
        match self.request.opcode {
            SendOpcode::Send
            | SendOpcode::SendWithImmediate(_)
            | SendOpcode::SendWithInvalidate(_) => CompletedOpcode::Send,
            SendOpcode::Write(_) | SendOpcode::WriteWithImmediate(..) => CompletedOpcode::Write,
            SendOpcode::Read(_) => CompletedOpcode::Read,
            SendOpcode::CompareSwap { .. } => CompletedOpcode::CompareSwap,
            SendOpcode::FetchAdd { .. } => CompletedOpcode::FetchAdd,
            SendOpcode::BindWindow(_) => CompletedOpcode::BindWindow,
            SendOpcode::LocalInvalidate(_) => CompletedOpcode::LocalInvalidate,
        }
    }
}

impl Requester {
    pub(super) const fn restore_retries(&mut self, attributes: &QueuePairAttributes) {
        self.retries_left = attributes.retry_cnt;
        self.rnr_retries_left = attributes.rnr_retry;
        self.is_retrying = false;
    }

    /// Whether nothing has begun that is not completed.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.front().is_none_or(|entry| !entry.is_started)
    }

    /// Stops all timers.
    pub(super) const fn stop(&mut self) {
        self.ack_deadline = None;
        self.rnr_until = None;
    }

    /// Goes back to the oldest packet that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        for entry in self.queue.iter_mut().take(self.next + 1) {
            entry.is_outstanding = false;
        }
        self.outstanding = 0;
        self.next = 0;
        self.packet = 0;
        self.skip_acknowledged();
    }

    /// Moves past packets that are acknowledged already.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.next == 0
            && let Some(front) = self.queue.front()
            && front.is_started
        {
            let acknowledged = u32::try_from(self.unacked.since(front.first)).unwrap_or_default();
            self.packet = self.packet.max(acknowledged);
        }
    }

    /// Notes that the next packet was sent, and goes on to the one after it.
    pub(super) fn packet_sent(&mut self, psn: Psn, ends: bool) {
        let Some(entry) = self.queue.get_mut(self.next) else {
            return;
        };
        if !std::mem::replace(&mut entry.is_started, true) {
            self.fresh = self.fresh.plus(entry.packets);
        }
        let is_answered = entry.is_read_or_atomic();
        let after = if is_answered { entry.last() } else { psn }.plus(1);
        if is_answered {
            entry.is_outstanding = true;
            self.outstanding += 1;
        }
        if after.since(self.sent) > 0 {
            self.sent = after;
        }
        if ends || is_answered {
            self.next += 1;
            self.packet = 0;
        } else {
            self.packet += 1;
        }
    }

    /// Removes the oldest entry.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        match self.next.checked_sub(1) {
            Some(next) => self.next = next,
            None => self.packet = 0,
        }
        if entry.is_outstanding {
            self.outstanding -= 1;
        }
        Some(entry)
    }
}

impl QueuePair {
    /// Bytes of a request, if it would be taken after `ahead` others.
    pub(crate) fn check_send(&self, request: &SendRequest, ahead: usize) -> Result<u64> {
        use QueuePairState::{Init, Reset, Rtr};
        if matches!(self.state, Reset | Init | Rtr) {
            return Err(invalid("the queue pair is not in RTS yet"));
        }
        let held = self.send_slots.held;
        let room = self.options.max_send_wr.saturating_sub(held);
        let posted = self.requester.queue.len().saturating_add(ahead);
        if usize::try_from(room).is_ok_and(|room| posted >= room) {
            return Err(full("the send queue is full"));
        }
        if self.options.transport == Transport::Ud && request.to.is_none() {
            return Err(invalid("a datagram needs a receiver"));
        }
        self.checked_length(request)
    }

    pub(crate) fn post_send(&mut self, card: &mut Card, request: SendRequest) -> Result<()> {
        let length = self.check_send(&request, 0)?;
        self.requester.queue.push_back(Entry {
            request,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            is_started: false,
            first: Psn::default(),
            packets: 1,
            is_outstanding: false,
            outcome: None,
        });
        self.settle(card);
        Ok(())
    }

    /// Bytes of a request, or what C's post refuses at once. All else fails in its completion.
    fn checked_length(&self, request: &SendRequest) -> Result<u64> {
        let length = request.data.length();
        match &request.data {
            Data::Elements(elements)
                if u32::try_from(elements.len())
                    .map_or(true, |len| len > self.options.max_send_sge) =>
            {
                return Err(invalid("a request has more elements than max_send_sge"));
            }
            Data::Inline(_) if length > u64::from(self.options.max_inline_data) => {
                return Err(invalid("more inline data than max_inline_data"));
            }
            _ => {}
        }
        let atomic = match request.opcode {
            SendOpcode::CompareSwap { remote, .. } | SendOpcode::FetchAdd { remote, .. } => {
                Some(remote)
            }
            _ => None,
        };
        let is_answered = atomic.is_some() || matches!(request.opcode, SendOpcode::Read(_));
        if is_answered && matches!(request.data, Data::Inline(_)) {
            return Err(invalid("an answer cannot be inline"));
        }
        // As rxe; by the specification, the responder would refuse the address.
        if let Some(remote) = atomic
            && (length < 8 || remote.address % 8 != 0)
        {
            return Err(invalid(
                "an atomic operation is of eight bytes at an aligned address",
            ));
        }
        Ok(length)
    }

    /// Notes how an entry ended, and completes what can be.
    pub(super) fn end_entry(&mut self, card: &mut Card, index: usize, status: Status) {
        self.requester.queue[index].outcome = Some(status);
        if status == Status::SUCCESS {
            self.requester.next = index + 1;
            self.requester.packet = 0;
        }
        self.retire(card);
    }

    /// Completes entries that ended, as long as they are the oldest.
    pub(super) fn retire(&mut self, card: &mut Card) {
        while let Some(front) = self.requester.queue.front()
            && let Some(status) = front.outcome
            && self.is_sending()
            && let Some(entry) = self.requester.pop()
        {
            self.complete_entry(card, entry, status);
            if status != Status::SUCCESS {
                self.fail_sends(card);
            }
        }
    }

    /// Completes an entry that is taken off the queue; success without a signal makes no completion.
    pub(super) fn complete_entry(&mut self, card: &mut Card, entry: Entry, status: Status) {
        if card.profile.holds_slots {
            self.send_slots.retire();
        }
        if entry.request.is_signaled || self.options.all_signaled || status != Status::SUCCESS {
            let mut completion = Completion::new(
                self.number,
                entry.request.wr_id,
                status,
                entry.completed_as(),
            );
            completion.byte_len = entry.length;
            self.complete_send(card, completion);
        }
    }
}
