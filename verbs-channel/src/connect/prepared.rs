//! Prepared channels: not connected yet.

use std::fmt;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;
use verbs_core::{
    CompletionChannel, CompletionQueue, Context, PreparedQueuePair, QueuePair, QueuePairEndpoint,
    Rejected,
};

use super::accept::accept;
#[cfg(feature = "rdmacm")]
use super::cm::CmExchange;
use super::deadline::Deadline;
use super::options::Connect;
use super::peer::{Accept, Caller, Met, Peer, PeerAddr};
use super::{datagrams, tcp, unlocked};
use crate::buffer::{OwnedBuffer, PdTag};
use crate::channel::{Channel, ChannelConfig};
use crate::datagrams::Datagrams;
use crate::engine::Engine;
use crate::error::{Error, RejectReason, Result};
use crate::exchange::{Exchange, ExchangeError, Side};
use crate::waiting::Poller;

/// A channel that is not connected yet.
///
/// [`connect`](Self::connect) and [`accept`](Self::accept) connect it over TCP, by `rdma_cm` or over datagrams, and
/// [`exchange`](Self::exchange) over a TCP connection that there is. To connect it in another way, send its [`endpoint`](Self::endpoint) to the peer, receive the peer's endpoint,
/// and call [`handshake`](Self::handshake). Neither side may send before both have done this.
///
/// On iWARP queue pairs are connected by `rdma_cm` only, which needs the feature `rdmacm`. With it, connecting
/// over TCP works as on other devices: the accepting side sends an address of its device over TCP, and the
/// other side connects there. Only [`handshake`](Self::handshake) does not work.
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
/// Once connected, it becomes a `T`: a [`Channel`], or a
/// [`ConnectedMember`](crate::ConnectedMember), which can [join](crate::ChannelGroup::join) its
/// group. It does not borrow the group, so another thread can connect it while the group is in use.
pub struct PreparedChannel<T: Connected = Channel> {
    qp: PreparedQueuePair,
    rest: T::Rest,
    // Posted when it is connected, or joins its group.
    receives: Vec<OwnedBuffer>,
}

/// The type that a [`PreparedChannel`] becomes.
pub trait Connected: sealed::Connected {}

pub(crate) mod sealed {
    use std::net::TcpStream;

    use verbs_core::QueuePair;
    #[cfg(feature = "rdmacm")]
    use verbs_core::rdmacm::Connection;

    use crate::buffer::OwnedBuffer;
    use crate::error::{Queue, RejectReason, Result};

    #[expect(unnameable_types, reason = "seals `Connected`")]
    pub trait Connected: Sized {
        /// Its parts other than the queue pair.
        type Rest;

        /// Receives in flight at once.
        fn max_recv_wr(rest: &Self::Rest) -> u32;

        /// Why no receive can be started beyond those.
        fn no_receive(rest: &Self::Rest) -> RejectReason {
            RejectReason::full(Queue::Receive, Self::max_recv_wr(rest) as usize)
        }

        /// Its queue pair is about to be connected, and may receive from then on.
        fn begin(_rest: &mut Self::Rest) {}

        /// With receives to be posted before anything else.
        fn assemble(qp: QueuePair, rest: Self::Rest, receives: Vec<OwnedBuffer>) -> Result<Self>;

        /// Watches the peer through the TCP connection of the exchange.
        fn watch(&mut self, stream: TcpStream) -> Result<()>;

        /// Watches the peer through the connection of `rdma_cm`.
        #[cfg(feature = "rdmacm")]
        fn watch_connection(&mut self, connection: Connection) -> Result<()>;
    }
}

/// The parts of a channel that does not belong to a group, other than its queue pair.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Alone {
    cq: CompletionQueue,
    completion_channel: Option<CompletionChannel>,
    config: ChannelConfig,
}

impl Connected for Channel {}

impl sealed::Connected for Channel {
    type Rest = Alone;

    fn max_recv_wr(rest: &Alone) -> u32 {
        rest.config.max_recv_wr
    }

