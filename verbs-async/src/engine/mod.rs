//! State shared by the channels of a group.

pub(crate) mod destroying;
mod peer_watch;

use std::future::poll_fn;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::{Duration, Instant};

use verbs_channel::__private::Closing;
use verbs_channel::engine::Engine;
use verbs_channel::error::CloseError;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::group::MemberFactory;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::device::AsyncEvent;
use verbs_channel::verbs_core::error::ErrorChain;
use verbs_channel::{ChannelId, DownReason};

use crate::device_events::DeviceWatcher;
use crate::driver::{self, Driver};
use crate::events::watcher::{DeviceListener, Failed};
use crate::events::{CqEvents, CqListener};
use crate::notifier;
use crate::task::{coop, deferred};
use crate::threads;
use destroying::Destroyed;
use peer_watch::{PeerEvents, Peers};

/// State shared by the channels of a group.
pub(crate) struct SharedEngine {
    // How many operations can wait for room in each queue of a channel; read when it joins.
    pub(crate) backlog: AtomicUsize,
    pub(crate) driver: Driver,
    // Not behind the driver's lock: preparing a channel would delay the others.
    pub(crate) factory: MemberFactory,
    pub(crate) pd: ProtectionDomain,
    pub(crate) events: CqEvents,
    // Tasks that wait for helper threads.
    pub(crate) destroyed: Arc<Destroyed<ChannelId>>,
    // Created with the first channel whose peer is watched.
    pub(crate) peers: OnceLock<Arc<PeerEvents<Self>>>,
    pub(crate) device: Arc<DeviceWatcher>,
}

impl SharedEngine {
    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Starts to watch the peers of channels, unless they are watched already, or none is to be.
    ///
    /// # Errors
    ///
    /// No more descriptors can be opened or watched, or the runtime of the notifier has ended.
    pub(crate) fn watch_peers(self: &Arc<Self>) -> Result<(), verbs_channel::Error> {
        let not_watched = |source| {
            let what = "watch the connection to";
            ExchangeError::Tcp { what, source }
        };
        if let Some(peers) = self.peers.get() {
            return Ok(peers.check().map_err(not_watched)?);
        }
        let descriptor = self.driver.with_engine(|engine| {
            let is_watched = engine.peer_timeout().is_some();
            is_watched.then(|| engine.peers_fd())
        });
        let Some(descriptor) = descriptor else {
            return Ok(());
        };
        let notifier = descriptor.and_then(|set| self.events.another_notifier(set));
        let made = PeerEvents::watch(notifier.map_err(not_watched)?, &Arc::downgrade(self));
        // Another thread may have been faster. Then this one is dropped.
        drop(self.peers.set(made));
        Ok(())
    }

    /// Whether a task has to yield: see [`coop`]. If so, it checks the peers, too.
    #[inline(always)]
    pub(crate) fn must_yield(&self, cx: &Context<'_>) -> bool {
        let must_yield = coop::must_yield(cx);
        if must_yield {
            self.check_peers_when_busy();
        }
        must_yield
    }

    /// Checks the peers if it is time. Their notifier does so, too, but a runtime may not look at it for long
    /// while tasks are always ready.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_peers_when_busy(&self) {
        if self.peers.get().is_none() {
            return;
        }
        let now = Instant::now();
        let mut state = self.driver.state().lock();
        let is_due = state.next_check.is_none_or(|next| now >= next);
        if is_due {
            state.next_check = now.checked_add(CHECK);
        }
        drop(state);
        if is_due {
            self.check_peers();
        }
    }

    /// Takes a channel down. A helper thread destroys its queue pair, and then aborts its operations in
    /// flight.
    pub(crate) fn end(&self, at: ChannelId, reason: DownReason) {
        if self.driver.is_in_child() {
            return;
        }
        self.driver.with(Some(at), |engine| {
            // The channel may have been removed before.
            let _ended = engine.destroy(at, reason);
        });
    }

    /// The same, and then another channel can get its place.
    pub(crate) fn remove(&self, at: ChannelId) {
        if self.driver.is_in_child() {
            return;
        }
        self.driver.with(Some(at), |engine| {
            // It has its place until now, so this does not fail.
            let _removed = engine.remove(at);
        });
    }

    /// [`end`](Self::end) for all channels that are open.
    pub(crate) fn destroy_all(&self, reason: DownReason) {
        let failure = self.driver.with(None, |engine| {
            engine.destroy_all(reason);
            engine.group_failure()
        });
        if failure.is_some() {
            self.destroyed.wake(None);
        }
    }

    /// Why no channel can join, if the group has failed.
    pub(crate) fn failure(&self) -> Option<DownReason> {
        self.driver.with_engine(|engine| engine.group_failure())
    }

    /// Waits until the group has failed: for what makes channels that join.
    pub(crate) async fn failed(self: Arc<Self>) -> DownReason {
        self.when_destroyed(None, || self.failure()).await
    }

    /// Waits until the device is done with the memory of a channel that was [ended](Self::end).
    pub(crate) async fn until_destroyed(&self, at: ChannelId) -> Result<(), CloseError> {
        let destroyed = || {
            let destroyed = self.driver.with_engine(|engine| engine.destroyed(at))?;
            (!self.destroyed.is_pending(Some(&at))).then_some(destroyed)
        };
        self.when_destroyed(Some(at), destroyed).await
    }

    /// Waits until no queue pair is being destroyed.
    pub(crate) async fn until_all_destroyed(&self) -> Result<(), CloseError> {
        let is_stuck = || {
            let is_closing = self.driver.with_engine(|engine| engine.is_closing());
            let is_over = !is_closing && !self.destroyed.is_pending(None);
            is_over.then(|| self.driver.with_engine(|engine| engine.has_stuck()))
        };
        match self.when_destroyed(None, is_stuck).await {
            true => Err(CloseError::Stuck),
            false => Ok(()),
        }
    }

    /// Waits until `ready` returns something, which is called whenever the queue pair of this channel has been
    /// destroyed, or of any.
    pub(crate) async fn when_destroyed<T>(
        &self,
        channel: Option<ChannelId>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> T {
        let mut waits = self.destroyed.waits_for(channel);
        poll_fn(|cx| waits.poll(cx, &mut ready)).await
    }
}

