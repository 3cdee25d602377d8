//! The ways in which a prepared channel connects.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::{ConnectRequest, Listener};

use super::accept::accept;
#[cfg(feature = "rdmacm")]
use super::cm::CmExchange;
use super::datagrams::DatagramListener;
use super::deadline::Deadline;
use super::options::Connect;
use super::peer::{Met, Peer, PeerAddr};
use super::prepared::{Connected, PreparedChannel};
use super::{datagrams, tcp};
#[expect(unused_imports, reason = "named in documentation")]
use crate::channel::{Channel, ChannelConfig};
use crate::datagrams::Datagrams;
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::RejectReason;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeError, Side};

impl<T: Connected> PreparedChannel<T> {
    /// Connects to a peer, within the timeout of the [options](Connect): over TCP unless the [`Peer`] names another
    /// way. The peer [accepts](Self::accept) in the same way.
    ///
    /// While the peer does not listen yet, this tries again. Two steps are not limited by the timeout. A
    /// name is first resolved by the system's resolver, which has its own timeouts: pass an address to
    /// avoid that. On RoCE the kernel looks up the peer's GID, which takes about a second if no host
    /// answers.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, Connect, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).build()?;
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?.channel;
    ///
    /// // With data for the peer, and the peer's:
    /// let options = Connect::within(Duration::from_secs(10)).private_data(b"hello");
    /// let met = Channel::builder(&pd).build()?.connect("server:7471", options)?;
    /// println!("{:?} sent {:?}", met.peer, met.private_data);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Over TCP
    ///
    /// The two exchange their endpoints over a TCP connection, through which the channel then [watches its
    /// peer](Channel::watch_peer).
    ///
    /// On iWARP (feature `rdmacm`) the peer sends the address at which its device listens for this connection:
    /// the local address of the TCP connection if it belongs to the device, otherwise the first of
    /// [these](verbs_core::Context::local_addr). This side connects to that address, which may differ from the
    /// one of the TCP connection, so it must be reachable from here. If that fails, or the time is over, giving
    /// up takes up to 7 s more on soft-iWARP. If nothing answers at that address, it takes as long as the
    /// kernel tries to connect by TCP (about two minutes by default).
    ///
    /// # By `rdma_cm`
    ///
    /// A peer of the kind `Peer::cm("192.0.2.1:7471")` (feature `rdmacm`) has the address of an RDMA device, such as
    /// its IP address on RoCE. It is a program that uses this crate, or any other with
    /// [raw](Connect::raw_private_data) private data.
    ///
    /// The address determines the device, and the channel must be of that device. `rdma_cm` chooses the GID, the
    /// path and the packet sequence numbers, and the service level and the traffic class unless the builder has one
    /// other than 0. The other settings are those of the builder, and the peer gets no access beyond
    /// [`qp_access_flags`](ChannelConfig::qp_access_flags). On iWARP the side that connects must send first: a
    /// device may end the connection if the other does.
    ///
    /// A channel watches its peer by the connection of `rdma_cm`: it goes down when the peer disconnects or its
    /// process ends. `rdma_cm` does not notice that the peer's host has died: then only requests in flight
    /// fail, after their retries. Ending the connection, when a channel goes down or is dropped, takes about
    /// 10 ms on soft-RoCE, and up to 7 s on soft-iWARP.
    ///
    /// # Over datagrams
    ///
    /// `Peer::Datagrams(&mut datagrams, server)` is a peer with a [`DatagramListener`](crate::connect::DatagramListener) at
    /// the datagram endpoint `server`. Lost datagrams are sent again. Others that arrive meanwhile are dropped.
    ///
    /// **The channel does not watch its peer**: there is no TCP connection through which to watch
    /// it. The death of the peer is noticed only when this side sends, writes or reads, which then
    /// fails with `RETRY_EXC_ERR`. A channel that only receives never notices it. So set its
    /// [`timeout`](ChannelConfig::timeout), and treat a receive that times out as the end
    /// of the peer; or send something to the peer now and then; or pass the channel a descriptor
    /// that ends with the peer, with [`watch_peer`](Channel::watch_peer).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::verbs_core::Context;
    /// use verbs_channel::verbs_core::path::DatagramEndpoint;
    /// use verbs_channel::{Channel, Datagrams, Peer};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let mut datagrams = Datagrams::builder(&pd).build()?;
    /// let server = DatagramEndpoint::from_bytes(&std::fs::read("/shared/server")?)?;
    /// let prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// let peer = Peer::Datagrams(&mut datagrams, server);
    /// let mut channel = prepared.connect(peer, Duration::from_secs(10))?.channel;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Exchange`](crate::Error::Exchange): the peer refused the connection (with its
    ///   reason), did not answer in time, closed the connection, or uses another protocol; by `rdma_cm` its address
    ///   may be that of [another device](ExchangeError::OtherDevice), or [a step](ExchangeError::Manager) failed.
    /// - [`Error::Core`](crate::Error::Core): the queue pair of this side could not be connected. Over TCP and
    ///   datagrams the peer is sent the reason; by `rdma_cm` it notices only that there is no connection. On iWARP without the
    ///   feature `rdmacm` it is [`NeedsRdmaCm`](verbs_core::Error::NeedsRdmaCm), at once.
    /// - [`RejectReason::Down`]: the datagram endpoint has failed.
    pub fn connect<'d>(
        self,
        peer: impl Into<Peer<&'d mut Datagrams>>,
        options: impl Into<Connect>,
    ) -> Result<Met<T>> {
        let (options, begun) = (options.into(), Instant::now());
        let deadline = Deadline::since(begun, options.timeout());
        match peer.into() {
            Peer::Tcp(address) => {
                let exchange = self.exchange_of(Side::Connects, &options)?;
                let stream = tcp::connect(&address, deadline)?;
                self.meet(&stream, deadline, exchange, &options)
            }
            #[cfg(feature = "rdmacm")]
            Peer::Cm(address) => {
                let addresses = address.resolve()?;
                super::cm_blocking::run(
                    CmExchange::connect(self, addresses, &options, begun)?,
                    None,
                )
            }
            Peer::Datagrams(datagrams, server) => {
                datagrams::connect(self, datagrams, &server, &options)
            }
        }
    }

    /// Connects to the next peer that [connects](Self::connect), within the timeout of the [options](Connect): over
    /// TCP, by `rdma_cm` or over datagrams, according to the listener.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::net::TcpListener;
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let listener = TcpListener::bind("0.0.0.0:7471")?;
    /// loop {
    ///     let prepared = Channel::builder(&pd).build()?;
    ///     let mut channel = prepared.accept(&listener, Duration::from_secs(60))?.channel;
    ///     // …
    /// }
    /// # }
    /// ```
    ///
    /// # Over TCP
    ///
    /// Several threads may accept on one [`TcpListener`](std::net::TcpListener). Its mode never changes: a blocking
    /// [`accept`](std::net::TcpListener::accept) in another thread waits as ever. If something else accepts on the
    /// same socket too (such a thread, or another process), it may take a connection just before this call does,
    /// which then waits past the timeout for the next peer. Put the listener into non-blocking mode before, and this
    /// call always keeps its timeout.
    ///
    /// # By `rdma_cm`
    ///
    /// With a [`Listener`](verbs_core::rdmacm::Listener) (feature `rdmacm`), this accepts the next request.
    /// If that is of a peer that uses another protocol, the peer is rejected, and the call returns the error: the
    /// next request needs another prepared channel. With a
    /// [`ConnectRequest`](verbs_core::rdmacm::ConnectRequest) it accepts that one, for a server that looks at
    /// requests itself, such as one whose peers do not use this crate:
    ///
    /// ```no_run
    /// # #[cfg(feature = "rdmacm")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{BufferPool, Channel, Connect};
    /// use verbs_channel::verbs_core::{Context, rdmacm::Listener};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, 4096, 16)?;
    /// let mut listener = Listener::bind("0.0.0.0:5640".parse()?, 16)?;
    /// let options = Connect::within(Duration::from_secs(5)).raw_private_data(b"");
    /// while let Some(request) = listener.request(None)? {
    ///     println!("{:?} sends {:?}", request.peer_addr(), request.private_data().as_bytes());
    ///     let mut prepared = Channel::builder(&pd).build()?;
    ///     while let Some(block) = pool.take() {
    ///         prepared.start_receive(block)?;
    ///     }
    ///     let mut channel = prepared.accept(request, &options)?.channel;
    ///     // …
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "rdmacm"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Over datagrams
    ///
    /// With a [`DatagramListener`](crate::connect::DatagramListener), this side's queue pair is connected when a client is
    /// ready, and until then it is no client's. While others wait, a client has 300 ms of silence to become ready, or
    /// 600 ms if it asks again. Then the next one is sent the same offer, and the first that is ready is accepted: so
    /// a client that never confirms delays another no longer. One that becomes ready too late is refused. One that
    /// has not received the offer, and clients whose turn has not come, wait for the next call. If no other waits, a
    /// client that is silent for five seconds, or refuses, is an error here. If the client's last datagram is lost,
    /// this takes a quarter of a second longer.
    ///
    /// If every answer to a client was lost, the client may have failed although this side has its
    /// channel. Then the first request that this side sends to it fails.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(
        self,
        from: impl Into<Accept<'a>>,
        options: impl Into<Connect>,
    ) -> Result<Met<T>> {
        let (options, begun) = (options.into(), Instant::now());
        let deadline = Deadline::since(begun, options.timeout());
        match from.into() {
            Accept::Tcp(listener) => {
                let exchange = self.exchange_of(Side::Accepts, &options)?;
                let stream = accept(listener, deadline)?;
                self.meet(&stream, deadline, exchange, &options)
            }
            #[cfg(feature = "rdmacm")]
            Accept::Cm(listener) => {
                options.check_cm()?;
                let request = super::cm_blocking::next_request(listener, deadline)?;
                super::cm_blocking::run(CmExchange::accept(self, request, &options, begun)?, None)
            }
            #[cfg(feature = "rdmacm")]
            Accept::CmRequest(request) => {
                super::cm_blocking::run(CmExchange::accept(self, *request, &options, begun)?, None)
            }
            Accept::Datagrams(listener) => datagrams::accept(self, listener, &options),
        }
    }

    /// Connects to the peer at the other end of a TCP connection, within the timeout of the [options](Connect). The
    /// peer must do the same.
    ///
    /// The TCP connection can be used afterwards, in blocking mode and with its timeouts unchanged. If the exchange
    /// fails, it is shut down.
    ///
    /// The channel watches the peer through a duplicate of the connection, and sets keepalive on
    /// it, unless the options [say otherwise](Connect::watch_peer). So do not shut the connection down, not even one
    /// direction, while the channel is in use. Drop it together with the channel: the peer notices that this side
    /// has left only when both are closed.
    ///
    /// On iWARP one of the two sides connects by `rdma_cm` to an address that the other sent. A server that does not
    /// trust its clients should call [`accept`](Self::accept) instead, or set [`Side::Accepts`](Connect::side): then
    /// it connects nowhere.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn exchange(self, stream: &TcpStream, options: impl Into<Connect>) -> Result<Met<T>> {
        let options = options.into();
        let exchange = self.exchange_of(options.stream_side(), &options);
        let exchange = exchange.inspect_err(|error| {
            // Otherwise it is this call that is wrong, and the caller may try again.
            if matches!(error, Error::Core(_)) {
                tcp::refuse(stream, options.timeout(), error);
            }
        })?;
        self.meet(
            stream,
            Deadline::after(options.timeout()),
            exchange,
            &options,
        )
    }

    /// Runs an exchange, and watches the peer.
    fn meet(
        self,
        stream: &TcpStream,
        deadline: Deadline,
        exchange: Exchange,
        options: &Connect,
    ) -> Result<Met<T>> {
        // The address is not available after the peer has reset the connection.
        let peer = stream.peer_addr().ok();
        let (mut channel, private_data) = tcp::meet(stream, deadline, exchange, |exchange| {
            #[cfg(feature = "rdmacm")]
            if let Some(meeting) = exchange.meeting().cloned() {
                return super::cm_blocking::meet(self, (stream, deadline), exchange, &meeting);
            }
            let peer = exchange.peer().ok_or(ExchangeError::Over)?;
            self.handshake(&peer.endpoint)
        })?;
        if options.watches_peer() {
            let watched = stream.try_clone();
            let watched = watched
                .map_err(|error| ExchangeError::not_watched(error).into())
                .and_then(|stream| channel.watch(stream.into()));
            watched.map_err(|error| {
                // Best effort, as for an exchange that fails.
                drop(stream.shutdown(Shutdown::Both));
                error.with_peer(peer)
            })?;
        }
        Ok(Met::new(channel, private_data, peer.map(PeerAddr::Socket)))
    }
}