    fn assemble(qp: QueuePair, rest: Alone, receives: Vec<OwnedBuffer>) -> Result<Self> {
        let Alone {
            cq,
            completion_channel,
            config,
        } = rest;
        let mut engine = Engine::new(
            config.pd.clone(),
            cq,
            config.engine_limits(1, config.max_recv_wr),
        );
        let id = engine.add(qp, config.member_limits().capacities);
        engine.start_prepared(id, receives)?;
        let poller = Poller::new(engine, config.waits(), completion_channel);
        Ok(Self::new(poller, config))
    }

    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }

    #[cfg(feature = "rdmacm")]
    fn watch_connection(&mut self, connection: Connection) -> Result<()> {
        Self::watch_connection(self, connection)
    }
}

impl PreparedChannel {
    /// A new queue pair, on a completion queue of its own.
    pub(crate) fn alone(mut config: ChannelConfig) -> Result<Self> {
        config.in_flight = None;
        let (cq, completion_channel) = config.queue(1)?;
        let qp = unlocked::queue_pair(&config, &cq)?;
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
        Self {
            qp,
            rest,
            receives: Vec::new(),
        }
    }

    /// Its queue pair, to be shown to `rdma_cm`.
    #[cfg(feature = "rdmacm")]
    pub(super) const fn qp_mut(&mut self) -> &mut PreparedQueuePair {
        &mut self.qp
    }

    pub(super) fn context(&self) -> &Context {
        self.qp.pd().context()
    }

    /// The queue pair, the other parts, and the prepared receives.
    #[cfg(feature = "rdmacm")]
    pub(super) fn into_parts(mut self) -> (PreparedQueuePair, T::Rest, Vec<OwnedBuffer>) {
        T::begin(&mut self.rest);
        (self.qp, self.rest, self.receives)
    }