/// How often busy tasks check the peers: that takes a system call.
const CHECK: Duration = Duration::from_millis(10);

impl driver::Owner for SharedEngine {
    fn destroy_elsewhere(self: Arc<Self>, closing: Closing) {
        if self.driver.is_in_child() {
            return;
        }
        let (at, destroyed) = (closing.channel(), Arc::clone(&self.destroyed));
        // One that has not joined has no place among the channels.
        let channel = (!closing.is_unjoined()).then_some(at);
        destroyed.start(at);
        threads::detach(move || {
            let closed = closing.destroy();
            let finish = |engine: &mut Engine| engine.finish_close(closed);
            // It belongs to this engine, so this does not fail.
            let _finished = self.driver.with(channel, finish);
            // First: who waits may close the device next.
            drop(self);
            destroyed.finish(&at);
        });
    }
}

impl deferred::Owner for SharedEngine {
    fn run_due(&self) {
        self.driver.state().run_due();
    }

    fn settle_elsewhere(self: Arc<Self>) -> bool {
        threads::try_detach(move || self.driver.state().settle())
    }
}

impl Peers for SharedEngine {
    fn has_channels(&self) -> bool {
        // Those whose queue pairs are being destroyed have ended.
        self.driver
            .with_engine(|engine| engine.channels().next().is_some())
    }

    fn check_peers(&self) {
        self.driver
            .with(None, |engine| engine.check_peers(Instant::now()));
    }
}

impl CqListener for SharedEngine {
    fn on_event(&self) {
        self.driver.on_event();
    }

    fn on_notifier_failed(&self, error: &io::Error) {
        if self.has_channels() && !notifier::has_ended(error) {
            crate::task::wake::log_error(format_args!(
                "the notifier has failed, taking all channels down: {}",
                ErrorChain::new(error)
            ));
        }
        self.on_events_ended(DownReason::NotifierFailed);
    }
}

impl DeviceListener for SharedEngine {
    fn since(&self, part: Failed) -> Instant {
        let state = self.driver.state().lock();
        let channel = match part {
            Failed::Qp(qp_num) => state.engine.channel_of(qp_num),
            _ => None,
        };
        let joined = channel.and_then(|at| state.joined.get(at.index()));
        joined
            .copied()
            .unwrap_or_else(|| state.subscription.since())
    }

    fn on_device_event(&self, event: AsyncEvent) {
        let Some(failed) = Failed::of(event) else {
            return;
        };
        let reason = DownReason::Event(event.event_type());
        let is_of_all = match failed {
            Failed::Qp(qp_num) => {
                let channel = self.driver.with_engine(|engine| engine.channel_of(qp_num));
                channel.into_iter().for_each(|at| self.end(at, reason));
                false
            }
            Failed::Device => true,
            Failed::Cq(handle) => self.driver.state().lock().subscription.cq().handle() == handle,
            Failed::Srq(handle) => {
                let srq = |engine: &mut Engine| engine.shared_handle();
                self.driver.with_engine(srq) == Some(handle)
            }
        };
        if is_of_all {
            self.destroy_all(reason);
        }
    }

    fn on_events_ended(&self, reason: DownReason) {
        self.driver.with(None, |engine| engine.fail_group(reason));
        self.destroyed.wake(None);
    }
}
