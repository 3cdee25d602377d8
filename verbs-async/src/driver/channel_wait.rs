//! Tasks that wait until the send queue of a channel is drained, or a backlog has room.

use std::mem;
use std::task::Waker;

use verbs_channel::ChannelId;
use verbs_channel::error::Queue;

use super::backlog::{Awaited, ChannelWaiter};
use super::state::DriverState;

impl DriverState {
    /// The task with this key sleeps. Returns its previous waker, for the caller to drop.
    pub(super) fn add_channel_waiter(
        &mut self,
        key: &mut Option<usize>,
        waiter: ChannelWaiter,
    ) -> Option<Waker> {
        let waiters = &mut self.channel(waiter.1.index()).waiters;
        let key = *key.get_or_insert_with(|| waiters.insert(None));
        if let Some((waker, ..)) = waiters.get_mut(key)?.replace(waiter) {
            return Some(waker);
        }
        self.waiters += 1;
        self.queued_or_waiting += 1;
        None
    }

    /// The task with this key does not wait any more. Returns its waker, for the caller to drop.
    pub(super) fn remove_channel_waiter(
        &mut self,
        channel: ChannelId,
        key: usize,
    ) -> Option<Waker> {
        let waiters = &mut self.channel(channel.index()).waiters;
        let (waker, ..) = waiters.try_remove(key)??;
        self.waiters -= 1;
        self.queued_or_waiting -= 1;
        Some(waker)
    }

    pub(super) fn is_in(&self, channel: ChannelId, state: Awaited) -> bool {
        match state {
            Awaited::Room(queue, backlog) => self.backlog_len(channel.index(), queue) < backlog,
            Awaited::Drained => {
                // Nobody waits for the operations of a channel that is down: the device may never flush them.
                let queue = Queue::Send;
                let is_idle = self.engine.down_reason(channel).is_some()
                    || self.engine.in_flight(channel, queue) == 0;
                is_idle && self.backlog_len(channel.index(), queue) == 0
            }
        }
    }

    /// Wakes the tasks that wait for what this channel is in now.
    pub(super) fn wake_channel_waiters(&mut self, index: usize) {
        let Some(here) = self.channels.get_mut(index) else {
            return;
        };
        let mut waiters = mem::take(&mut here.waiters);
        for (_, waiter) in &mut waiters {
            let is_due = |&mut (_, channel, awaited): &mut ChannelWaiter| match awaited {
                Awaited::Room(queue, backlog) => {
                    self.is_in(channel, Awaited::Room(queue, backlog / 2 + 1))
                }
                Awaited::Drained => self.is_in(channel, awaited),
            };
            if let Some((waker, ..)) = waiter.take_if(is_due) {
                self.waiters -= 1;
                self.queued_or_waiting -= 1;
                self.deferred.wake(waker);
            }
        }
        self.channel(index).waiters = waiters;
    }
}
