//! Making channels: every knob and its default, and what is prepared but not connected.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, PreparedQueuePair, ProtectionDomain, QueuePairEndpoint,
};

use super::tcp;
use crate::channel::Channel;
use crate::config::{ChannelBuilder, Config, channel_builder};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeError};
use crate::group::{ConnectedMember, PreparedMember};

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

impl Channel {
    /// Begins a channel on a protection domain, whose regions it works on.
    ///
    /// Without a hint it works on InfiniBand and on RoCE; see
    /// [`QueuePair::builder`](verbs_core::QueuePair::builder) for what is chosen.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn builder(pd: &ProtectionDomain) -> ChannelBuilder<channel_builder::Empty> {
        Config::of(pd.clone())
    }

    /// A connected pair within this process, with default settings: for tests and first steps. Each
    /// watches the other, as two that have met over TCP do.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelBuilder::build`] and [`PreparedChannel::handshake`].
    pub fn loopback(pd: &ProtectionDomain) -> Result<(Self, Self)> {
        let left = Self::builder(pd).build()?;
        let right = Self::builder(pd).build()?;
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        let (to_right, to_left) = UnixStream::pair().map_err(ExchangeError::not_watched)?;
        left.watch_peer(to_right)?;
        right.watch_peer(to_left)?;
        Ok((left, right))
    }

    /// Prepares a channel with the same settings, to be connected anew. This one is closed by it:
    /// what was in flight is aborted; the results of owned buffers can still be taken from it.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelBuilder::build`].
    pub fn reset(&mut self) -> Result<PreparedChannel> {
        PreparedChannel::of(self.close().clone())
    }
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
        PreparedChannel::of(config)
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
    /// A new queue pair, on a completion queue of its own.
    pub(crate) fn of(config: Config) -> Result<Self> {
        let (cq, announcer) = config.queue(1)?;
        Ok(Self {
            qp: config.queue_pair(&cq)?,
            cq,
            announcer,
            config,
        })
    }

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
        let pd = self.config.pd.clone();
        let mut engine = Engine::new(pd, self.cq, self.announcer, self.config.waits());
        engine.add(qp, self.config.capacities());
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
