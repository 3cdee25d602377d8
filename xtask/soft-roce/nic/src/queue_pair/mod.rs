//! Queue pairs: states, and the two halves that they are made of (chapters 9 and 10).
//!
//! The [requester](requester) makes packets of what is posted to the [send queue](send_queue), and
//! [acknowledge](acknowledge) takes the answers; the [responder](responder) takes what a peer sends, for UC and
//! UD by way of [unreliable](unreliable), and [reply](reply) answers. Nothing is queued as a packet: a packet is made when the network takes it.

mod acknowledge;
mod attributes;
mod flush;
mod reply;
mod requester;
mod responder;
mod send_queue;
mod slots;
mod state;
mod unreliable;

use std::time::Duration;

pub use attributes::{QueuePairAttributes, QueuePairOptions};
pub use state::{AttributeMask, QueuePairState};

use crate::card::Card;
use crate::completion::{CompletedOpcode, Completion};
use crate::error::{Result, invalid};
use crate::memory::{Access, Accessor};
use crate::packet::{Header, Route, Transport};
use crate::request::ReceiveRequest;
use crate::shared_receive::ReceiveQueue;
use responder::Responder;
use send_queue::Requester;
use slots::Slots;

pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) options: QueuePairOptions,
    pub(crate) state: QueuePairState,
    pub(crate) attributes: QueuePairAttributes,
    requester: Requester,
    responder: Responder,
    receives: ReceiveQueue,
    send_slots: Slots,
    receive_slots: Slots,
    /// When the requests of a queue pair in ERR or SQE are flushed.
    flush_at: Option<Duration>,
    /// Whether it has bound windows, which end with it.
    has_bound: bool,
    /// Whether a queue pair in SQD has completed all that it had begun.
    is_drained: bool,
    /// Whether a completion was lost, on a card where that breaks the queue pair.
    is_overrun: bool,
    /// Whether it is among those that may have packets.
    pub(crate) is_ready: bool,
    /// The time at which the card will look at its timers.
    pub(crate) scheduled: Option<Duration>,
}

impl QueuePair {
    pub(crate) fn new(number: u32, options: QueuePairOptions) -> Self {
        Self {
            number,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::default(),
            requester: Requester::default(),
            responder: Responder::default(),
            receives: ReceiveQueue::new(options.max_recv_wr, options.max_recv_sge),
            send_slots: Slots::default(),
            receive_slots: Slots::default(),
            options,
            flush_at: None,
            has_bound: false,
            is_drained: false,
            is_overrun: false,
            is_ready: false,
            scheduled: None,
        }
    }

    pub(crate) fn post_receive(&mut self, card: &mut Card, request: ReceiveRequest) -> Result<()> {
        if self.options.shared_receives.is_some() {
            return Err(invalid(
                "the queue pair takes its receives from a shared queue",
            ));
        }
        if self.state == QueuePairState::Reset && !card.profile.receives_in_reset {
            return Err(invalid("the queue pair is in RESET"));
        }
        let held = self.receive_slots.held;
        let room = self.options.max_recv_wr.saturating_sub(held);
        self.receives.post(request, room)?;
        self.settle(card);
        Ok(())
    }

    /// Takes a packet, which is known to be for this queue pair.
    pub(crate) fn receive(
        &mut self,
        card: &mut Card,
        route: &Route,
        header: &Header,
        payload: &[u8],
    ) {
        match header.body.is_request() {
            true => self.request_arrived(card, route, header, payload),
            false => self.response_arrived(card, header, payload),
        }
        self.settle(card);
    }

    /// Whether packets from this sender are for this queue pair (9.6.1).
    pub(crate) fn takes(&self, route: &Route, header: &Header) -> bool {
        if header.transport != self.options.transport {
            return false;
        }
        match header.deth {
            None => self.attributes.path.destination == route.source,
            Some(deth) => deth.qkey == self.attributes.qkey,
        }
    }

    /// Makes the next packet in an empty buffer, without its CRC; answers come first.
    pub(crate) fn transmit(&mut self, card: &mut Card, buffer: &mut Vec<u8>) -> Option<Route> {
        let route = match self.reply(card, buffer) {
            None => self.request(card, buffer),
            route => route,
        };
        self.settle(card);
        route
    }

    /// When the timers have to be looked at.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let own = &self.requester;
        let timers = [own.ack_deadline, own.rnr_until, self.flush_at];
        timers.into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, card: &mut Card) {
        if self.flush_at.is_some_and(|at| at <= card.now) {
            self.flush(card);
        }
        self.requester_expired(card);
        self.settle(card);
    }

    /// A completion of this queue pair was polled, which frees slots.
    pub(crate) fn release(&mut self, completion: &Completion, slots: u32) {
        match completion.opcode {
            CompletedOpcode::Receive | CompletedOpcode::ReceiveWriteWithImmediate => {
                self.receive_slots.release(slots);
            }
            _ => self.send_slots.release(slots),
        }
    }

    /// Bytes of a full packet.
    fn mtu(&self, card: &Card) -> u32 {
        match self.options.transport {
            Transport::Rc | Transport::Uc => self.attributes.path_mtu,
            Transport::Ud => card.profile.max_mtu,
        }
    }

    const fn accessor(&self, access: Access) -> Accessor {
        Accessor {
            domain: self.options.domain,
            queue_pair: self.number,
            access,
        }
    }

    fn complete_send(&mut self, card: &mut Card, completion: Completion) {
        let slots = self.send_slots.claim();
        let is_kept = card.complete(self.options.send_cq, completion, slots, false);
        self.is_overrun |= !is_kept && card.profile.overrun_breaks;
    }

    fn complete_receive(&mut self, card: &mut Card, completion: Completion, is_solicited: bool) {
        if self.options.shared_receives.is_none() && card.profile.holds_slots {
            self.receive_slots.retire();
        }
        let slots = self.receive_slots.claim();
        let is_kept = card.complete(self.options.recv_cq, completion, slots, is_solicited);
        self.is_overrun |= !is_kept && card.profile.overrun_breaks;
    }
}
