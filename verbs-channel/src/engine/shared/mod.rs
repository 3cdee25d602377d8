//! The shared receives of an engine: their blocks, and the messages that have arrived in them.
//!
//! ```text
//!          refill: one doorbell for many                     poll
//! free ─────────────────────────────────► posted ─────────────────────────► arrived
//!  ▲          a block of the pool                     routed by qp_num        │
//!  └───────────────────────── the message is taken, with its block ───────────┘
//! ```
//!
//! A place has at most one block. So the queue, and the messages that were not taken, hold at most one block for
//! each place, and the completion queue has room for all of them.
//!
//! A queue pair takes a receive when a message begins, and no verb tells how many are left. It may keep the receive
//! for good: if its peer stalls in the middle of a message, or if the driver drops the receive with the queue pair.
//! Receives are taken in the order of their posts. So one is *overtaken*, and replaced by one at a spare place, when
//! a receive has completed that was posted a whole queue later.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::sync::Arc;

use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{WorkCompletion, WorkError, WorkSuccess};

use super::flight::SHARED_PLACES;
use super::leak::Leak;
use crate::buffer::{BufferPool, OwnedBuffer};
use crate::channel_id::ChannelId;
use crate::error::DownReason;
pub(crate) use queue::{Claim, SharedQueue};

mod queue;

/// The shared receives of an engine.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The same queue, to post to it. Dropped before the other, which destroys it.
    pub(super) srq: SharedReceiveQueue,
    /// The queue. Its queue pairs are dropped before.
    pub(crate) queue: Arc<SharedQueue>,
    /// Where blocks come from; `None` if receives have no memory.
    pub(super) pool: Option<BufferPool>,
    places: Box<[Place]>,
    /// The free places, two stacks: those that have a block, of a receive that got no message, and the others.
    pub(super) ready: Vec<u32>,
    bare: Vec<u32>,
    // Places that are used once receives have been overtaken.
    spare: Vec<u32>,
    /// How many receives are posted.
    pub(super) posted: usize,
    // How many receives were posted so far, and the last of those that have completed, counted from 1.
    sequence: u64,
    newest: u64,
    // How many receives the queue is to have.
    count: usize,
    /// The queue pair whose receive has failed last.
    pub(super) last_failed: Option<u32>,
    // How many queue pairs have been destroyed that may have had a receive, and how many were posted by then.
    suspects: usize,
    suspected_at: u64,
    pub(super) arrived: VecDeque<Arrived>,
    // Messages of queue pairs that have not joined yet.
    early: Vec<Early>,
    channels: HashMap<u32, ChannelId, BuildHasherDefault<ByNumber>>,
    /// A channel may have gone down, and its end was not reported.
    pub(crate) has_ends: bool,
    /// Channels that a receive has taken down, and that are open.
    pub(super) failed: Vec<ChannelId>,
}

#[derive(Debug, Default)]
struct Place {
    // The number of the post, counted from 1; 0 if it is not posted.
    sequence: u64,
    // Buffer of a posted receive, or of a message that has arrived; or one that is to be posted
    // again.
    buffer: OwnedBuffer,
}

/// An arrival, which the group takes in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) channel: ChannelId,
    /// A message, in the block at this place; or why the channel has gone down.
    pub(super) result: Result<(u32, WorkSuccess), DownReason>,
}

#[derive(Clone, Copy, Debug)]
struct Early {
    qp_num: u32,
    place: u32,
    success: WorkSuccess,
}

impl Shared {
    /// With `count` receives, and `spare` more for those that are overtaken.
    pub(crate) fn new(
        srq: SharedReceiveQueue,
        queue: Arc<SharedQueue>,
        pool: Option<BufferPool>,
        [count, spare]: [u32; 2],
    ) -> Self {
        // No device has this many.
        let count = count.min(SHARED_PLACES);
        let all = count.saturating_add(spare).min(SHARED_PLACES);
        let places = all as usize;
        Self {
            srq,
            queue,
            pool,
            places: (0..places).map(|_| Place::default()).collect(),
            // Backwards, so that they are taken in ascending order at first.
            ready: Vec::with_capacity(places),
            bare: (0..count).rev().collect(),
            spare: (count..all).collect(),
            posted: 0,
            sequence: 0,
            newest: 0,
            count: count as usize,
            last_failed: None,
            suspects: 0,
            suspected_at: 0,
            arrived: VecDeque::with_capacity(places),
            early: Vec::with_capacity(places),
            channels: HashMap::default(),
            has_ends: false,
            failed: Vec::new(),
        }
    }

