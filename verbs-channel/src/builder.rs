//! Making channels: every knob and its default, and what is prepared but not connected.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use verbs_core::{
    AccessFlags, AckTimeout, CompletionChannel, CompletionQueue, MaxAckRetries, MaxRnrRetries,
    MaximumTransferUnit, MinRnrTimer, PreparedQueuePair, ProtectionDomain, QueuePair,
    QueuePairEndpoint,
};

use crate::channel::Channel;
use crate::engine::{Engine, Patience};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeError, tcp};
use crate::group::{ChannelGroup, ConnectedMember, PreparedMember};
use crate::peer::PeerTimeout;
use crate::wait::PollStrategy;

/// What a channel is made with, kept to make it anew.
#[derive(Clone, Debug, bon::Builder)]
#[builder(
    start_fn(name = of, vis = "pub(crate)"),
    finish_fn(name = into_config, vis = "pub(crate)"),
    state_mod(name = channel_builder, vis = "pub"),
    builder_type(
        name = ChannelBuilder,
        vis = "pub",
        doc {
            /// What is set so far, from [`Channel::builder`]: every knob of a channel.
        }
    )
)]
pub(crate) struct Config {
    #[builder(start_fn)]
    pub(crate) pd: ProtectionDomain,
    /// Sends, writes, reads and atomics in flight at once; 64 unless set.
    #[builder(default = 64)]
    pub(crate) max_send_wr: u32,
    /// Receives in flight at once; 64 unless set.
    #[builder(default = 64)]
    pub(crate) max_recv_wr: u32,
    /// Elements in a send, write or read; 4 unless set.
    #[builder(default = 4)]
    max_send_sge: u32,
    /// Elements in a receive; 4 unless set.
    #[builder(default = 4)]
    max_recv_sge: u32,
    /// Bytes that can be posted inline; 0 unless set.
    #[builder(default)]
    max_inline_data: u32,
    /// The port; the first ACTIVE one unless set.
    port_num: Option<u8>,
    /// The index of this side's GID (C: `sgid_index`); the best one unless set.
    gid_index: Option<u8>,
    /// The index of the P_Key in the port's table; 0 unless set.
    #[builder(default)]
    pkey_index: u16,
    /// What the peer may do, given the key of a region that permits it; everything the device can
    /// unless set.
    qp_access_flags: Option<AccessFlags>,
    /// The path MTU; the smaller of both ports' active MTU unless set.
    path_mtu: Option<MaximumTransferUnit>,
    /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
    #[builder(default)]
    min_rnr_timer: MinRnrTimer,
    /// How long the card waits for an acknowledgement (C: `timeout`); code 14, 67 ms, unless set.
    #[builder(default)]
    ack_timeout: AckTimeout,
    /// The card's retries when nothing is acknowledged; 6 unless set.
    #[builder(default)]
    retry_cnt: MaxAckRetries,
    /// The card's retries when the peer has no receive posted; 7, for ever, unless set.
    #[builder(default)]
    rnr_retry: MaxRnrRetries,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default)]
    sl: u8,
    /// The GRH's traffic class; 0 unless set.
    #[builder(default)]
    traffic_class: u8,
    /// How long operations on borrowed buffers, and the end of a scope, wait before the channel is
    /// aborted; for ever unless set.
    timeout: Option<Duration>,
    /// How long a scope that failed waits for what is left of its work, and how long the flushes
    /// of an aborted channel are waited for; 1 s unless set.
    #[builder(default = Duration::from_secs(1))]
    drain_timeout: Duration,
    /// How soon it is noticed that the peer's host has died: 10 s unless set. It is TCP that finds
    /// that out, in whole seconds, so in no less than 2. `None` watches no peer at all: one that
    /// closes its end, or whose process ends, is not noticed either.
    #[builder(
        default,
        with = |timeout: impl Into<Option<Duration>>| PeerTimeout(timeout.into())
    )]
    pub(crate) peer_timeout: PeerTimeout,
    /// What to do between polls that find nothing; spin, then yield, unless set.
    #[builder(default)]
    strategy: PollStrategy,
}

/// `pd.create_channel()`: [`Channel::builder`] where other objects of a protection domain are made.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_channel::{CreateChannel as _, verbs_core::Context};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let prepared = pd.create_channel().max_send_wr(16).build()?;
/// # Ok(())
/// # }
/// ```
pub trait CreateChannel: sealed::Sealed {
    /// Begins a channel on this protection domain.
    fn create_channel(&self) -> ChannelBuilder<channel_builder::Empty>;
}

impl CreateChannel for ProtectionDomain {
    fn create_channel(&self) -> ChannelBuilder<channel_builder::Empty> {
        Channel::builder(self)
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "seals `CreateChannel`")]
    pub trait Sealed {}
    impl Sealed for verbs_core::ProtectionDomain {}
}

