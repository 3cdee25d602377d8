//! The state of a channel, its peer, and the objects under it.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use verbs_core::completion::CompletionChannel;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;
use verbs_core::{ProtectionDomain, QueuePairEndpoint};

use crate::channel::{Channel, Hold};
use crate::channel_id::ChannelId;
use crate::engine::{Counters, Engine, Member};
use crate::error::{DownReason, Queue, Result};
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::{Error, RejectReason};
use crate::waiting::Steps as _;

impl<H: Hold> Channel<H> {
    /// The id of the channel in its group, which is also in each of its [`Completed`](crate::Completed)
    /// operations.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        let (engine, at) = self.shared();
        engine.id_at(at)
    }

    /// The counters of the channel, from when it was connected or joined on.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared().0.channel_counters(self.id())
    }

    /// The engine that drives the channel, for layers above.
    #[must_use]
    pub fn engine_mut(&mut self) -> &mut Engine {
        let (poller, _) = self.parts();
        &mut poller.engine
    }

    /// How many more requests fit into this queue, and into the
    /// [budget](crate::ChannelConfig::in_flight) of its group.
    ///
    /// An operation that has completed frees its credit, but keeps its slot until its outcome is taken.
    /// So a channel may reject requests although it has credits: see [`RejectReason::Untaken`].
    #[must_use]
    pub fn credits(&self, queue: Queue) -> u32 {
        self.shared().0.credits(self.id(), queue)
    }

    /// How many requests of this queue are in flight.
    #[must_use]
    pub fn in_flight(&self, queue: Queue) -> u32 {
        self.shared().0.in_flight(self.id(), queue)
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let (engine, at) = self.shared();
        engine.is_idle_at(at)
    }

    /// Watches the peer through this descriptor: the channel goes down when the other end of the
    /// descriptor is closed.
    ///
    /// This is for a [handshake](crate::PreparedChannel::handshake) of your own. Channels that were
    /// connected over TCP watch their peer already.
    ///
    /// The descriptor is a TCP or Unix socket, or an end of a pipe, whose other end the peer keeps
    /// as long as its channel. The channel owns it, and closes it when the channel goes down or is
    /// dropped, so that the peer notices that this side has left. Nothing is read from it. A
    /// half-closed socket (`shutdown(2)`) counts as closed. Keepalive is set on a TCP socket
    /// according to the channel's `peer_timeout`. If that is `None`, the descriptor is kept but
    /// not watched.
    ///
    /// A channel that was connected by `rdma_cm` keeps its connection, and watches both. If the peer leaves
    /// cleanly, the channel goes down when the connection ends, by when everything that the peer sent has
    /// arrived; or `peer_timeout` after the descriptor was closed, if the connection has not ended by then.
    ///
    /// Everything that the peer sent before it left is delivered first. Then the channel is
    /// [down](Self::down_reason) with [`DownReason::PeerClosed`] or [`DownReason::PeerLost`]. The
    /// peer is checked whenever a wait or a poll finds no completion.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: the descriptor cannot be watched because it is of a regular file, or too
    /// many descriptors are open.
    pub fn watch_peer(&mut self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let (poller, at) = self.parts();
        let watched = poller.engine.watch_peer_at(at, descriptor.into());
        poller.run_afterwards();
        watched
    }

    /// Watches the peer through this connection of `rdma_cm`: the channel goes down when the connection
    /// ends. Needs the feature `rdmacm`.
    ///
    /// Channels that were [connected by `rdma_cm`](crate::PreparedChannel::connect) do that already. The
    /// connection is ended when the channel goes down or is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: too many descriptors are open.
    #[cfg(feature = "rdmacm")]
    pub fn watch_connection(&mut self, connection: Connection) -> Result<()> {
        let (poller, at) = self.parts();
        let watched = poller.engine.watch_connection_at(at, connection);
        poller.run_afterwards();
        watched
    }

    /// The peer's address, if the channel was connected over TCP, or has a TCP socket to [watch the
    /// peer](Self::watch_peer).
    ///
    /// It is also available when the channel is down.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared().0.peer_addr(self.id())
    }

    /// Whether the channel is down: it rejects all requests.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down_reason().is_some()
    }

    /// Why the channel is down; `None` if it is not.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        let (engine, at) = self.shared();
        let member = engine.member(at);
        member.map_or(Some(DownReason::Closed), Member::down)
    }

    /// The protection domain of the channel, whose regions it can use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.shared().0.pd()
    }

    /// The completion channel of its [completion queue](Engine::cq), if it was created with
    /// [`PollStrategy::Notify`](crate::PollStrategy::Notify).
    #[must_use]
    pub fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.holder.shared().0.completion_channel()
    }

    /// The endpoint of this side; `None` once the queue pair has been destroyed.
    #[must_use]
    pub fn endpoint(&self) -> Option<&QueuePairEndpoint> {
        self.shared().0.endpoint(self.id())
    }
}

impl<H: Hold> fmt::Debug for Channel<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Channel");
        debug.field("device", &self.pd().context().device().name());
        if let Some(endpoint) = self.endpoint() {
            debug.field("qp_num", &format_args!("{:#x}", endpoint.qp_num()));
        }
        debug
            .field("peer_addr", &self.peer_addr())
            .field("down_reason", &self.down_reason())
            .field("sends_in_flight", &self.in_flight(Queue::Send))
            .field("receives_in_flight", &self.in_flight(Queue::Receive))
            .finish_non_exhaustive()
    }
}
