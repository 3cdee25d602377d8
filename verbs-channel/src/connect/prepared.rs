//! What is prepared and not connected yet, and how it meets its peer.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, PreparedQueuePair, QueuePair, QueuePairEndpoint,
};

use super::tcp;
use crate::channel::Channel;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeError};

/// A channel that is not connected yet.
///
/// [`connect`](Self::connect) and [`accept`](Self::accept) do it over TCP. For any other way send
/// its [`endpoint`](Self::endpoint) to the peer, get the peer's, and
/// [`handshake`](Self::handshake); neither side may send before both have done that.
///
/// `T` is what it becomes: a [`Channel`], or for a group a
/// [`ConnectedMember`](crate::ConnectedMember), which can [join](crate::ChannelGroup::join) it. One
/// for a group does not borrow the group, so another thread can connect it while the group goes on.
pub struct PreparedChannel<T: Connected = Channel> {
    qp: PreparedQueuePair,
    rest: T::Rest,
}

/// What a [`PreparedChannel`] becomes.
pub trait Connected: sealed::Connected {}

pub(crate) mod sealed {
    use std::net::TcpStream;

    use verbs_core::QueuePair;

    use crate::error::Result;

    #[expect(unnameable_types, reason = "seals `Connected`")]
    pub trait Connected: Sized {
        /// What it is made of, beside its queue pair.
        type Rest;

        fn assemble(qp: QueuePair, rest: Self::Rest) -> Self;

        /// Watches the peer by the connection over which they have met.
        fn watch(&mut self, stream: TcpStream) -> Result<()>;
    }
}

/// What a channel of its own is made of, beside its queue pair.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Alone {
    cq: CompletionQueue,
    announcer: Option<CompletionChannel>,
    config: Config,
}

impl Connected for Channel {}

impl sealed::Connected for Channel {
    type Rest = Alone;

    fn assemble(qp: QueuePair, rest: Alone) -> Self {
        let Alone {
            cq,
            announcer,
            config,
        } = rest;
        let mut engine = Engine::new(config.pd.clone(), cq, announcer, config.waits());
        engine.add(qp, config.capacities());
        Self::new(engine, config)
    }

    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }
}

impl PreparedChannel {
    /// A new queue pair, on a completion queue of its own.
    pub(crate) fn alone(config: Config) -> Result<Self> {
        let (cq, announcer) = config.queue(1)?;
        let qp = config.queue_pair(&cq)?;
        let rest = Alone {
            cq,
            announcer,
            config,
        };
        Ok(Self::new(qp, rest))
    }
}

impl<T: Connected> PreparedChannel<T> {
    pub(crate) const fn new(qp: PreparedQueuePair, rest: T::Rest) -> Self {
        Self { qp, rest }
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
    pub fn handshake(self, remote: &QueuePairEndpoint) -> Result<T> {
        let qp = self.qp.handshake(remote)?;
        Ok(T::assemble(qp, self.rest))
    }

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
    pub fn connect(self, peer: impl ToSocketAddrs, timeout: Duration) -> Result<T> {
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
    ) -> Result<(T, Vec<u8>)> {
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
    pub fn accept(self, listener: &TcpListener, timeout: Duration) -> Result<T> {
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
    ) -> Result<(T, Vec<u8>)> {
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
    ) -> Result<(T, Vec<u8>)> {
        let deadline = tcp::deadline(timeout);
        let exchange = Exchange::new(&self.endpoint(), private_data)?;
        let met = tcp::meet(stream, deadline, exchange, |remote| self.handshake(remote));
        watched(met, stream.try_clone())
    }
}

impl<T: Connected> fmt::Debug for PreparedChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreparedChannel").field(&self.qp).finish()
    }
}

/// Gives a channel the connection over which it has met its peer.
fn watched<T: Connected>(
    met: Result<(T, Vec<u8>)>,
    stream: io::Result<TcpStream>,
) -> Result<(T, Vec<u8>)> {
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
