//! Connecting: exchanges of endpoints and handshakes, over any runtime's TCP or any stream.
//!
//! The protocol is that of [`verbs_channel::exchange`], so either side can be blocking.

#[cfg(feature = "tokio")]
mod adapter;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod alone;
mod failure;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod listener;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "tokio", feature = "async-io"))]
mod time;

use std::future::{Future, poll_fn};
#[cfg(any(feature = "tokio", feature = "async-io"))]
use std::io;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use std::net::SocketAddr;
use std::net::TcpStream;
#[cfg(feature = "async-io")]
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use std::sync::Arc;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use verbs_channel::exchange::{Exchange, ExchangeError, Peer, Step};
use verbs_channel::verbs_core::QueuePairEndpoint;

#[cfg(feature = "async-io")]
use crate::blocking;
use crate::channel::AsyncChannel;
#[cfg(feature = "async-io")]
use crate::error::Error;
use crate::error::Result;
use crate::group::AsyncGroup;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use failure::{check_private_data, lookup};
use failure::{exchange_error, tcp, with_peer};
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub use listener::{Arrival, Listener};
#[cfg(any(feature = "tokio", feature = "async-io"))]
use time::Deadline;

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
    /// descriptor. To use the stream afterwards, pass `&mut` of it, and drop it together with the
    /// channel: the peer notices that this side has left only when both are closed. If the exchange
    /// fails, or the future is dropped, close such a stream.
    ///
    /// There is no timeout: use that of your runtime. Dropping the future drops the
    /// channel and the stream.
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
    /// [`Error::Channel`] with an [`ExchangeError`]: the peer rejected the connection (with its
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
        let descriptor = stream.as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(|error| tcp("watch the connection to", error))?;
        // The socket may be of any kind: only its address is used.
        let socket = TcpStream::from(descriptor);
        let peer = socket.peer_addr().ok();
        let met = self
            .meet_over(stream, private_data, Some(socket.into()))
            .await;
        met.map_err(|error| with_peer(error, peer))
    }

    /// [`exchange`](Self::exchange) over a stream that has no descriptor, such as an encrypted one.
    ///
    /// The peer is not watched: to watch it, pass a descriptor to
    /// [`watch_peer`](AsyncChannel::watch_peer). The peer may watch this side, and then takes the end
    /// of the stream for the end of the channel: pass `&mut` of the stream, and keep the stream as
    /// long as the channel.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub async fn exchange_unwatched(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        self.meet_over(stream, private_data, None).await
    }

    async fn meet_over(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        private_data: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let prepared = match self.prepare_elsewhere().await {
            Ok(prepared) => prepared,
            Err(error) => {
                // Best effort: this side's own error is the one to return.
                drop(run(&mut stream, &mut Exchange::refusing(&error)).await);
                return Err(error);
            }
        };
        let exchange = Exchange::new(&prepared.endpoint(), private_data).map_err(exchange_error)?;
        // The channel joins before READY is sent: the peer is sent the error if the group is full.
        let handshake =
            |remote| async move { self.handshake_watched(prepared, remote, descriptor).await };
        meet(stream, exchange, handshake).await
    }

    /// Needs the feature `tokio`. Connects over TCP to a peer that accepts, in a tokio runtime. The
    /// private data are those of [`exchange`](Self::exchange).
    ///
    /// It fails if the peer does not listen yet:
    /// [`connect_tokio_within`](Self::connect_tokio_within) retries. For a deadline use
    /// `tokio::time::timeout`: dropping the future closes everything.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "tokio")]
    pub async fn connect_tokio(
        &self,
        peer: impl tokio::net::ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let resolved = tokio::net::lookup_host(peer).await;
        let resolved = resolved.map_err(lookup)?;
        let addresses: Vec<_> = resolved.collect();
        let mut last = exchange_error(ExchangeError::NoAddress);
        for address in addresses {
            match connect_by_tokio(address).await {
                Ok(stream) => return self.exchange(stream, private_data).await,
                Err(error) => last = with_peer(error, Some(address)),
            }
        }
        Err(last)
    }

    /// Needs the feature `tokio`. [`connect_tokio`](Self::connect_tokio) with a timeout for the
    /// whole connection.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange), [`ExchangeError::TimedOut`], and an error if the runtime's
    /// timers are not enabled.
    #[cfg(feature = "tokio")]
    pub async fn connect_tokio_within(
        &self,
        peer: impl tokio::net::ToSocketAddrs,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let deadline = Deadline::after(timeout, time::tokio);
        let resolved = deadline.share(1, tokio::net::lookup_host(peer)).await?;
        let resolved = resolved.ok_or_else(|| deadline.timed_out())?;
        let addresses: Vec<_> = resolved.map_err(lookup)?.collect();
        let (stream, address) = time::reach(&addresses, deadline, connect_by_tokio).await?;
        let met = self.exchange(stream, private_data);
        deadline.bound(address, met).await
    }

    /// Needs the feature `tokio`. Accepts many peers over TCP concurrently, in a tokio runtime that
    /// has timers.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn listen_tokio(&self, listener: tokio::net::TcpListener) -> Listener {
        let listener = Arc::new(listener);
        Listener::new(self.clone(), time::tokio, move || {
            let listener = Arc::clone(&listener);
            Box::pin(async move {
                let (stream, peer) = listener.accept().await?;
                // Without it the exchange is only slower.
                drop(stream.set_nodelay(true));
                let stream = adapter::Tokio(stream);
                Ok((over(stream), peer))
            })
        })
    }

    /// Needs the feature `tokio`. Accepts one peer over TCP and connects a channel to it, in a
    /// tokio runtime. The private data are those of [`exchange`](Self::exchange).
    ///
    /// Dropping the future closes the connection of a peer that was accepted. While this waits for
    /// a slow peer, no other is accepted: servers use [`listen_tokio`](Self::listen_tokio).
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "tokio")]
    pub async fn accept_tokio(
        &self,
        listener: &tokio::net::TcpListener,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let accepted = listener.accept().await;
        let (stream, _) = accepted.map_err(|error| tcp("accept", error))?;
        // Without it the exchange is only slower.
        drop(stream.set_nodelay(true));
        self.exchange_tokio(stream, private_data).await
    }

    /// Needs the feature `tokio`. [`exchange`](Self::exchange) over a stream with tokio's traits.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "tokio")]
    pub async fn exchange_tokio(
        &self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        self.exchange(adapter::Tokio(stream), private_data).await
    }

    /// Needs the feature `async-io`. Connects over TCP to a peer that accepts, by async-io, in smol
    /// and any other executor. The private data are those of [`exchange`](Self::exchange).
    ///
    /// A name is resolved on a helper thread. It fails if the peer does not listen yet:
    /// [`connect_async_io_within`](Self::connect_async_io_within) retries. For a deadline use a
    /// timer: dropping the future closes everything.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "async-io")]
    pub async fn connect_async_io(
        &self,
        peer: impl ToSocketAddrs + Send + 'static,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let mut last = exchange_error(ExchangeError::NoAddress);
        for address in resolve(peer).await? {
            match connect_by_async_io(address).await {
                Ok(stream) => return self.exchange(stream, private_data).await,
                Err(error) => last = with_peer(error, Some(address)),
            }
        }
        Err(last)
    }

    /// Needs the feature `async-io`. [`connect_async_io`](Self::connect_async_io) with a timeout
    /// for the whole connection.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange), and [`ExchangeError::TimedOut`].
    #[cfg(feature = "async-io")]
    pub async fn connect_async_io_within(
        &self,
        peer: impl ToSocketAddrs + Send + 'static,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let deadline = Deadline::after(timeout, time::async_io);
        let resolved = deadline.share(1, resolve(peer)).await?;
        let addresses = resolved.ok_or_else(|| deadline.timed_out())??;
        let (stream, address) = time::reach(&addresses, deadline, connect_by_async_io).await?;
        let met = self.exchange(stream, private_data);
        deadline.bound(address, met).await
    }

    /// Needs the feature `async-io`. Accepts many peers over TCP concurrently, by async-io, in smol
    /// and any other executor.
    #[cfg(feature = "async-io")]
    #[must_use]
    pub fn listen_async_io(&self, listener: async_io::Async<std::net::TcpListener>) -> Listener {
        let listener = Arc::new(listener);
        Listener::new(self.clone(), time::async_io, move || {
            let listener = Arc::clone(&listener);
            Box::pin(async move {
                let (stream, peer) = listener.accept().await?;
                // Without it the exchange is only slower.
                drop(stream.get_ref().set_nodelay(true));
                Ok((over(stream), peer))
            })
        })
    }

    /// Needs the feature `async-io`. Accepts one peer over TCP and connects a channel to it, by
    /// async-io, in smol and any other executor. The private data are those of
    /// [`exchange`](Self::exchange).
    ///
    /// Dropping the future closes the connection of a peer that was accepted. While this waits for
    /// a slow peer, no other is accepted: servers use [`listen_async_io`](Self::listen_async_io).
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "async-io")]
    pub async fn accept_async_io(
        &self,
        listener: &async_io::Async<std::net::TcpListener>,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let accepted = listener.accept().await;
        let (stream, _) = accepted.map_err(|error| tcp("accept", error))?;
        // Without it the exchange is only slower.
        drop(stream.get_ref().set_nodelay(true));
        self.exchange(stream, private_data).await
    }
}