impl PreparedChannel {
    /// Refuses a peer that [connects](Self::connect), and sends it the reason: the peer at the other end of a TCP
    /// connection, which is shut down, or one that asks by `rdma_cm`. It needs no queue pair.
    ///
    /// It is for a server that is full, or does not accept this peer. Over TCP it takes at most `timeout`. By
    /// `rdma_cm` the call does not wait for the peer, and `timeout` has no effect; but rejecting the request and
    /// destroying its identifier may block in the kernel. If the reason cannot be sent, the peer notices only that the
    /// connection ended.
    ///
    /// ```no_run
    /// # fn example(stream: std::net::TcpStream) {
    /// use std::time::Duration;
    /// use verbs_channel::PreparedChannel;
    ///
    /// let full = std::io::Error::other("no room for another client");
    /// PreparedChannel::refuse(&stream, Duration::from_secs(1), &full);
    /// # }
    /// ```
    #[doc(alias = "rdma_reject")]
    pub fn refuse<'a>(
        caller: impl Into<Caller<'a>>,
        timeout: Duration,
        why: &(dyn std::error::Error + 'static),
    ) {
        match caller.into() {
            Caller::Tcp(stream) => tcp::refuse(stream, timeout, why),
            #[cfg(feature = "rdmacm")]
            Caller::Cm(request) => super::cm::reject(*request, why),
        }
    }
}

