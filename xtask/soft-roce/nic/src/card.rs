//! The parts of a card that its queue pairs share: memory, queues, addresses, events, counters, the time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::address::GidTable;
use crate::completion::{Armed, Completion, CompletionQueue, CompletionQueueId, Status};
use crate::event::Event;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::profile::Profile;
use crate::shared_receive::SharedReceiveQueue;

/// The shared parts of a card.
pub(crate) struct Card {
    pub(crate) profile: Profile,
    /// The latest instant that a call has given.
    pub(crate) now: Duration,
    pub(crate) memory: Memory,
    pub(crate) completion_queues: Pool<CompletionQueue>,
    pub(crate) shared_receives: Pool<SharedReceiveQueue>,
    pub(crate) gids: GidTable,
    /// Events that wait to be taken. Packets add at most one for each state of an object, so that no peer can
    /// fill the memory with them.
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    /// Sum of `max_dest_rd_atomic` over all queue pairs.
    pub(crate) reserved_rd_atomic: u32,
}

impl Card {
    /// Adds a completion to a queue; if that is full, it is lost, and false returned.
    pub(crate) fn complete(
        &mut self,
        queue: CompletionQueueId,
        completion: Completion,
        slots: u32,
        is_solicited: bool,
    ) -> bool {
        let Some(found) = self.completion_queues.get_mut(queue.0) else {
            return false;
        };
        if u32::try_from(found.entries.len()).is_ok_and(|len| len >= found.capacity) {
            if !std::mem::replace(&mut found.has_overrun_event, true) {
                let event = Event::CompletionQueueOverrun(queue);
                self.events.push_back(event);
            }
            return false;
        }
        let at = self.now;
        let completion = Completion { at, ..completion };
        found.entries.push_back((completion, slots));
        let is_wanted = match found.armed {
            None => false,
            Some(Armed::Next) => true,
            Some(Armed::Solicited) => is_solicited || completion.status != Status::SUCCESS,
        };
        if is_wanted {
            found.armed = None;
            self.events.push_back(Event::Completion(queue));
        }
        true
    }
}

/// Counts of packets (rxe has most of these as `hw_counters`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Packets received and taken.
    pub received: u64,
    /// Packets dropped because they are none of RoCE v2, or for another address or partition.
    pub malformed: u64,
    /// Packets dropped because of their invariant CRC.
    pub damaged: u64,
    /// Packets dropped because no queue pair here takes them from that sender.
    pub strange: u64,
    /// Requests that found no receive.
    pub not_ready: u64,
    /// Times that a requester went back, after a timeout or for an answer that asked for it.
    pub retries: u64,
}

/// Numbers from a seed: `SplitMix64`.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that begins with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }
}
