//! Tasks that wait until queues of a channel, and their backlogs, are empty.

use std::task::Waker;

use verbs_channel::ChannelId;
use verbs_channel::error::Queue;

use super::state::{DrainWaiter, DriverState};

impl DriverState {
    /// Wakes the task with this key when these queues of the channel are drained, and for no others of
    /// it. Returns its previous waker, for the caller to drop.
    pub(super) fn add_drain_waiter(
        &mut self,
        index: usize,
        key: &mut Option<usize>,
        waiter: DrainWaiter,
    ) -> Option<Waker> {
        let waiters = &mut self.channel(index).drain_waiters;
        let key = *key.get_or_insert_with(|| waiters.insert(None));
        if let Some((waker, ..)) = waiters.get_mut(key)?.replace(waiter) {
            return Some(waker);
        }
        self.waiters += 1;
        self.queued_or_draining += 1;
        None
    }

    /// The task with this key does not wait until the channel is drained any more. Returns its waker, for
    /// the caller to drop.
    pub(super) fn stop_draining(&mut self, index: usize, key: usize) -> Option<Waker> {
        let waker = self.wake_drain_waiter(index, key);
        self.channel(index).drain_waiters.try_remove(key);
        waker
    }

    /// Takes the waker of the task with this key.
    fn wake_drain_waiter(&mut self, index: usize, key: usize) -> Option<Waker> {
        let waiters = &mut self.channel(index).drain_waiters;
        let (waker, ..) = waiters.get_mut(key)?.take()?;
        self.waiters -= 1;
        self.queued_or_draining -= 1;
        Some(waker)
    }

    /// Whether these queues of a channel and their backlogs are empty.
    pub(super) fn is_empty(&self, channel: ChannelId, queues: &[Queue]) -> bool {
        queues
            .iter()
            .all(|&queue| !self.has_backlog(channel.index(), queue) && self.is_idle(channel, queue))
    }

    /// Whether nothing is in flight in this queue of a channel, or the channel is down.
    fn is_idle(&self, channel: ChannelId, queue: Queue) -> bool {
        // Nobody waits for the operations of a channel that is down: the device may never flush them.
        self.engine.down_reason(channel).is_some() || self.engine.in_flight(channel, queue) == 0
    }

    /// Wakes the tasks that wait until this channel is drained, if it is.
    pub(super) fn wake_drained(&mut self, index: usize) {
        while let Some(key) = self.next_drained(index) {
            let waker = self.wake_drain_waiter(index, key);
            self.deferred.extend(waker);
        }
    }

    /// The key of a task for which this channel is drained.
    fn next_drained(&self, index: usize) -> Option<usize> {
        let mut waiters = self.channels.get(index)?.drain_waiters.iter();
        waiters.find_map(|(key, waiter)| {
            let (_, channel, queues) = waiter.as_ref()?;
            self.is_empty(*channel, queues).then_some(key)
        })
    }
}