/// The exchange over a stream that a listener has accepted.
#[cfg(any(feature = "tokio", feature = "async-io"))]
fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + AsFd + Send + 'static,
) -> Box<dyn FnOnce(AsyncGroup, Arc<[u8]>) -> listener::Meeting + Send> {
    Box::new(move |group, private_data| {
        Box::pin(async move { group.exchange(stream, &private_data).await })
    })
}

/// The addresses of a name, resolved on a helper thread.
#[cfg(feature = "async-io")]
async fn resolve(peer: impl ToSocketAddrs + Send + 'static) -> Result<Vec<SocketAddr>> {
    let resolved = blocking::run(move || peer.to_socket_addrs().map(Iterator::collect)).await;
    let resolved = resolved.map_err(Error::Thread)?;
    resolved.map_err(lookup)
}

#[cfg(feature = "tokio")]
async fn connect_by_tokio(address: SocketAddr) -> Result<adapter::Tokio<tokio::net::TcpStream>> {
    let stream = tokio::net::TcpStream::connect(address).await;
    let stream = stream.map_err(|error| tcp("connect to", error))?;
    reject_self_connect(stream.local_addr(), stream.peer_addr())?;
    // Without it the exchange is only slower.
    drop(stream.set_nodelay(true));
    Ok(adapter::Tokio(stream))
}

