//! What the channels of a group share.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::task;
use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::engine::Closing;
use verbs_channel::verbs_core::{
    AsyncEvent, ErrorChain, EventElement, EventType, ProtectionDomain,
};
use verbs_channel::{ChannelId, DownReason, Preparer, Queue};

use crate::blocking;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::events::{CqEvents, CqListener};
use crate::peers::{PeerEvents, Peers};
use crate::ring::Channels;
use crate::watched::DeviceListener;

/// What the channels of a group share.
pub(crate) struct SharedEngine {
    // The backlog of channels that join.
    pub(crate) backlog: AtomicUsize,
    pub(crate) driver: Driver<Channels>,
    // Not behind the driver's lock: preparing a channel would delay the others.
    pub(crate) preparer: Preparer,
    pub(crate) pd: ProtectionDomain,
    pub(crate) events: CqEvents,
    // Created with the first channel whose peer is watched.
    pub(crate) peers: OnceLock<Arc<PeerEvents<Self>>>,
}

impl SharedEngine {
    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Starts to watch the peers of channels, unless they are watched already. An error is logged.
    pub(crate) fn watch_peers(self: &Arc<Self>) {
        if self.peers.get().is_some() {
            return;
        }
        let descriptor = self.driver.with_ring(|ring| ring.engine.peers_fd());
        let notifier = descriptor.and_then(|set| self.events.another_notifier(set));
        match notifier {
            Ok(notifier) => {
                let made = PeerEvents::watch(notifier, &Arc::downgrade(self));
                // Another thread may have been faster. Then this one is dropped.
                drop(self.peers.set(made));
            }
            Err(error) => crate::wake::log_error(format_args!(
                "peers that leave will not be noticed: {}",
                ErrorChain::new(&error)
            )),
        }
    }

    /// Destroys a channel's queue pair, without a lock, and aborts its operations in flight.
    pub(crate) fn end(&self, at: ChannelId, reason: DownReason, is_removed: bool) {
        let closing = self
            .driver
            .with_ring(|ring| ring.engine.start_close(at, reason));
        // The channel may have been closed before.
        let Ok(closing) = closing else { return };
        let closed = closing.destroy();
        let finish = |ring: &mut Channels| ring.engine.finish_close(closed, is_removed);
        // It belongs to this engine, so this does not fail.
        let _finished = self.driver.with(Some(at), finish);
    }

    /// Whether the device is done with the memory of a channel that was [ended](Self::end).
    ///
    /// It blocks while another thread is in the call that destroys it.
    pub(crate) fn destroyed(&self, at: ChannelId) -> Result<()> {
        loop {
            if let Some(destroyed) = self.poll_destroyed(at) {
                return destroyed;
            }
            thread::sleep(AGAIN);
        }
    }

    /// The same, awaited: a helper thread blocks.
    pub(crate) async fn until_destroyed(self: &Arc<Self>, at: ChannelId) -> Result<()> {
        if let Some(destroyed) = self.poll_destroyed(at) {
            return destroyed;
        }
        let shared = Arc::clone(self);
        let destroyed = blocking::run(move || shared.destroyed(at)).await;
        destroyed.map_err(Error::Thread)?
    }

    fn poll_destroyed(&self, at: ChannelId) -> Option<Result<()>> {
        let destroyed = self.driver.with_ring(|ring| ring.engine.destroyed(at));
        destroyed.map(|destroyed| Ok(destroyed.map_err(verbs_channel::Error::from)?))
    }

    /// [`end`](Self::end) for all channels that are open.
    pub(crate) fn destroy_all(&self, reason: DownReason) {
        let closing = self.driver.with_ring(|ring| {
            let open: Vec<_> = ring.engine.channels().collect();
            let closing = open
                .into_iter()
                .filter_map(|at| ring.engine.start_close(at, reason).ok());
            closing.collect::<Vec<_>>()
        });
        // Those who wait for one do not wait for the others.
        for closed in closing.into_iter().map(Closing::destroy) {
            let finish = |ring: &mut Channels| ring.engine.finish_close(closed, false);
            // It belongs to this engine, so this does not fail.
            let _finished = self.driver.with(None, finish);
        }
    }

    /// Waits until these queues of a channel and their backlogs are empty.
    pub(crate) async fn drained(&self, at: ChannelId, queues: &'static [Queue]) {
        std::future::poll_fn(|cx: &mut task::Context<'_>| self.driver.poll_drained(at, queues, cx))
            .await;
    }
}

impl Peers for SharedEngine {
    fn has_channels(&self) -> bool {
        self.driver.with_ring(|ring| !ring.engine.is_empty())
    }

    fn check_peers(&self) {
        self.driver
            .with(None, |ring| ring.engine.check_peers(Instant::now()));
    }
}

impl CqListener for SharedEngine {
    fn on_event(&self) {
        self.driver.on_event();
    }

    fn on_notifier_failed(&self, error: &io::Error) {
        // A runtime that ends after its channels is no error.
        if self.has_channels() {
            crate::wake::log_error(format_args!(
                "the notifier has failed, taking all channels down: {}",
                ErrorChain::new(error)
            ));
        }
        self.destroy_all(DownReason::NotifierFailed);
        // The queue is not armed any more: so arming fails for a channel that joins later, and it goes
        // down, too.
        self.driver.on_event();
    }
}

impl DeviceListener for SharedEngine {
    fn on_device_event(&self, event: AsyncEvent) {
        let reason = DownReason::Event(event.event_type());
        match (event.event_type(), event.element()) {
            (EventType::DEVICE_FATAL, _) => self.destroy_all(reason),
            (EventType::CQ_ERR, EventElement::Cq { handle })
                if handle
                    == self
                        .driver
                        .with_ring(|ring| ring.subscription.cq().handle()) =>
            {
                self.destroy_all(reason);
            }
            (EventType::QP_FATAL, EventElement::Qp { qp_num }) => {
                if let Some(at) = self.driver.with_ring(|ring| ring.engine.channel_of(qp_num)) {
                    self.end(at, reason, false);
                }
            }
            _ => {}
        }
    }
}

/// How long a thread sleeps that waits for another thread to destroy a queue pair.
const AGAIN: Duration = Duration::from_millis(1);
