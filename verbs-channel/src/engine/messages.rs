//! Messages of an engine whose channels share their receives.
#![expect(
    unsafe_code,
    reason = "hands blocks to the device that their places keep"
)]

use std::sync::Arc;
use std::task::Waker;
use std::{iter, thread};

use verbs_core::error::{PollError, PostError};
use verbs_core::{QueuePair, ReceiveWorkRequest, WorkSuccess, memory::Sge};

use super::flight::shared_wr_id;
use super::shared::{Arrived, Shared};
use super::{Afterwards, Engine, Leak, MAX_POLLS};
use crate::buffer::{BufferPool, OwnedBuffer, PoolBuffer};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Result, TransportError};

/// A message of one of the channels that share their receives, or the end of such a channel.
///
/// [`ChannelGroup::next_message`](crate::ChannelGroup::next_message) returns it. Dropping it returns its
/// block to the pool, from which it is posted again.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The channel on which it arrived.
    pub channel: ChannelId,
    /// The message's length and immediate data, or the end of the channel.
    ///
    /// The end is an error, [`Aborted`](TransportError::Aborted): the channel is down. It comes once, after
    /// all messages of the channel. A message that the driver reports as longer than its block is another error.
    pub result: Result<WorkSuccess, TransportError>,
    /// The block that has the message's bytes.
    ///
    /// It is [empty](OwnedBuffer::empty) for immediate data of a write, an empty message, and the end of a channel.
    pub buffer: OwnedBuffer,
}

impl Message {
    /// The message's bytes; `None` for the immediate data of a write, and for the end of a channel.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.result.as_ref().ok()?.message_in(&self.buffer)
    }

    /// The peer's immediate data, if it sent some.
    #[must_use]
    pub fn imm_data(&self) -> Option<u32> {
        self.result.as_ref().ok()?.imm_data()
    }

    /// Why the channel is down, if this is its end; `None` for a message.
    #[must_use]
    pub fn end(&self) -> Option<DownReason> {
        self.result.as_ref().err()?.down_reason()
    }
}