impl<S: channel_builder::IsComplete> ChannelBuilder<S> {
    /// Makes the channel, prepared to be connected.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`](verbs_core::QueuePair::builder) and
    /// [`CompletionQueue::create`](verbs_core::CompletionQueue::create): a capacity above the
    /// device's limits, a path that cannot be.
    pub fn build(self) -> Result<PreparedChannel> {
        let config = self.into_config();
        let (cq, announcer) = config.queue(1)?;
        config.prepare(cq, announcer)
    }

    /// Makes a group of at most `max_channels` such channels, which share a completion queue.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::Limit`] if a completion queue for that many is above the device's
    /// limits.
    pub fn group(self, max_channels: u32) -> Result<ChannelGroup> {
        let config = self.into_config();
        let (cq, announcer) = config.queue(max_channels)?;
        Ok(ChannelGroup::new(config, cq, announcer, max_channels))
    }

    /// Makes a group whose completions are announced on this completion channel, which others may
    /// share: for a layer that waits there by itself. The group's own waits do not sleep on it.
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group).
    pub fn group_on(self, max_channels: u32, channel: &CompletionChannel) -> Result<ChannelGroup> {
        let config = self.into_config();
        let cq = config.queue_on(max_channels, Some(channel))?;
        Ok(ChannelGroup::new(config, cq, None, max_channels))
    }
}

impl Config {
    /// A completion queue with room for all that can be in flight on so many channels, and what
    /// announces its completions if the strategy sleeps.
    pub(crate) fn queue(
        &self,
        channels: u32,
    ) -> Result<(CompletionQueue, Option<CompletionChannel>)> {
        let context = self.pd.context();
        let announcer = match self.strategy {
            PollStrategy::Notify { .. } => Some(CompletionChannel::create(context)?),
            PollStrategy::Spin | PollStrategy::SpinThenYield => None,
        };
        let cq = self.queue_on(channels, announcer.as_ref())?;
        Ok((cq, announcer))
    }

    fn queue_on(
        &self,
        channels: u32,
        announcer: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue> {
        let each = self.max_send_wr.saturating_add(self.max_recv_wr).max(1);
        let cq = CompletionQueue::builder(self.pd.context(), each.saturating_mul(channels))
            .maybe_channel(announcer)
            .build()?;
        Ok(cq)
    }

    /// A queue pair on a completion queue, prepared.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue) -> Result<PreparedQueuePair> {
        let prepared = QueuePair::builder(&self.pd, cq, cq)
            .max_send_wr(self.max_send_wr)
            .max_recv_wr(self.max_recv_wr)
            .max_send_sge(self.max_send_sge)
            .max_recv_sge(self.max_recv_sge)
            .max_inline_data(self.max_inline_data)
            .maybe_port_num(self.port_num)
            .maybe_gid_index(self.gid_index)
            .pkey_index(self.pkey_index)
            .maybe_qp_access_flags(self.qp_access_flags)
            .maybe_path_mtu(self.path_mtu)
            .min_rnr_timer(self.min_rnr_timer)
            .timeout(self.ack_timeout)
            .retry_cnt(self.retry_cnt)
            .rnr_retry(self.rnr_retry)
            .sl(self.sl)
            .traffic_class(self.traffic_class)
            .build()?;
        Ok(prepared)
    }

    pub(crate) fn prepare(
        self,
        cq: CompletionQueue,
        announcer: Option<CompletionChannel>,
    ) -> Result<PreparedChannel> {
        Ok(PreparedChannel {
            qp: self.queue_pair(&cq)?,
            cq,
            announcer,
            config: self,
        })
    }

    pub(crate) fn engine(
        &self,
        cq: CompletionQueue,
        announcer: Option<CompletionChannel>,
    ) -> Engine {
        let patience = Patience {
            strategy: self.strategy,
            timeout: self.timeout,
            drain_timeout: self.drain_timeout,
            peer_timeout: self.peer_timeout.0,
        };
        Engine::new(self.pd.clone(), cq, announcer, patience)
    }
}

/// A channel that is not connected yet.
///
/// [`connect`](Self::connect) and [`accept`](Self::accept) do it over TCP. For any other way send
/// its [`endpoint`](Self::endpoint) to the peer, get the peer's, and
/// [`handshake`](Self::handshake); and see to it that neither side sends before the other is done.
#[derive(Debug)]
pub struct PreparedChannel {
    qp: PreparedQueuePair,
    cq: CompletionQueue,
    announcer: Option<CompletionChannel>,
    config: Config,
}

impl PreparedChannel {
    /// What the peer must know to connect.
    #[must_use]
    pub fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// Connects to the peer's endpoint. The peer must do the same with this one's.
    ///
    /// # Errors
    ///
    /// Those of [`PreparedQueuePair::handshake`].
    pub fn handshake(self, remote: &QueuePairEndpoint) -> Result<Channel> {
        let qp = self.qp.handshake(remote)?;
        let mut engine = self.config.engine(self.cq, self.announcer);
        engine.add(qp, &self.config);
        Ok(Channel::new(engine, self.config))
    }
}

