//! Prepared channels: not connected yet.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, PreparedQueuePair, QueuePair, QueuePairEndpoint,
};

use super::tcp;
use crate::channel::Channel;
use crate::config::ChannelBuilder;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeError};
use crate::waiting::Poller;

/// A channel that is not connected yet.
///
/// [`connect`](Self::connect) and [`accept`](Self::accept) connect it over TCP. To connect it in
/// another way, send its [`endpoint`](Self::endpoint) to the peer, receive that of the peer, and
/// call [`handshake`](Self::handshake). Neither side may send before both have done that:
///
/// ```no_run
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// use verbs_channel::verbs_core::QueuePairEndpoint;
/// use verbs_channel::{Channel, PreparedChannel};
///
/// fn connect(
///     prepared: PreparedChannel,
///     mut stream: UnixStream,
/// ) -> Result<Channel, Box<dyn std::error::Error>> {
///     stream.write_all(&prepared.endpoint().to_bytes())?;
///     let mut bytes = [0; QueuePairEndpoint::BYTES];
///     stream.read_exact(&mut bytes)?;
///     let mut channel = prepared.handshake(&QueuePairEndpoint::from_bytes(&bytes)?)?;
///     // Each side waits until the other one is connected, too.
///     stream.write_all(&[1])?;
///     stream.read_exact(&mut [0])?;
///     channel.watch_peer(stream)?;
///     Ok(channel)
/// }
/// ```
///
/// `T` is the type that it becomes: a [`Channel`], or a [`ConnectedMember`](crate::ConnectedMember),
/// which can [join](crate::ChannelGroup::join) its group. It does not borrow the group, so another
/// thread can connect it while the group is in use.
pub struct PreparedChannel<T: Connected = Channel> {
    qp: PreparedQueuePair,
    rest: T::Rest,
}

/// The type that a [`PreparedChannel`] becomes.
pub trait Connected: sealed::Connected {}

pub(crate) mod sealed {
    use std::net::TcpStream;

    use verbs_core::QueuePair;

    use crate::error::Result;

    #[expect(unnameable_types, reason = "seals `Connected`")]
    pub trait Connected: Sized {
        /// Its parts other than the queue pair.
        type Rest;

        fn assemble(qp: QueuePair, rest: Self::Rest) -> Self;

        /// Watches the peer by the TCP connection of the exchange.
        fn watch(&mut self, stream: TcpStream) -> Result<()>;
    }
}

/// The parts of a channel that does not belong to a group, other than its queue pair.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Alone {
    cq: CompletionQueue,
    completion_channel: Option<CompletionChannel>,
    config: ChannelBuilder,
}

impl Connected for Channel {}

impl sealed::Connected for Channel {
    type Rest = Alone;

    fn assemble(qp: QueuePair, rest: Alone) -> Self {
        let Alone {
            cq,
            completion_channel,
            config,
        } = rest;
        let mut engine = Engine::new(config.pd.clone(), cq, config.engine_limits(1));
        engine.add(qp, config.member_limits().capacities);
        let poller = Poller::new(engine, config.waits(), completion_channel);
        Self::new(poller, config)
    }

    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }
}

impl PreparedChannel {
    /// A new queue pair, on a completion queue of its own.
    pub(crate) fn alone(config: ChannelBuilder) -> Result<Self> {
        let (cq, completion_channel) = config.queue(1)?;
        let qp = config.queue_pair(&cq)?;
        let rest = Alone {
            cq,
            completion_channel,
            config,
        };
        Ok(Self::new(qp, rest))
    }
}

impl<T: Connected> PreparedChannel<T> {
    pub(crate) const fn new(qp: PreparedQueuePair, rest: T::Rest) -> Self {
        Self { qp, rest }
    }

    /// The endpoint of this side, which the peer needs to connect.
    #[must_use]
    pub fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// Connects to the peer's endpoint. The peer must do the same with the endpoint of this side.
    ///
    /// On RoCE the kernel looks up the peer's GID during this call, which takes about a second if no host
    /// answers. The channel does not [watch its peer](Channel::watch_peer) yet.
    ///
    /// # Errors
    ///
    /// Those of [`PreparedQueuePair::handshake`].
    pub fn handshake(self, remote: &QueuePairEndpoint) -> Result<T> {
        let qp = self.qp.handshake(remote)?;
        Ok(T::assemble(qp, self.rest))
    }

    /// Connects over TCP to a peer that calls [`accept`](Self::accept), within `timeout`.
    ///
    /// While the peer does not listen yet, this tries again. Two steps are not cut short by `timeout`. A
    /// name is resolved first by the system's resolver, which has timeouts of its own: pass an address to
    /// avoid that. On RoCE the kernel looks up the peer's GID, which takes about a second if no host
    /// answers.
    ///
    /// # Errors
    ///
    /// - [`Error::Exchange`](crate::Error::Exchange): the peer refused the connection (with its
    ///   reason), did not answer in time, closed the connection, or uses another protocol.
    /// - [`Error::Core`](crate::Error::Core): the queue pair of this side could not be connected. The
    ///   peer is sent the reason.
    pub fn connect(self, peer: impl ToSocketAddrs, timeout: Duration) -> Result<T> {
        let (connected, _) = self.connect_with(peer, timeout, &[])?;
        Ok(connected)
    }

    /// [`connect`](Self::connect) with private data: each side sends the other up to
    /// [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) bytes.
    ///
    /// Returns the channel and the peer's private data.
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

    /// Connects to the next peer that calls [`connect`](Self::connect), within `timeout`.
    ///
    /// Several threads may accept on one listener. The listener is in blocking mode afterwards.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn accept(self, listener: &TcpListener, timeout: Duration) -> Result<T> {
        let (connected, _) = self.accept_with(listener, timeout, &[])?;
        Ok(connected)
    }

    /// [`accept`](Self::accept) with private data: each side sends the other up to
    /// [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) bytes.
    ///
    /// Returns the channel and the peer's private data.
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

    /// Connects to the peer at the other end of a TCP connection, within `timeout`. The peer must do the
    /// same.
    ///
    /// Returns the channel and the peer's private data. The TCP connection can be used afterwards: it is
    /// in blocking mode then, with its timeouts unchanged. If the exchange fails, it is shut down.
    ///
    /// The channel watches the peer by a duplicate of the connection, and sets keepalive on it. So do
    /// not shut the connection down, not even one direction, while the channel is in use. Drop it
    /// together with the channel: the peer notices that this side has left only when both are closed.
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

/// Passes a channel the TCP connection of its exchange, to watch the peer by.
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
