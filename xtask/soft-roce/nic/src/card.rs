//! The parts of a card that its queue pairs share: memory, queues, addresses, events, counters, the time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::address::GidTable;
use crate::completion::{Completion, CompletionQueue, CompletionQueueId};
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
    /// Adds a completion to a queue; false if it was lost.
    pub(crate) fn complete(
        &mut self,
        queue: CompletionQueueId,
        completion: Completion,
        slots: u32,
        is_solicited: bool,
    ) -> bool {
        match self.completion_queues.get_mut(queue.0) {
            Some(found) => {
                let at = self.now;
                let completion = Completion { at, ..completion };
                found.push(queue, completion, slots, is_solicited, &mut self.events)
            }
            None => false,
        }
    }
}

/// Counts of packets (rxe has most of these as `hw_counters`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Packets sent, those to the card itself included.
    pub sent: u64,
    /// Packets received and taken.
    pub received: u64,
    /// Packets dropped because they are none of RoCE v2, or for another address or partition.
    pub malformed: u64,
    /// Packets dropped because of their invariant CRC.
    pub damaged: u64,
    /// Packets dropped because no queue pair here takes them from that sender.
    pub strange: u64,
    /// Requests that had been carried out already.
    pub duplicates: u64,
    /// Requests that came before one that is missing.
    pub out_of_sequence: u64,
    /// Requests that found no receive.
    pub not_ready: u64,
    /// Times that a requester went back, after a timeout or for an answer that asked for it.
    pub retries: u64,
    /// Messages and datagrams dropped by UC and UD.
    pub dropped: u64,
}

/// Numbers from a seed: `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
