//! The shared receives of an engine: their blocks, and the messages that have arrived in them.
//!
//! ```text
//!          refill: one doorbell for many                     poll
//! free ─────────────────────────────────► posted ─────────────────────────► arrived
//!  ▲          a block of the pool                     routed by qp_num        │
//!  └───────────────────────── the message is taken, with its block ───────────┘
//! ```
//!
//! A place has at most one block. So the queue, and the messages that were not taken, hold at most as
//! many blocks as there are places, and the completion queue has room for all of them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use verbs_core::{PostError, WorkCompletion, WorkError, WorkSuccess};

use super::slots::SHARED_PLACES;
use crate::buffer::{BufferPool, OwnedBuffer};
use crate::channel_id::ChannelId;
use crate::error::DownReason;
pub(crate) use queue::{Claim, SharedQueue};

mod queue;

/// The shared receives of an engine.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The queue. Its queue pairs are dropped before.
    pub(crate) queue: Arc<SharedQueue>,
    // Where blocks come from; `None` if receives have no memory.
    pool: Option<BufferPool>,
    places: Box<[Place]>,
    // The free places, a stack.
    free: Vec<u32>,
    posted: usize,
    arrived: VecDeque<Arrived>,
    // Messages of queue pairs that have not joined yet.
    early: Vec<Early>,
    channels: HashMap<u32, ChannelId, BuildHasherDefault<ByNumber>>,
    /// A channel may have gone down, and its end was not reported.
    pub(crate) has_ends: bool,
    /// Channels that a receive has taken down, and that are open.
    pub(super) failed: Vec<ChannelId>,
    /// Why the queue takes no more receives: a post has failed.
    pub(super) failure: Option<PostError>,
}

#[derive(Debug, Default)]
struct Place {
    is_posted: bool,
    // Of a posted receive, or of a message that has arrived; or one that is to be posted again.
    buffer: OwnedBuffer,
}

/// What the group takes in the order of arrival.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrived {
    /// A message, in the block at this place.
    Message {
        place: u32,
        channel: ChannelId,
        success: WorkSuccess,
    },
    /// A channel has gone down.
    End {
        channel: ChannelId,
        reason: DownReason,
    },
}

#[derive(Clone, Copy, Debug)]
struct Early {
    qp_num: u32,
    place: u32,
    success: WorkSuccess,
}

impl Shared {
    pub(crate) fn new(
        queue: Arc<SharedQueue>,
        pool: Option<BufferPool>,
        count: u32,
        max_channels: u32,
    ) -> Self {
        // No device has so many.
        let count = count.min(SHARED_PLACES);
        let (count, max_channels) = (count as usize, max_channels as usize);
        let places = (0..count).map(|_| Place::default()).collect();
        Self {
            queue,
            pool,
            places,
            // Backwards, so that they are taken in ascending order at first.
            free: (0..u32::try_from(count).unwrap_or(u32::MAX))
                .rev()
                .collect(),
            posted: 0,
            arrived: VecDeque::with_capacity(count.saturating_add(max_channels)),
            early: Vec::with_capacity(count),
            channels: HashMap::with_capacity_and_hasher(
                max_channels.saturating_mul(2),
                BuildHasherDefault::default(),
            ),
            has_ends: false,
            failed: Vec::with_capacity(max_channels),
            failure: None,
        }
    }

    /// How many receives are posted.
    #[inline]
    pub(super) const fn posted(&self) -> usize {
        self.posted
    }

    /// Routes the messages of a queue pair to its channel, those included that came before.
    pub(super) fn join(&mut self, qp_num: u32, channel: ChannelId) {
        self.queue.joined(qp_num);
        self.channels.insert(qp_num, channel);
        let arrived = &mut self.arrived;
        self.early.retain(|early| {
            let Early { place, success, .. } = *early;
            if early.qp_num == qp_num {
                arrived.push_back(Arrived::Message {
                    place,
                    channel,
                    success,
                });
            }
            early.qp_num != qp_num
        });
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
        if !std::mem::replace(&mut at.is_posted, false) {
            return None;
        }
        self.posted -= 1;
        let qp_num = completion.qp_num();
        let channel = self.channels.get(&qp_num).copied();
        match (completion.result(), channel) {
            (Ok(success), Some(channel)) => self.arrived.push_back(Arrived::Message {
                place,
                channel,
                success,
            }),
            (Ok(success), None) if self.queue.is_claimed(qp_num) => self.early.push(Early {
                qp_num,
                place,
                success,
            }),
            // Of a channel that has been removed.
            (Ok(_), None) => self.free.push(place),
            (Err(error), channel) => {
                // Its block stays for the next receive.
                self.free.push(place);
                return Some((channel?, error));
            }
        }
        None
    }

