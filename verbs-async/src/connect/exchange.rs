//! Connecting over a stream: an exchange of endpoints, with the handshake in its middle.

use std::future::{Future, poll_fn};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use futures_io::{AsyncRead, AsyncWrite};
use verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};
use verbs_channel::verbs_core::QueuePairEndpoint;
use verbs_channel::{ConnectedMember, PreparedChannel};

use super::awaited::Awaited;
use super::failure::{check_device, exchange_error, tcp, with_peer};
use crate::channel::AsyncChannel;
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::threads::drop_on_thread::Elsewhere;

impl AsyncGroup {
    /// Connects a new channel to the peer at the other end of a stream, which does the same.
    ///
    /// Each side sends the other up to [`MAX_PRIVATE_DATA`] bytes. Returns the channel and the
    /// peer's bytes.
    ///
    /// The peer need not be async: [`PreparedChannel::connect`] and other blocking calls use the same
    /// protocol.
    ///
    /// The channel [watches the peer](AsyncChannel::watch_peer) with a duplicate of the stream's
    /// descriptor. To use the stream afterwards, pass a `&mut` to it, and drop it together with the
    /// channel: the peer notices that this side has left only when both are closed. If the exchange
    /// fails, or the future is dropped, close such a stream.
    ///
    /// There is no timeout: use your runtime's. Dropping the future drops the channel and the
    /// stream.
    ///
    /// On iWARP one of the two sides connects by `rdma_cm` to an address that the other sent. A server that does not
    /// trust its clients should use a [`Listener`](crate::Listener) instead, which connects nowhere, or call
    /// [`exchange_prepared`](Self::exchange_prepared) with a channel that [accepts](PreparedChannel::set_side).
    ///
    /// ```no_run
    /// # use std::net::TcpStream;
    /// # use verbs_async::{AsyncChannel, AsyncGroup};
    /// # #[cfg(feature = "async-io")]
    /// async fn meet(group: &AsyncGroup) -> verbs_async::Result<AsyncChannel> {
    ///     let stream = async_io::Async::<TcpStream>::connect(([192, 0, 2, 1], 7471)).await?;
    ///     let (channel, private_data) = group.exchange(stream, b"hello").await?;
    ///     println!("the peer sent {private_data:?}");
    ///     Ok(channel)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] with an [`ExchangeError`]: the peer refused the connection (with its
    /// reason), closed the stream, or uses another protocol. With any other error this side could
    /// not connect or [join](Self::join), and the peer is sent the reason.
    ///
    /// [`MAX_PRIVATE_DATA`]: verbs_channel::exchange::MAX_PRIVATE_DATA
    /// [`PreparedChannel::connect`]: verbs_channel::PreparedChannel::connect
    pub async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        self.exchange_as(Side::Either, stream, private_data, None)
            .await
    }

    /// [`exchange`](Self::exchange) for a side that came to its stream in this way, and may show what it
    /// awaits.
    pub(super) async fn exchange_as(
        &self,
        side: Side,
        stream: impl AsyncRead + AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
        awaited: Option<&Awaited>,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        self.meet_watched(stream, private_data, None, (side, awaited))
            .await
    }

    /// [`exchange`](Self::exchange) for a channel that this group [prepared](Self::prepare). Its
    /// [prepared receives](PreparedChannel::start_receive) are posted before the peer may send.
    ///
    /// ```no_run
    /// # use std::net::TcpStream;
    /// # use verbs_async::{AsyncGroup, Result};
    /// # use verbs_async::verbs_channel::BufferPool;
    /// # #[cfg(feature = "async-io")]
    /// async fn meet(group: &AsyncGroup, pool: &BufferPool) -> Result<()> {
    ///     let mut prepared = group.prepare()?;
    ///     while let Some(block) = pool.take() {
    ///         prepared.start_receive(block)?;
    ///     }
    ///     let stream = async_io::Async::<TcpStream>::connect(([192, 0, 2, 1], 7471)).await?;
    ///     let (channel, _) = group.exchange_prepared(prepared, stream, b"").await?;
    ///     for receive in channel.prepared_receives() {
    ///         let (received, block) = receive.await;
    ///         println!("{:?}", received?.message_in(&block));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub fn exchange_prepared(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        stream: impl AsyncRead + AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
    ) -> impl Future<Output = Result<(AsyncChannel, Vec<u8>)>> {
        let side = prepared.side();
        // Not in the future: it may never be polled.
        let prepared = Some(Elsewhere::new(prepared));
        self.meet_watched(stream, private_data, prepared, (side, None))
    }

    async fn meet_watched(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
        prepared: Option<Elsewhere<PreparedChannel<ConnectedMember>>>,
        (side, awaited): (Side, Option<&Awaited>),
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let descriptor = stream.as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(|error| tcp("watch the connection to", error))?;
        // The socket may be of any kind: only its address is used.
        let socket = TcpStream::from(descriptor);
        let peer = socket.peer_addr().ok();
        let met = self
            .meet_over(
                stream,
                private_data,
                Some(socket),
                prepared,
                (side, awaited),
            )
            .await;
        met.map_err(|error| with_peer(error, peer))
    }

    /// [`exchange`](Self::exchange) over a stream that has no descriptor, such as an encrypted one.
    ///
    /// The peer is not watched: to watch it, pass a descriptor to
    /// [`watch_peer`](AsyncChannel::watch_peer). If the peer watches this side, the end of the
    /// stream is the end of the channel for it. So pass a `&mut` to the stream, and keep the
    /// stream as long as the channel.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub async fn exchange_unwatched(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        self.meet_over(stream, private_data, None, None, (Side::Either, None))
            .await
    }

    async fn meet_over(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        private_data: &[u8],
        socket: Option<TcpStream>,
        prepared: Option<Elsewhere<PreparedChannel<ConnectedMember>>>,
        (side, awaited): (Side, Option<&Awaited>),
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let prepared = match (check_device(self), prepared) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(prepared)) => Ok(prepared),
            (Ok(()), None) => self.prepare_elsewhere().await,
        };
        let begun = prepared.and_then(|prepared| {
            let exchange = self.begin(&prepared, private_data, side)?;
            Ok((prepared, exchange))
        });
        let (prepared, exchange) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Best effort: this side's own error is the one to return.
                drop(run(&mut stream, &mut Exchange::refusing(&error)).await);
                return Err(error);
            }
        };
        #[cfg(feature = "rdmacm")]
        if self.pd().context().device().needs_rdma_cm() {
            return self
                .meet_by_manager((stream, socket), exchange, prepared, awaited)
                .await;
        }
        let _ = awaited;
        // The channel joins before READY is sent: the peer is sent the error if the group is full.
        let descriptor = socket.map(OwnedFd::from);
        let handshake =
            |remote| async move { self.handshake_watched(prepared, remote, descriptor).await };
        meet(stream, exchange, handshake).await
    }

    #[cfg_attr(
        not(feature = "rdmacm"),
        expect(clippy::unused_self, reason = "its device decides on iWARP")
    )]
    fn begin(
        &self,
        prepared: &PreparedChannel<ConnectedMember>,
        private_data: &[u8],
        side: Side,
    ) -> Result<Exchange> {
        #[cfg(feature = "rdmacm")]
        if self.pd().context().device().needs_rdma_cm() {
            let exchange = Exchange::by_manager(private_data, side);
            return exchange.map_err(exchange_error);
        }
        let _ = side;
        Exchange::new(&prepared.endpoint(), private_data).map_err(exchange_error)
    }
}

