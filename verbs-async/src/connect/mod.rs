//! Connecting: over TCP, by `rdma_cm` or over datagrams, on any runtime.
//!
//! The protocols are those of [`verbs_channel::connect`], so either side can be blocking. Waits are for
//! the notifier of the group's [`CqEvents`], so there is nothing that belongs to one runtime.

mod callers;
mod clients;
#[cfg(feature = "rdmacm")]
mod cm;
mod datagrams;
mod deadline;
mod listener;
mod tcp;

use std::future::{Future, ready};
use std::io;
use std::net::TcpStream;

use verbs_channel::connect::Met;
use verbs_channel::engine::ConnectedMember;
#[expect(unused_imports, reason = "named in documentation")]
use verbs_channel::exchange::ExchangeError;
use verbs_channel::exchange::Side;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{Channel, Connect, Peer, PreparedChannel};

use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::{AsyncGroup, Prepared};
use crate::threads::on_thread::OnThread;
pub use callers::{Bind, HandshakeResult};
#[cfg(feature = "rdmacm")]
pub use cm::{CmDatagramListener, CmDatagramRequest};
use deadline::Deadline;
pub use listener::Listener;
use tcp::{check, dial};

impl AsyncGroup {
    /// Connects a new channel to a peer that accepts, within the timeout of the [options](Connect): over TCP unless
    /// the [`Peer`] names another way. The peer need not be async.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again. A name is resolved on a helper
    /// thread. See [`PreparedChannel::connect`] for the ways; over datagrams, `datagrams` are for one
    /// exchange at a time. Dropping the future ends everything.
    ///
    /// ```no_run
    /// # async fn example(group: &verbs_async::AsyncGroup) -> verbs_async::Result<()> {
    /// use std::time::Duration;
    /// use verbs_async::verbs_channel::Connect;
    ///
    /// let channel = group.connect("server:7471", Duration::from_secs(5)).await?.channel;
    ///
    /// // With data for the peer, and the peer's:
    /// let options = Connect::within(Duration::from_secs(5)).private_data(b"hello");
    /// let met = group.connect("server:7471", &options).await?;
    /// println!("{:?} sent {:?}", met.peer, met.private_data);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Channel`](crate::Error::Channel) with an [`ExchangeError`]: the peer refused the connection (with its
    /// reason), did not answer in time, closed the stream, or uses another protocol. With any other error this side
    /// could not connect or [join](Self::join), and the peer is sent the reason; by `rdma_cm` only if this side
    /// accepts.
    #[doc(alias = "rdma_connect")]
    pub async fn connect<'d>(
        &self,
        peer: impl Into<Peer<&'d AsyncDatagrams>>,
        options: impl Into<Connect>,
    ) -> Result<Met<AsyncChannel>> {
        let options = options.into();
        self.connect_to(peer.into(), &options, self.prepare_elsewhere())
            .await
    }

    /// [`connect`](Self::connect) for a channel that this group [prepared](Self::prepare). Its
    /// [prepared receives](PreparedChannel::start_receive) are posted before the peer may send.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_prepared<'d>(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        peer: impl Into<Peer<&'d AsyncDatagrams>>,
        options: impl Into<Connect>,
    ) -> impl Future<Output = Result<Met<AsyncChannel>>> {
        // Not in the future: it may never be polled.
        let prepared = OnThread::new(prepared);
        let (peer, options) = (peer.into(), options.into());
        async move { self.connect_to(peer, &options, ready(Ok(prepared))).await }
    }

    async fn connect_to(
        &self,
        peer: Peer<&AsyncDatagrams>,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
    ) -> Result<Met<AsyncChannel>> {
        let deadline = Deadline::after(options.timeout(), &self.shared().events);
        match peer {
            Peer::Tcp(address) => {
                check(self, options)?;
                let (stream, address) = dial(address, &deadline).await?;
                let end = (stream, Side::Connects, Some(address));
                self.exchange_over(end, options, prepared, &deadline).await
            }
            #[cfg(feature = "rdmacm")]
            Peer::Cm(address) => self.connect_cm(address, options, prepared, &deadline).await,
            Peer::Datagrams(datagrams, server) => {
                let ends = (datagrams, server);
                self.connect_over(ends, options, prepared, &deadline).await
            }
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    }

    /// Listens for peers that [connect](Self::connect), each with the timeout and the private data of the
    /// [options](Connect): over TCP, by `rdma_cm` or over datagrams, according to [where](Bind).
    ///
    /// # Errors
    ///
    /// It cannot listen there: the address is in use, for example. Or the private data are too long, or the device
    /// [needs `rdma_cm`](verbs_channel::verbs_core::Error::NeedsRdmaCm).
    #[doc(alias = "rdma_listen")]
    pub fn listen(
        &self,
        on: impl Into<Bind>,
        options: impl Into<Connect>,
    ) -> impl Future<Output = Result<Listener>> {
        // Not in the future: it may never be polled.
        let (on, options) = (OnThread::new(on.into()), options.into());
        async move { Listener::new(self, on, options).await }
    }

    /// Connects a new channel to the peer at the other end of a TCP connection, which does the same, within the
    /// timeout of the [options](Connect).
    ///
    /// The stream may be of any runtime: `into_std` of tokio's `TcpStream`, for example. It is set to non-blocking
    /// mode. To use it afterwards, pass a clone ([`TcpStream::try_clone`]), and drop the other together with the
    /// channel: the channel [watches the peer](AsyncChannel::watch_peer) through it, and the peer notices that this
    /// side has left only when all are closed. If the exchange fails, or its future is dropped, the stream is shut
    /// down.
    ///
    /// Over a stream of another kind, such as an encrypted one, run an [`Exchange`](verbs_channel::exchange::Exchange)
    /// yourself, with a [prepared](Self::prepare) channel and its [`handshake`](Self::handshake).
    ///
    /// On iWARP one of the two sides connects by `rdma_cm` to an address that the other sent. A server that does not
    /// trust its clients should use a [`Listener`] instead, which connects nowhere, or set
    /// [`Side::Accepts`](Connect::side).
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio")]
    /// # async fn example(group: &verbs_async::AsyncGroup) -> verbs_async::Result<()> {
    /// use std::time::Duration;
    ///
    /// let stream = tokio::net::TcpStream::connect("server:7471").await?.into_std()?;
    /// let channel = group.exchange(stream, Duration::from_secs(5)).await?.channel;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn exchange(
        &self,
        stream: TcpStream,
        options: impl Into<Connect>,
    ) -> Result<Met<AsyncChannel>> {
        let options = options.into();
        self.exchange_within(stream, options, self.prepare_elsewhere())
            .await
    }

    /// [`exchange`](Self::exchange) for a channel that this group [prepared](Self::prepare). Its
    /// [prepared receives](PreparedChannel::start_receive) are posted before the peer may send.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn exchange_prepared(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        stream: TcpStream,
        options: impl Into<Connect>,
    ) -> impl Future<Output = Result<Met<AsyncChannel>>> {
        // Not in the future: it may never be polled.
        let prepared = OnThread::new(prepared);
        self.exchange_within(stream, options.into(), ready(Ok(prepared)))
    }

    /// Accepts a peer that asks by `rdma_cm`, for a channel that this group [prepared](Self::prepare). Needs the
    /// feature `rdmacm`.
    ///
    /// It is for a server that takes the requests of a [`Listener`](verbs_channel::verbs_core::rdmacm::Listener) itself, such as one
    /// with a group for each client. Others [listen](Self::listen).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    #[cfg(feature = "rdmacm")]
    #[doc(alias = "rdma_accept")]
    pub fn accept_prepared(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        request: cm::ConnectRequest,
        options: impl Into<Connect>,
    ) -> impl Future<Output = Result<Met<AsyncChannel>>> {
        // Not in the future: it may never be polled.
        let (prepared, request) = (OnThread::new(prepared), OnThread::new(request));
        let options = options.into();
        async move {
            let deadline = Deadline::after(options.timeout(), &self.shared().events);
            let met = self.accept_cm(request, &options, ready(Ok(prepared)), &deadline);
            deadline.bound("confirm", met).await
        }
    }

    async fn exchange_within(
        &self,
        stream: TcpStream,
        options: Connect,
        prepared: impl Future<Output = Result<Prepared>>,
    ) -> Result<Met<AsyncChannel>> {
        let deadline = Deadline::after(options.timeout(), &self.shared().events);
        let peer = stream.peer_addr().ok();
        let end = (stream, options.stream_side(), peer);
        self.exchange_over(end, &options, prepared, &deadline).await
    }
}