/// Where the next peer comes from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Accept<'a> {
    /// The next TCP connection.
    Tcp(&'a TcpListener),
    /// The next request of `rdma_cm`. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    Cm(&'a mut Listener),
    /// This request of `rdma_cm`. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    CmRequest(Box<ConnectRequest>),
    /// The next client over datagrams.
    Datagrams(&'a mut DatagramListener),
}

impl<'a> From<&'a TcpListener> for Accept<'a> {
    fn from(listener: &'a TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(feature = "rdmacm")]
impl<'a> From<&'a mut Listener> for Accept<'a> {
    fn from(listener: &'a mut Listener) -> Self {
        Self::Cm(listener)
    }
}

#[cfg(feature = "rdmacm")]
impl From<ConnectRequest> for Accept<'_> {
    fn from(request: ConnectRequest) -> Self {
        Self::CmRequest(Box::new(request))
    }
}

impl<'a> From<&'a mut DatagramListener> for Accept<'a> {
    fn from(listener: &'a mut DatagramListener) -> Self {
        Self::Datagrams(listener)
    }
}

/// A peer that [is refused](crate::PreparedChannel::refuse).
#[derive(Debug)]
#[non_exhaustive]
pub enum Caller<'a> {
    /// At the other end of this TCP connection.
    Tcp(&'a TcpStream),
    /// That asks by `rdma_cm`. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    Cm(Box<ConnectRequest>),
}

impl<'a> From<&'a TcpStream> for Caller<'a> {
    fn from(stream: &'a TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

#[cfg(feature = "rdmacm")]
impl From<ConnectRequest> for Caller<'_> {
    fn from(request: ConnectRequest) -> Self {
        Self::Cm(Box::new(request))
    }
}
