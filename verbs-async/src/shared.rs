//! What the channels of a group share.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::task;

use verbs_channel::verbs_core::{
    AsyncEvent, ErrorChain, EventElement, EventType, ProtectionDomain,
};
use verbs_channel::{ChannelId, Closing, DownReason, Preparer};

use crate::driver::Driver;
use crate::events::{Announced, CqEvents};
use crate::peers::{PeerEvents, Peers};
use crate::ring::Channels;
use crate::watched::Watched;

/// What the channels of a group share.
pub(crate) struct Shared {
    // Of channels that join.
    pub(crate) backlog: AtomicUsize,
    pub(crate) driver: Driver<Channels>,
    // Not behind the driver's lock: to prepare a channel would hold up the others.
    pub(crate) preparer: Preparer,
    pub(crate) pd: ProtectionDomain,
    pub(crate) events: CqEvents,
    // Made with the first channel whose peer is watched.
    pub(crate) peers: OnceLock<Arc<PeerEvents<Self>>>,
}

impl Shared {
    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Has channels taken down whose peer leaves, if that is not so yet. If it cannot be, the log says
    /// so.
    pub(crate) fn watch_peers(self: &Arc<Self>) {
        if self.peers.get().is_some() {
            return;
        }
        let descriptor = self.driver.with_ring(|ring| ring.group.peers_descriptor());
        let notifier = descriptor.and_then(|set| self.events.another_notifier(set));
        match notifier {
            Ok(notifier) => {
                let made = PeerEvents::watch(notifier, &Arc::downgrade(self));
                // Another thread may have been faster; two notice no less than one.
                drop(self.peers.set(made));
            }
            Err(error) => crate::wake::log_error(format_args!(
                "peers that leave will not be noticed: {}",
                ErrorChain::new(&error)
            )),
        }
    }

    /// Destroys a channel's queue pair, with nothing locked, and ends what was in flight on it.
    pub(crate) fn end(&self, at: ChannelId, reason: DownReason, is_removed: bool) {
        let closing = self
            .driver
            .with_ring(|ring| ring.group.start_close(at, reason));
        // One that is gone has ended before.
        let Ok(closing) = closing else { return };
        let closed = closing.destroy();
        let finish = |ring: &mut Channels| ring.group.finish_close(closed, is_removed);
        // It is of this group.
        let _finished = self.driver.with(Some(at), finish);
    }

    /// [`end`](Self::end) for all channels that are open.
    pub(crate) fn give_up(&self, reason: DownReason) {
        let closing = self.driver.with_ring(|ring| {
            let open: Vec<_> = ring.group.channels().collect();
            let closing = open
                .into_iter()
                .filter_map(|at| ring.group.start_close(at, reason).ok());
            closing.collect::<Vec<_>>()
        });
        let closed: Vec<_> = closing.into_iter().map(Closing::destroy).collect();
        self.driver.with(None, |ring| {
            for closed in closed {
                // It is of this group.
                let _finished = ring.group.finish_close(closed, false);
            }
        });
    }

    /// Waits until nothing is left in these queues of a channel.
    pub(crate) async fn drained(&self, at: ChannelId, queues: [bool; 2]) {
        std::future::poll_fn(|cx: &mut task::Context<'_>| self.driver.poll_drained(at, queues, cx))
            .await;
    }
}

impl Peers for Shared {
    fn look_at_peers(&self) {
        self.driver.with(None, |ring| ring.group.look_at_peers());
    }
}

impl Announced for Shared {
    fn announced(&self) {
        self.driver.announced();
    }

    fn unwatched(&self, error: &io::Error) {
        crate::wake::log_error(format_args!(
            "nothing announces completions any more, closing all channels: {}",
            ErrorChain::new(error)
        ));
        self.give_up(DownReason::Unannounced);
        // Nor is what it was armed for: a channel that joins later is to find that out.
        self.driver.announced();
    }
}

impl Watched for Shared {
    fn happened(&self, event: AsyncEvent) {
        let reason = DownReason::Event(event.event_type());
        match (event.event_type(), event.element()) {
            (EventType::DEVICE_FATAL, _) => self.give_up(reason),
            (EventType::CQ_ERR, EventElement::Cq { handle })
                if handle
                    == self
                        .driver
                        .with_ring(|ring| ring.subscription.cq().handle()) =>
            {
                self.give_up(reason);
            }
            (EventType::QP_FATAL, EventElement::Qp { qp_num }) => {
                if let Some(at) = self.driver.with_ring(|ring| ring.group.channel_of(qp_num)) {
                    self.end(at, reason, false);
                }
            }
            _ => {}
        }
    }
}