    /// Prepares a receive that is posted as soon as the channel is connected, so that the peer can send at
    /// once.
    ///
    /// - For a [`Channel`], it is posted when the queue pair has been connected, before the peer is sent
    ///   READY. So a peer that sends at once finds the receive. With a [`handshake`](Self::handshake) of
    ///   your own, the peer must not send before `handshake` has returned here. On iWARP, if this side
    ///   connects by `rdma_cm`, the accepting peer must not send before this side
    ///   has sent.
    /// - For a channel of a group, it is posted when the channel [joins](crate::ChannelGroup::join) it. If
    ///   the peer sends before that, its device sends again: see
    ///   [`rnr_retry`](ChannelConfig::rnr_retry).
    ///
    /// The receives are posted in the order of these calls, and before those that are started later. The
    /// channel has their tickets: [`prepared_receives`](Channel::prepared_receives).
    /// [`next_completed`](Channel::next_completed) takes them without a ticket, like all operations. If
    /// the connection fails, or this value is dropped, the buffer is dropped.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{BufferPool, Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, 4096, 8)?;
    /// let mut prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// while let Some(block) = pool.take() {
    ///     prepared.start_receive(block)?;
    /// }
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?.channel;
    /// for ticket in channel.prepared_receives() {
    ///     let (received, block) = channel.wait_success(ticket)?;
    ///     println!("{:?}", received.message_in(&block));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffer: [`RejectReason::Backpressure`] if there are
    /// [`max_recv_wr`](ChannelConfig::max_recv_wr) receives already,
    /// [`RejectReason::ElementTooLong`], or [`RejectReason::OtherDomain`].
    #[doc(alias = "ibv_post_recv")]
    pub fn start_receive(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, RejectReason>> {
        let buffer = buffer.into();
        if let Err(reason) = buffer.element(PdTag::of(self.qp.pd()), || false) {
            return Err(Rejected::new(reason, buffer));
        }
        if self.receives.len() >= T::max_recv_wr(&self.rest) as usize {
            return Err(Rejected::new(T::no_receive(&self.rest), buffer));
        }
        self.receives.push(buffer);
        Ok(())
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
    /// Those of [`PreparedQueuePair::handshake`], on iWARP always
    /// [`NeedsRdmaCm`](verbs_core::Error::NeedsRdmaCm); [`Error::Rejected`] if the driver rejects a [prepared
    /// receive](Self::start_receive).
    pub fn handshake(mut self, remote: &QueuePairEndpoint) -> Result<T> {
        T::begin(&mut self.rest);
        let qp = self.qp.handshake(remote)?;
        T::assemble(qp, self.rest, self.receives)
    }

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
    /// `Peer::Datagrams(&mut datagrams, server)` is a peer with a [`DatagramListener`](crate::DatagramListener) at
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
    /// use verbs_channel::verbs_core::{Context, DatagramEndpoint};
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
    /// - [`Error::Core`](crate::Error::Core): the queue pair of this side could not be connected. The
    ///   peer is sent the reason. On iWARP without the feature `rdmacm` it is
    ///   [`NeedsRdmaCm`](verbs_core::Error::NeedsRdmaCm), at once.
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
                super::cm::run(CmExchange::connect(self, addresses, &options, begun)?, None)
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
    /// With a [`Listener`](verbs_core::rdmacm::Listener) (feature `rdmacm`), this accepts the next request, and
    /// rejects that of a peer that uses another protocol. With a
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
    /// With a [`DatagramListener`](crate::DatagramListener), this side's queue pair is connected when a client is
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
                super::cm::check(&options)?;
                let request = super::cm::next_request(listener, deadline)?;
                super::cm::run(CmExchange::accept(self, request, &options, begun)?, None)
            }
            #[cfg(feature = "rdmacm")]
            Accept::CmRequest(request) => {
                super::cm::run(CmExchange::accept(self, *request, &options, begun)?, None)
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

    /// The exchange over a TCP connection that this side came to in this way.
    fn exchange_of(&self, side: Side, options: &Connect) -> Result<Exchange> {
        #[cfg(feature = "rdmacm")]
        if self.context().device().needs_rdma_cm() {
            return Ok(Exchange::by_manager(&options.private_data, side)?);
        }
        let _ = side;
        self.context().device().check_handshake()?;
        Ok(Exchange::new(&self.endpoint(), &options.private_data)?)
    }

    /// Runs an exchange, and watches the peer.
    fn meet(
        self,
        stream: &TcpStream,
        deadline: Deadline,
        exchange: Exchange,
        options: &Connect,
    ) -> Result<Met<T>> {
        let (mut channel, private_data) = tcp::meet(stream, deadline, exchange, |exchange| {
            #[cfg(feature = "rdmacm")]
            if let Some(meeting) = exchange.meeting().cloned() {
                return super::cm::meet(self, (stream, deadline), exchange, &meeting);
            }
            let peer = exchange.peer().ok_or(ExchangeError::Over)?;
            self.handshake(&peer.endpoint)
        })?;
        let peer = stream.peer_addr().ok();
        if options.watches_peer() {
            let watched = stream.try_clone();
            let watched = watched
                .map_err(|error| ExchangeError::not_watched(error).into())
                .and_then(|stream| channel.watch(stream));
            watched.map_err(|error| match error {
                Error::Exchange(failure) => failure.with_peer(peer).into(),
                error => error,
            })?;
        }
        Ok(Met::new(channel, private_data, peer.map(PeerAddr::Socket)))
    }
}

impl PreparedChannel {
    /// Refuses a peer that [connects](Self::connect), and sends it the reason: the peer at the other end of a TCP
    /// connection, which is shut down, or one that asks by `rdma_cm`. It needs no queue pair.
    ///
    /// It is for a server that is full, or does not accept this peer. It takes at most `timeout`. If the
    /// reason cannot be sent, the peer notices only that the connection ended.
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

impl<T: Connected> fmt::Debug for PreparedChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreparedChannel").field(&self.qp).finish()
    }
}