    /// The oldest that has arrived, and its block if it is a message.
    pub(super) fn take(&mut self) -> Option<(Arrived, OwnedBuffer)> {
        let arrived = self.arrived.pop_front()?;
        let Arrived::Message { place, success, .. } = arrived else {
            return Some((arrived, OwnedBuffer::empty()));
        };
        let mut buffer = OwnedBuffer::empty();
        // Nothing was written to the block by a write with immediate: it is posted again.
        if let Some(at) = self.places.get_mut(place as usize)
            && success
                .message_in(&at.buffer)
                .is_some_and(|message| !message.is_empty())
        {
            buffer = at.buffer.take();
        }
        self.free.push(place);
        Some((arrived, buffer))
    }

    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(super) fn report_end(&mut self, channel: ChannelId, reason: DownReason) {
        self.arrived.push_back(Arrived::End { channel, reason });
    }

    /// Forgets the claims that ended first, and the messages of their queue pairs, of which the completion queue has
    /// no more.
    pub(super) fn forget_ended(&mut self, count: usize) {
        let ended = self.queue.forget_ended(count);
        let free = &mut self.free;
        self.early.retain(|early| {
            let is_left = ended.contains(&early.qp_num);
            if is_left {
                free.push(early.place);
            }
            !is_left
        });
    }

    /// Places without a posted receive or a message.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.free.len()
    }

    /// Whether there is a free place, and a block for it, which it gets.
    pub(super) fn has_place(&mut self) -> bool {
        let taken = self.take_place().map(|(place, _)| place);
        taken.inspect(|place| self.return_place(*place)).is_some()
    }

    /// Takes a free place that has a block, or gets one; `None` if there is no place or no block.
    pub(super) fn take_place(&mut self) -> Option<(u32, &mut OwnedBuffer)> {
        let place = *self.free.last()?;
        let at = self.places.get_mut(place as usize)?;
        if let Some(pool) = &self.pool
            && at.buffer.capacity() == 0
        {
            at.buffer = pool.take()?.into();
        }
        self.free.pop();
        Some((place, &mut at.buffer))
    }

    /// The pool that blocks come from.
    pub(super) const fn pool(&self) -> Option<&BufferPool> {
        self.pool.as_ref()
    }

    /// Gives a block to a free place, which is the next to be taken. Returns it if each has one.
    pub(super) fn put(&mut self, block: OwnedBuffer) -> Option<OwnedBuffer> {
        let places = &mut self.places;
        let is_bare = |place: &u32| {
            let at = places.get(*place as usize);
            at.is_some_and(|at| at.buffer.capacity() == 0)
        };
        let Some(found) = self.free.iter().rposition(is_bare) else {
            return Some(block);
        };
        let place = self.free.remove(found);
        self.free.push(place);
        if let Some(at) = places.get_mut(place as usize) {
            at.buffer = block;
        }
        None
    }

    /// Records that the receive at this place is posted.
    pub(super) fn set_posted(&mut self, place: u32) {
        if let Some(at) = self.places.get_mut(place as usize) {
            at.is_posted = true;
            self.posted += 1;
        }
    }

    /// Returns a place whose receive was not posted; its block stays.
    pub(super) fn return_place(&mut self, place: u32) {
        self.free.push(place);
    }
}

impl Drop for Shared {
    /// The blocks that are posted stay until the queue is destroyed.
    fn drop(&mut self) {
        let posted = self.places.iter_mut().filter(|place| place.is_posted);
        self.queue
            .keep(posted.map(|place| place.buffer.take()).collect());
    }
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