#[cfg(feature = "async-io")]
async fn connect_by_async_io(address: SocketAddr) -> Result<async_io::Async<TcpStream>> {
    let stream = async_io::Async::<TcpStream>::connect(address).await;
    let stream = stream.map_err(|error| tcp("connect to", error))?;
    reject_self_connect(stream.get_ref().local_addr(), stream.get_ref().peer_addr())?;
    // Without it the exchange is only slower.
    drop(stream.get_ref().set_nodelay(true));
    Ok(stream)
}

/// Runs an exchange over a stream, with the handshake in its middle. Returns the handshake's
/// outcome and the peer's private data.
async fn meet<C, H: Future<Output = Result<C>>>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    mut exchange: Exchange,
    handshake: impl FnOnce(QueuePairEndpoint) -> H,
) -> Result<(C, Vec<u8>)> {
    let peer = run(&mut stream, &mut exchange).await;
    let peer = peer.map_err(exchange_error)?;
    let connected = handshake(peer.endpoint).await;
    match &connected {
        Ok(_) => exchange.ready(),
        Err(error) => exchange.refuse(error),
    }
    let agreed = run(&mut stream, &mut exchange).await;
    // The handshake's own error is more specific than that of the exchange.
    let connected = connected?;
    agreed.map_err(exchange_error)?;
    Ok((connected, peer.private_data))
}

async fn run(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    exchange: &mut Exchange,
) -> Result<Peer, ExchangeError> {
    loop {
        let moved = match exchange.step()? {
            Step::Write(bytes) => {
                let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await;
                // The peer's answer is read next, so a buffering stream has to be flushed.
                let flushed = poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await;
                written.and_then(|count| flushed.map(|()| count))
            }
            Step::Read(buffer) => poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, buffer)).await,
            Step::Done(peer) => return Ok(peer.clone()),
        };
        exchange.moved(moved);
    }
}

/// Rejects a connection to itself.
///
/// A connection to a local port on which no process listens may be assigned that very port for its own
/// end, and then connects to itself (a TCP self-connect).
#[cfg(any(feature = "tokio", feature = "async-io"))]
fn reject_self_connect(local: io::Result<SocketAddr>, peer: io::Result<SocketAddr>) -> Result<()> {
    match (local, peer) {
        (Ok(local), Ok(peer)) if local == peer => {
            Err(tcp("connect to", io::ErrorKind::ConnectionRefused.into()))
        }
        _ => Ok(()),
    }
}