    /// How many receives there can be.
    pub(super) fn places(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// Routes the messages of a queue pair to its channel, those included that came before. Returns `false` if
    /// these were [given up](Self::give_up_early).
    pub(super) fn join(&mut self, qp_num: u32, channel: ChannelId) -> bool {
        let is_whole = self.queue.settle(qp_num);
        self.channels.insert(qp_num, channel);
        // For the messages, and an end of each channel.
        let channels = self.channels.len();
        self.arrived.reserve(self.places.len() + channels);
        self.failed.reserve(channels);
        let arrived = &mut self.arrived;
        self.early.retain(|early| {
            if early.qp_num == qp_num {
                let result = Ok((early.place, early.success));
                arrived.push_back(Arrived { channel, result });
            }
            early.qp_num != qp_num
        });
        is_whole
    }

    /// Routes no more messages of a queue pair: another one may get its number.
    pub(super) fn leave(&mut self, qp_num: u32) {
        let left = self.channels.remove(&qp_num);
        self.failed.retain(|failed| Some(*failed) != left);
    }

    /// A receive has completed. Returns the channel and the error if it has failed.
    pub(super) fn completed(
        &mut self,
        place: u32,
        completion: &WorkCompletion,
    ) -> Option<(ChannelId, WorkError)> {
        let at = self.places.get_mut(place as usize)?;
        // A receive completes once.
        let sequence = mem::take(&mut at.sequence);
        if sequence == 0 {
            return None;
        }
        self.posted -= 1;
        self.newest = self.newest.max(sequence);
        let qp_num = completion.qp_num();
        let channel = self.channels.get(&qp_num).copied();
        match (completion.result(), channel) {
            (Ok(success), Some(channel)) => {
                let result = Ok((place, success));
                self.arrived.push_back(Arrived { channel, result });
            }
            (Ok(success), None) if self.queue.is_claimed(qp_num) => {
                self.early.push(Early {
                    qp_num,
                    place,
                    success,
                });
                if self.early.len() > max_early(self.count) {
                    self.give_up_early();
                }
            }
            // The channel has been removed.
            (Ok(_), None) => self.ready.push(place),
            (Err(error), channel) => {
                // Its block stays for the next receive.
                self.ready.push(place);
                self.last_failed = Some(qp_num);
                return Some((channel?, error));
            }
        }
        None
    }

    /// The oldest that has arrived, and its block if it is a message with bytes.
    pub(super) fn take(&mut self) -> Option<(Arrived, OwnedBuffer)> {
        let arrived = self.arrived.pop_front()?;
        let Ok((place, success)) = arrived.result else {
            return Some((arrived, OwnedBuffer::empty()));
        };
        // Nothing was written to the block by a write with immediate: it is posted again.
        if let Some(at) = self.places.get_mut(place as usize)
            && success
                .message_in(&at.buffer)
                .is_some_and(|message| !message.is_empty())
        {
            self.bare.push(place);
            return Some((arrived, at.buffer.take()));
        }
        self.ready.push(place);
        Some((arrived, OwnedBuffer::empty()))
    }

    /// Gives up the messages of queue pairs that cannot join any more, and forgets the claims of these, of which the
    /// completion queue has no more.
    pub(super) fn forget_ended(&mut self, qp_nums: &[u32]) {
        self.queue.forget_ended(qp_nums);
        self.forget_early();
    }

    fn forget_early(&mut self) {
        let (queue, ready) = (&self.queue, &mut self.ready);
        self.early.retain(|early| {
            let may_join = queue.is_claimed(early.qp_num);
            if !may_join {
                ready.push(early.place);
            }
            may_join
        });
    }

    /// Channels that have not joined must not take all receives from the others: gives up the messages of the one
    /// that has the most. Its peer was told that they have arrived, so it cannot join any more.
    #[cold]
    fn give_up_early(&mut self) {
        let early = &self.early;
        let messages_of = |qp_num| early.iter().filter(|early| early.qp_num == qp_num).count();
        let most = early.iter().map(|early| early.qp_num);
        let Some(qp_num) = most.max_by_key(|qp_num| messages_of(*qp_num)) else {
            return;
        };
        self.queue.settle(qp_num);
        self.forget_early();
    }

    /// How many receives are posted that were overtaken: queue pairs have taken them, and did not complete them.
    pub(super) fn overtaken(&self) -> usize {
        let is_overtaken = |place: &&Place| {
            place.sequence > 0 && place.sequence + self.count as u64 <= self.newest
        };
        self.places.iter().filter(is_overtaken).count()
    }

    /// Replaces the receives that were overtaken, while there are spare places; and those that may be lost, if they
    /// are half of all. Returns whether more are lost than can be replaced: each queue pair has at most one.
    pub(super) fn replace_overtaken(&mut self) -> bool {
        let overtaken = self.overtaken();
        let spare = self.places.len() - self.count;
        // The queue has room for all places: those that are not lost are there beside the others.
        let suspects = if self.may_be_low() { self.suspects } else { 0 };
        for _ in spare - self.spare.len()..overtaken.max(suspects) {
            let Some(place) = self.spare.pop() else {
                break;
            };
            self.bare.push(place);
        }
        overtaken.saturating_sub(self.channels.len() + self.queue.unjoined()) > spare
    }

    /// This queue pair is destroyed. If it has given back no receive, it may have one.
    pub(super) fn suspect(&mut self, qp_num: u32) {
        // After a receive that was posted later, those that are lost have been overtaken.
        if self.newest > self.suspected_at {
            self.suspects = 0;
        }
        if self.last_failed == Some(qp_num) {
            // Another queue pair may get its number.
            self.last_failed = None;
        } else if self.posted > 0 {
            self.suspects += 1;
            self.suspected_at = self.sequence;
        }
    }

    /// Whether half of the receives may be lost, and nothing shows which.
    pub(super) const fn may_be_low(&self) -> bool {
        self.newest <= self.suspected_at && self.suspects * 2 >= self.count
    }

    /// Replaces the queue, if no queue pair is on it: all receives that were posted are free again. The engine has no
    /// queue pair. With an error, the blocks have been leaked.
    #[cold]
    pub(super) fn rebuild(&mut self) -> Result<(), Leak> {
        let max_wr = self.places();
        let rebuilt = match self.queue.rebuild(&mut self.srq, max_wr) {
            Ok(false) => return Ok(()),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let mut buffers = 0;
        for (at, place) in (0..).zip(&mut self.places) {
            if mem::take(&mut place.sequence) > 0 {
                if rebuilt.is_err() {
                    buffers += usize::from(place.buffer.capacity() > 0);
                    #[expect(clippy::mem_forget, reason = "the device may still write to it")]
                    mem::forget(place.buffer.take());
                    self.bare.push(at);
                } else {
                    self.ready.push(at);
                }
            }
        }
        (self.posted, self.suspects) = (0, 0);
        rebuilt.map_err(|error| Leak { buffers, error })
    }

    /// Places without a posted receive or a message.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.ready.len() + self.bare.len()
    }

    /// Takes a free place that has a block, or gets one; `None` if there is no place or no block.
    pub(super) fn take_place(&mut self) -> Option<(u32, &mut OwnedBuffer)> {
        let place = match self.ready.pop() {
            Some(place) => place,
            None => self.take_bare()?,
        };
        let at = self.places.get_mut(place as usize)?;
        Some((place, &mut at.buffer))
    }

    /// Takes a free place that has no block, and gives it one of the pool.
    fn take_bare(&mut self) -> Option<u32> {
        let place = *self.bare.last()?;
        if let Some(pool) = &self.pool {
            self.places.get_mut(place as usize)?.buffer = pool.take()?.into();
        }
        self.bare.pop()
    }

    /// Gives a block to a free place, which is the next to be taken. Returns it if each has one.
    pub(super) fn put(&mut self, block: OwnedBuffer) -> Option<OwnedBuffer> {
        let Some(place) = self.bare.pop() else {
            return Some(block);
        };
        if let Some(at) = self.places.get_mut(place as usize) {
            at.buffer = block;
        }
        self.ready.push(place);
        None
    }

    /// Records that the receive at this place is posted.
    pub(super) fn set_posted(&mut self, place: u32) {
        if let Some(at) = self.places.get_mut(place as usize) {
            self.sequence += 1;
            at.sequence = self.sequence;
            self.posted += 1;
        }
    }
}

impl Drop for Shared {
    /// The blocks that are posted stay until the queue is destroyed.
    fn drop(&mut self) {
        self.queue.stop_polling();
        let posted = self.places.iter_mut().filter(|place| place.sequence > 0);
        self.queue
            .keep(posted.map(|place| place.buffer.take()).collect());
    }
}

/// How many of these shared receives channels can have that have not joined.
fn max_early(count: usize) -> usize {
    count - count / 4
}

/// Hashes the number of a queue pair: numbers are mostly in sequence.
#[derive(Debug, Default)]
struct ByNumber(u64);

impl Hasher for ByNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