/// Shared receives: see [`ChannelConfig::shared_receives`](crate::ChannelConfig::shared_receives).
#[doc(hidden)]
impl Engine {
    /// Shares these receives between the channels, and posts one for each block.
    pub(crate) fn share(&mut self, shared: Shared) -> Result<(), PostError> {
        self.shared = Some(Box::new(shared));
        self.refill();
        match self.failure {
            Some(DownReason::Post(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the oldest message of all channels. Polls if there is none.
    ///
    /// It also posts blocks that messages have returned, several with one doorbell. `None` means that no
    /// message has arrived, and that the completion queue was empty. Then call [`refill`](Self::refill) to
    /// post the remaining blocks. It is always `None` if the receives are not shared.
    #[must_use = "it has the message"]
    pub fn next_message(&mut self) -> Option<Message> {
        self.poll_until_message();
        self.take_message()
    }

    /// Whether [`next_message`](Self::next_message) returns one without a poll.
    #[must_use]
    #[inline]
    pub fn has_message(&self) -> bool {
        let shared = self.shared.as_deref();
        shared.is_some_and(|shared| shared.has_ends || !shared.arrived.is_empty())
    }

    /// Posts blocks of the pool to the shared receive queue, until it is full or the pool is empty.
    ///
    /// Returns whether the queue has room left. Then peers may have to wait: call this again when blocks
    /// have been returned to the pool. If the driver rejects a receive, all channels are taken down.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn refill(&mut self) -> bool {
        while let Some(posted) = self.refill_once() {
            if posted < CHAIN {
                break;
            }
        }
        self.needs_blocks()
    }

    /// The pool of the shared receives' blocks; `None` if they have no memory, or are not shared.
    ///
    /// A layer that waits in its own way waits here, too, while the queue [needs
    /// blocks](Self::needs_blocks): no completion announces that one is back. It gives the block to
    /// [`refill_with`](Self::refill_with).
    #[must_use]
    pub fn shared_pool(&self) -> Option<&BufferPool> {
        self.shared.as_deref()?.pool.as_ref()
    }

    /// The [handle](verbs_core::shared_receive_queue::SharedReceiveQueue::handle) of the shared receive queue, as in device events;
    /// `None` if the receives are not shared.
    #[must_use]
    pub fn shared_handle(&self) -> Option<u32> {
        Some(self.shared.as_deref()?.srq.handle())
    }

    /// Posts a block of the [`shared_pool`](Self::shared_pool), and then as [`refill`](Self::refill). The
    /// block is returned if the queue has no room for it, or if it is of another pool.
    #[must_use = "it is dropped without a lock"]
    pub fn refill_with(&mut self, block: PoolBuffer) -> Option<OwnedBuffer> {
        let block = OwnedBuffer::from(block);
        let is_its = self.shared_pool().is_some_and(|pool| pool.has(&block));
        let Some(shared) = self.shared.as_deref_mut().filter(|_| is_its) else {
            return Some(block);
        };
        let rejected = shared.put(block);
        self.refill();
        rejected
    }

    /// Whether the channels share their receives.
    #[inline]
    pub(crate) const fn has_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether the shared receive queue has room for more blocks.
    #[must_use]
    pub fn needs_blocks(&self) -> bool {
        let shared = self.shared.as_deref();
        self.failure.is_none() && shared.is_some_and(|shared| shared.missing() > 0)
    }

    /// Whether no message can come any more: the group has [failed](Self::group_failure), and the ends of all its
    /// channels were returned.
    #[must_use]
    pub fn has_no_more_messages(&self) -> bool {
        self.failure.is_some() && !self.has_message() && !self.awaits_message()
    }

    /// Whether a message can still come: a channel is open, and its end was not reported.
    pub(crate) fn awaits_message(&self) -> bool {
        let mut members = self.flight.members.iter();
        members.any(|member| !member.is_removed && !member.is_end_reported)
    }

    /// Polls until a message has arrived, or nothing is found.
    pub(crate) fn poll_until_message(&mut self) {
        for _ in 0..MAX_POLLS {
            if self.shared.is_none() || self.has_message() || self.drive() == 0 {
                break;
            }
        }
        if self.has_dropped_members() {
            self.forget_dropped_members();
        }
        if self.open == 0 {
            self.rebuild_if_unused();
        }
        if self.shared.as_deref().is_some_and(|shared| shared.has_ends) {
            self.report_ends();
        }
    }

    /// Whether there are queue pairs to [forget](Self::forget_dropped_members).
    pub(crate) fn has_dropped_members(&self) -> bool {
        let shared = self.shared.as_deref();
        shared.is_some_and(|shared| shared.queue.ended() > 0)
    }

    /// Has this waker woken whenever a prepared or connected channel is dropped that has not joined, from now on. Then
    /// [`forget_dropped_members`](Self::forget_dropped_members) is to be called: the messages of such a channel may hold all
    /// receives, and no completion announces that they are of no use any more.
    ///
    /// It is not woken within this call, as the caller may hold a lock. So pass it before a channel is prepared.
    pub fn wake_when_members_drop(&mut self, waker: Waker) {
        if let Some(shared) = &self.shared {
            shared.queue.wake_when_claims_end(waker);
        }
    }

    /// Forgets the prepared and connected channels that were dropped, and have not joined: gives up their messages, and
    /// permits others to have the numbers of their queue pairs. Polls until the queue is empty.
    ///
    /// [`next_message`](Self::next_message) does so, too. [`refill`](Self::refill) posts the receives again. If closing
    /// is [deferred](Self::defer_closing), their queue pairs are destroyed by the layer above.
    #[cold]
    pub fn forget_dropped_members(&mut self) {
        let Some(shared) = self.shared.as_deref() else {
            return;
        };
        if self.is_in_child() {
            return;
        }
        let queue = Arc::clone(&shared.queue);
        let ended: Vec<QueuePair> = iter::from_fn(|| queue.next_ended()).collect();
        if let Some(last) = ended.last()
            && let Err(error) = self.drain_shared(last.qp_num())
        {
            self.destroy_all(DownReason::Poll(error));
        }
        for qp in ended {
            let qp_num = qp.qp_num();
            if let Some(shared) = self.shared.as_deref_mut() {
                shared.suspect(qp_num);
            }
            if self.afterwards.is_deferred {
                self.defer_destroying(ChannelId::NONE.at(), qp);
            } else {
                let (destroyed, left) = qp.destroy();
                self.afterwards.push(Afterwards::QueuePair(left));
                let device = self.pd.context();
                if let Err(error) = destroyed
                    && !(device.may_be_removed(&error) && device.is_removed())
                {
                    let leak = Leak { buffers: 0, error };
                    self.afterwards.push(Afterwards::Leak(leak));
                }
                queue.destroyed(qp_num);
            }
        }
        // The last completions of them are in the queue now.
        let destroyed = queue.destroyed_numbers();
        self.dispatch_all();
        if let Some(shared) = self.shared.as_deref_mut() {
            shared.forget_ended(&destroyed);
        }
        self.replace_overtaken();
    }

    /// How many of the shared receives queue pairs have taken and not completed, while a whole queue of later ones
    /// has completed.
    ///
    /// A peer that stalls in the middle of a message has one of them. One is lost if the driver does not complete it
    /// when its queue pair is destroyed. Its block returns to the pool when the shared receive queue is destroyed. They
    /// are replaced: see [`shared_receives`](crate::ChannelConfig::shared_receives).
    #[must_use]
    pub fn stalled_receives(&self) -> usize {
        self.shared.as_deref().map_or(0, Shared::overtaken)
    }

    /// Replaces the shared receives that were overtaken. If more are lost than can be replaced, all channels are taken
    /// down.
    pub(super) fn replace_overtaken(&mut self) {
        if let Some(shared) = self.shared.as_deref_mut()
            && shared.replace_overtaken()
            && self.failure.is_none()
        {
            self.destroy_all(DownReason::ReceivesLost);
        }
        self.rebuild_if_unused();
    }

    /// If half of the shared receives may be lost, and no queue pair is left, replaces the queue: that gives back all.
    pub(crate) fn rebuild_if_unused(&mut self) {
        // A queue pair that is not dropped yet keeps the queue.
        let is_unused = self.open == 0 && self.stuck == 0 && self.afterwards.is_empty();
        if is_unused
            && !self.is_in_child()
            && self.shared.as_deref().is_some_and(Shared::may_be_low)
            // Completions of the old queue name places that are posted again.
            && self.poll_all().is_ok()
            && let Some(shared) = self.shared.as_deref_mut()
            && shared.may_be_low()
        {
            if let Err(leak) = shared.rebuild() {
                self.afterwards.push(Afterwards::Leak(leak));
            }
            self.refill();
        }
    }

    /// Whether [`next_failed`](Self::next_failed) returns a channel.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let shared = self.shared.as_deref();
        shared.is_some_and(|shared| !shared.failed.is_empty())
    }

    /// Returns each channel once that a shared receive has taken down, unless it was destroyed since.
    ///
    /// No operation of the channel completes for that. So a layer in which requests wait for room ends those of the
    /// channel.
    pub fn next_failed(&mut self) -> Option<ChannelId> {
        self.shared.as_deref_mut()?.failed.pop()
    }

    /// Takes the oldest message, without a poll.
    #[inline]
    pub(crate) fn take_message(&mut self) -> Option<Message> {
        let shared = self.shared.as_deref_mut()?;
        let taken = shared.take();
        let missing = shared.missing();
        // A doorbell for many, unless few are left.
        let is_low = shared.posted < missing;
        if missing >= CHAIN || is_low && missing > 0 {
            let _posted = self.refill_once();
        }
        let (Arrived { channel, result }, buffer) = taken?;
        let result = match result {
            Ok((_, success)) => TransportError::check_message(&success, &buffer).map(|()| success),
            Err(reason) => Err(TransportError::Aborted(reason)),
        };
        Some(Message {
            channel,
            result,
            buffer,
        })
    }

    /// Adds the ends of channels to the messages.
    #[cold]
    fn report_ends(&mut self) {
        // Messages that arrived before are reported before.
        self.dispatch_all();
        let Some(shared) = self.shared.as_deref_mut() else {
            return;
        };
        shared.has_ends = false;
        for member in &mut self.flight.members {
            if let Some(reason) = member.down()
                && !member.is_removed
                && !member.is_end_reported
            {
                member.is_end_reported = true;
                let channel = member.id;
                let result = Err(reason);
                shared.arrived.push_back(Arrived { channel, result });
            }
        }
    }

    /// Routes the messages of a new channel. Those that came before it have been polled.
    pub(super) fn join_shared(&mut self, qp_num: u32, channel: ChannelId) {
        let Some(shared) = self.shared.as_deref_mut() else {
            return;
        };
        if !shared.join(qp_num, channel) {
            self.destroy_at(channel.at(), DownReason::TooManyEarly);
        }
    }

    /// Routes what a queue pair has received, and nothing after that: it is about to be destroyed.
    ///
    /// In `ERR` it takes no more receives from the queue; drivers may discard the completions of one that
    /// is destroyed, with their receives.
    ///
    /// # Errors
    ///
    /// Those of [`poll_all`](Self::poll_all).
    #[cold]
    pub(super) fn leave_shared(
        &mut self,
        at: u32,
        reason: DownReason,
        is_drained: bool,
    ) -> Result<(), PollError> {
        let Some(member) = self.flight.member_mut(at) else {
            return Ok(());
        };
        member.go_down(reason);
        let Some(qp) = member.qp() else {
            return Ok(());
        };
        let qp_num = qp.qp_num();
        let polled = if is_drained {
            self.poll_all()
        } else {
            // It fails only if the device does.
            let _in_error = qp.to_error();
            self.drain_shared(qp_num)
        };
        if let Some(shared) = self.shared.as_deref_mut() {
            shared.has_ends = true;
            shared.suspect(qp_num);
            shared.leave(qp_num);
        }
        polled
    }

    /// Moves the queue pairs of all channels to `ERR`, and polls what they give back: before all are destroyed.
    pub(super) fn drain_all_shared(&mut self, reason: DownReason) {
        if self.shared.is_none() || self.is_in_child() {
            return;
        }
        let mut last = None;
        for member in &mut self.flight.members {
            member.go_down(reason);
            if let Some(qp) = member.qp() {
                // It fails only if the device does.
                let _in_error = qp.to_error();
                last = Some(qp.qp_num());
            }
        }
        // All of them end: no outcome is lost by a poll that fails.
        let _polled = last.map(|qp_num| self.drain_shared(qp_num));
    }

    /// Polls until this queue pair, which is in `ERR`, has given back the receive that it may have taken: a message
    /// was cut. Soft-RoCE does so a moment after the queue pair was moved to `ERR`, and not if it is destroyed before.
    ///
    /// # Errors
    ///
    /// Those of [`poll_all`](Self::poll_all).
    #[cold]
    fn drain_shared(&mut self, qp_num: u32) -> Result<(), PollError> {
        self.poll_all()?;
        for _ in 0..DRAIN_POLLS {
            let shared = self.shared.as_deref();
            let is_drained =
                |shared: &Shared| shared.posted == 0 || shared.last_failed == Some(qp_num);
            if shared.is_none_or(is_drained) {
                break;
            }
            thread::yield_now();
            self.poll_cq(true)?;
        }
        Ok(())
    }

    /// Posts up to [`CHAIN`] receives with one doorbell. Returns how many; `None` if there are no free
    /// places or no blocks.
    #[inline(never)]
    fn refill_once(&mut self) -> Option<usize> {
        let shared = self.shared.as_deref_mut()?;
        if self.failure.is_some() {
            return None;
        }
        let mut places = [0; CHAIN];
        let mut elements = [Sge::new(0, 0, 0); CHAIN];
        let mut count = 0;
        for (place, element) in places.iter_mut().zip(&mut elements) {
            let Some((taken, buffer)) = shared.take_place() else {
                break;
            };
            // Blocks are elements: their pool was cut into them.
            *element = buffer.element(self.pd_tag, false).ok()?;
            *place = taken;
            count += 1;
        }
        let (places, elements) = (places.get(..count)?, elements.get_mut(..count)?);
        if places.is_empty() {
            return None;
        }
        let mut requests = [const { ReceiveWorkRequest::empty() }; CHAIN];
        for ((request, element), place) in requests.iter_mut().zip(elements).zip(places) {
            *request = ReceiveWorkRequest::new(element).wr_id(shared_wr_id(*place));
        }
        // SAFETY: the place keeps the block until the receive has completed; or `SharedQueue` does until
        // the queue is destroyed, and leaks it if that fails. Its bytes are not accessed meanwhile.
        let posted = unsafe { shared.srq.post_receive(requests.get_mut(..count)?) };
        let accepted = posted.map_or_else(|error| error.posted(), |()| count);
        for (index, place) in places.iter().enumerate() {
            match index < accepted {
                true => shared.set_posted(*place),
                false => shared.ready.push(*place),
            }
        }
        if let Err(error) = posted {
            self.fail_group(DownReason::Post(error));
            return None;
        }
        Some(count)
    }
}

/// How many receives are posted with one doorbell.
const CHAIN: usize = 16;

/// Polls, between which the thread yields, for the receive of a queue pair that is to be destroyed. No verb tells
/// whether it has one, so all of them pass in vain if it has none: about a millisecond. With soft-RoCE in a busy guest,
/// 1,600 polls were the most that it took (8 ms).
const DRAIN_POLLS: usize = 2000;