impl AsyncChannel {
    /// Connects to a peer that accepts: a channel with default settings, in a group of its own, whose
    /// completions are announced by `events`.
    ///
    /// [`AsyncGroup::connect`] shares a queue among channels. This program is both ends of a connection: without
    /// arguments it answers one question, and with `HOST:7471 QUESTION` it asks one.
    ///
    /// ```no_run
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// # #[cfg(feature = "tokio")]
    /// # mod example {
    /// use std::{env, error::Error, time::Duration};
    ///
    /// use verbs_async::verbs_channel::{BufferPool, Channel};
    /// use verbs_async::verbs_core::Context;
    /// use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};
    ///
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn Error>> {
    ///     let args: Vec<String> = env::args().skip(1).collect();
    ///     if !matches!(args.len(), 0 | 2) {
    ///         return Err("arguments: none, or HOST:7471 QUESTION".into());
    ///     }
    ///     let pd = Context::first_active()?.alloc_pd()?;
    ///     let events = CqEvents::create_tokio(pd.context())?;
    ///     let pool = BufferPool::new(&pd, 4096, 4)?;
    ///     let timeout = Duration::from_secs(10);
    ///     if let [server, question] = &args[..] {
    ///         let met = AsyncChannel::connect(&pd, &events, server, timeout).await?;
    ///         let channel = met.channel;
    ///         // The receive is posted before the question is sent.
    ///         let answer = channel.receive(pool.take_when_free().await);
    ///         let question = pool.take_when_free().await.filled(question.as_bytes())?;
    ///         channel.send(question).await.0?;
    ///         let (received, inbox) = answer.await;
    ///         let answer = received?.message_in(&inbox).ok_or("it is not a message")?;
    ///         println!("{}", String::from_utf8_lossy(answer));
    ///         return Ok(channel.close().await?);
    ///     }
    ///     let group = AsyncGroup::new(Channel::builder(&pd), 1, &events)?;
    ///     let mut listener = group.listen("0.0.0.0:7471", timeout).await?;
    ///     let channel = listener.accept().await?.outcome?.channel;
    ///     let (received, inbox) = channel.receive(pool.take_when_free().await).await;
    ///     let question = received?.message_in(&inbox).ok_or("it is not a message")?;
    ///     let answer = pool.take_when_free().await.filled(&question.to_ascii_uppercase())?;
    ///     channel.send(answer).await.0?;
    ///     Ok(channel.close().await?)
    /// }
    /// # }
    /// # #[cfg(feature = "tokio")]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// As [`AsyncGroup::new`] and [`AsyncGroup::connect`].
    pub async fn connect<'d>(
        pd: &ProtectionDomain,
        events: &CqEvents,
        peer: impl Into<Peer<&'d AsyncDatagrams>>,
        options: impl Into<Connect>,
    ) -> Result<Met<Self>> {
        let group = AsyncGroup::new(Channel::builder(pd), 1, events)?;
        group.connect(peer, options).await
    }
}