/// Runs an exchange over a stream, with the handshake in its middle. Returns the handshake's
/// outcome and the peer's private data.
pub(super) async fn meet<C, H: Future<Output = Result<C>>>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    mut exchange: Exchange,
    handshake: impl FnOnce(QueuePairEndpoint) -> H,
) -> Result<(C, Vec<u8>)> {
    run(&mut stream, &mut exchange)
        .await
        .map_err(exchange_error)?;
    let peer = exchange.peer().map(|peer| peer.endpoint);
    let peer = peer.ok_or_else(|| exchange_error(ExchangeError::Over))?;
    let connected = handshake(peer).await;
    agreed(stream, exchange, connected).await
}

/// The end of an exchange, after the handshake.
pub(super) async fn agreed<C>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    mut exchange: Exchange,
    connected: Result<C>,
) -> Result<(C, Vec<u8>)> {
    match &connected {
        Ok(_) => exchange.ready(),
        Err(error) => exchange.refuse(error),
    }
    let agreed = run(&mut stream, &mut exchange).await;
    // The handshake's own error is more specific than that of the exchange.
    let connected = connected?;
    agreed.map_err(exchange_error)?;
    Ok((connected, exchange.into_private_data()))
}

pub(super) async fn run(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    exchange: &mut Exchange,
) -> Result<(), ExchangeError> {
    while let Some(io) = exchange.io()? {
        let moved = match io {
            Io::Write(bytes) => {
                let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await;
                // The peer's answer is read next, so a buffering stream has to be flushed.
                let flushed = poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await;
                written.and_then(|count| flushed.map(|()| count))
            }
            Io::Read(buffer) => poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, buffer)).await,
        };
        exchange.moved(moved);
    }
    Ok(())
}