/// Connecting over TCP, for whatever connects by a handshake.
macro_rules! over_tcp {
    ($prepared:ident => $connected:ident) => {
        impl $prepared {
            /// Connects over TCP to a peer that [`accept`](Self::accept)s, within `timeout`. A peer
            /// that does not listen yet is tried again.
            ///
            /// A name is looked up first, by the system's resolver, which keeps its own deadlines:
            /// give an address where `timeout` must hold for that too.
            ///
            /// # Errors
            ///
            /// [`Error::Exchange`](crate::Error::Exchange) says what the peer did wrong: refused
            /// (and why), was silent, hung up, speaks something else;
            /// [`Error::Core`](crate::Error::Core) that this queue pair could not be connected,
            /// which the peer is told.
            pub fn connect(
                self,
                peer: impl ToSocketAddrs,
                timeout: Duration,
            ) -> Result<$connected> {
                let (connected, _) = self.connect_with(peer, timeout, &[])?;
                Ok(connected)
            }

            /// [`connect`](Self::connect), and gives the peer up to
            /// [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) bytes with it. The peer's
            /// come back.
            ///
            /// # Errors
            ///
            /// As [`connect`](Self::connect).
            pub fn connect_with(
                self,
                peer: impl ToSocketAddrs,
                timeout: Duration,
                private_data: &[u8],
            ) -> Result<($connected, Vec<u8>)> {
                let deadline = tcp::deadline(timeout);
                let exchange = Exchange::new(&self.endpoint(), private_data)?;
                let stream = tcp::connect(peer, deadline)?;
                let met = tcp::meet(&stream, deadline, exchange, |remote| self.handshake(remote));
                watched(met, Ok(stream))
            }

            /// Connects over TCP to the next peer that [`connect`](Self::connect)s, within
            /// `timeout`. Several threads may accept on one listener, which blocks afterwards.
            ///
            /// # Errors
            ///
            /// As [`connect`](Self::connect).
            pub fn accept(self, listener: &TcpListener, timeout: Duration) -> Result<$connected> {
                let (connected, _) = self.accept_with(listener, timeout, &[])?;
                Ok(connected)
            }

            /// [`accept`](Self::accept), and gives the peer up to
            /// [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) bytes with it. The peer's
            /// come back.
            ///
            /// # Errors
            ///
            /// As [`connect`](Self::connect).
            pub fn accept_with(
                self,
                listener: &TcpListener,
                timeout: Duration,
                private_data: &[u8],
            ) -> Result<($connected, Vec<u8>)> {
                let deadline = tcp::deadline(timeout);
                let exchange = Exchange::new(&self.endpoint(), private_data)?;
                let stream = tcp::accept(listener, deadline)?;
                let met = tcp::meet(&stream, deadline, exchange, |remote| self.handshake(remote));
                watched(met, Ok(stream))
            }

            /// Connects to the peer at the other end of a TCP connection, which does the same,
            /// within `timeout`. The peer's private data comes back.
            ///
            /// The connection stays the caller's, to talk on, and is shut down if the peers do not
            /// agree. It is left blocking, its timeouts as they were. The channel watches the peer by
            /// a duplicate, and sets keepalive: so do not shut it down, not even half, before the
            /// channel is done with, and drop it then. The peer notices that this side has left when
            /// both the channel and the connection are closed.
            ///
            /// # Errors
            ///
            /// As [`connect`](Self::connect).
            pub fn exchange(
                self,
                stream: &TcpStream,
                timeout: Duration,
                private_data: &[u8],
            ) -> Result<($connected, Vec<u8>)> {
                let deadline = tcp::deadline(timeout);
                let exchange = Exchange::new(&self.endpoint(), private_data)?;
                let met = tcp::meet(stream, deadline, exchange, |remote| self.handshake(remote));
                watched(met, stream.try_clone())
            }
        }
    };
}

/// Gives a channel the connection over which it has met its peer.
fn watched<C: WatchPeer>(
    met: Result<(C, Vec<u8>)>,
    stream: io::Result<TcpStream>,
) -> Result<(C, Vec<u8>)> {
    let (mut connected, private_data) = met?;
    let peer = stream
        .as_ref()
        .ok()
        .and_then(|stream| stream.peer_addr().ok());
    let watched = stream
        .map_err(|error| ExchangeError::not_watched(error).into())
        .and_then(|stream| connected.watch(stream));
    watched.map_err(|error| match error {
        Error::Exchange(failure) => failure.with_peer(peer).into(),
        error => error,
    })?;
    Ok((connected, private_data))
}

/// What can watch its peer.
trait WatchPeer {
    fn watch(&mut self, stream: TcpStream) -> Result<()>;
}

impl WatchPeer for Channel {
    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }
}

impl WatchPeer for ConnectedMember {
    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }
}

over_tcp!(PreparedChannel => Channel);
over_tcp!(PreparedMember => ConnectedMember);
