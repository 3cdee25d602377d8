//! Aborts of channels and rails by other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, mem};

use crate::channel_id::ChannelId;

/// Aborts a channel, or rails, from any thread: from [`Channel::abort_handle`](crate::Channel::abort_handle) or
/// [`Rails::abort_handle`](crate::Rails::abort_handle).
///
/// Cloning is cheap. It keeps nothing of the channel.
#[derive(Clone)]
pub struct AbortHandle {
    aborts: Arc<Aborts>,
    channel: ChannelId,
}

/// The channels that are to be aborted.
#[derive(Debug, Default)]
pub(crate) struct Aborts {
    are_asked: AtomicBool,
    channels: Mutex<Vec<ChannelId>>,
}

impl AbortHandle {
    pub(crate) const fn new(aborts: Arc<Aborts>, channel: ChannelId) -> Self {
        Self { aborts, channel }
    }

    /// Takes the channel down, whatever the thread does that has it: also within a blocking operation, a scope or a
    /// [transfer](crate::Channel::transfer).
    ///
    /// It returns at once. Everything in flight ends as by [`Channel::abort`](crate::Channel::abort): the thread that waits
    /// sees this within 100 ms, or the time of a post or poll of its driver, and waits for the flushes up to the drain
    /// timeout. A thread that does not use the channel sees it when it next does. A channel that is down is not
    /// affected. Rails see it in their transfers.
    pub fn abort(&self) {
        let mut channels = self.aborts.lock();
        if !channels.contains(&self.channel) {
            channels.push(self.channel);
        }
        drop(channels);
        self.aborts.ask();
    }
}

impl Aborts {
    /// Has the thread that waits check what is to be taken down: these channels, and those of leases that could not be
    /// ended.
    pub(super) fn ask(&self) {
        self.are_asked.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn are_asked(&self) -> bool {
        self.are_asked.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<ChannelId> {
        // Before the list is taken: what is added later is seen later.
        self.are_asked.swap(false, Ordering::Acquire);
        mem::take(&mut self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ChannelId>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AbortHandle({})", self.channel)
    }
}
