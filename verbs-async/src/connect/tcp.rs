//! Connecting over TCP, by tokio or by async-io.

#[cfg(feature = "tokio")]
use std::future::Future;
use std::net::SocketAddr;
#[cfg(feature = "async-io")]
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_io::{AsyncRead, AsyncWrite};
use verbs_channel::exchange::{ExchangeError, Side};
#[cfg(feature = "tokio")]
use verbs_channel::{ConnectedMember, PreparedChannel};

#[cfg(feature = "tokio")]
use super::adapter;
use super::awaited::Awaited;
#[cfg(feature = "tokio")]
use super::failure::lookup;
use super::failure::{check, exchange_error, not_connected, tcp, with_peer};
use super::listener::{Listener, Meet};
#[cfg(feature = "async-io")]
use super::resolve::{resolve, resolve_by};
use super::time::{self, Deadline};
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::group::AsyncGroup;

impl AsyncGroup {
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
        peer: impl tokio::net::ToSocketAddrs + fmt::Debug,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check(self, private_data)?;
        let text = format!("{peer:?}");
        let resolved = tokio::net::lookup_host(peer).await;
        let resolved = resolved.map_err(lookup(text))?;
        let addresses: Vec<_> = resolved.collect();
        let mut last = exchange_error(ExchangeError::NoAddress);
        for address in addresses {
            match connect_by_tokio(address).await {
                Ok(stream) => {
                    let met = self.exchange_as(Side::Connects, stream, private_data, None);
                    return met.await;
                }
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
        peer: impl tokio::net::ToSocketAddrs + fmt::Debug,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check(self, private_data)?;
        let deadline = Deadline::after(timeout, &time::tokio());
        let text = format!("{peer:?}");
        let resolved = deadline.share(1, tokio::net::lookup_host(peer)).await?;
        let resolved = resolved.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        let addresses: Vec<_> = resolved.map_err(lookup(text))?.collect();
        let (stream, address) = time::reach(&addresses, &deadline, connect_by_tokio).await?;
        let awaited = Awaited::new(address, "write");
        let met = self.exchange_as(Side::Connects, stream, private_data, Some(&awaited));
        deadline.bound(&awaited, met).await
    }

    /// Needs the feature `tokio`. Accepts many peers over TCP concurrently, in a tokio runtime that
    /// has timers.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn listen_tokio(&self, listener: tokio::net::TcpListener) -> Listener {
        let listener = Arc::new(listener);
        Listener::new(self.clone(), time::tokio(), move || {
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
        check(self, private_data)?;
        let accepted = listener.accept().await;
        let (stream, _) = accepted.map_err(|error| tcp("accept", error))?;
        // Without it the exchange is only slower.
        drop(stream.set_nodelay(true));
        let stream = adapter::Tokio(stream);
        let met = self.exchange_as(Side::Accepts, stream, private_data, None);
        met.await
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

    /// Needs the feature `tokio`. [`exchange_prepared`](Self::exchange_prepared) over a stream with
    /// tokio's traits.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "tokio")]
    pub fn exchange_prepared_tokio(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + AsFd,
        private_data: &[u8],
    ) -> impl Future<Output = Result<(AsyncChannel, Vec<u8>)>> {
        let stream = adapter::Tokio(stream);
        self.exchange_prepared(prepared, stream, private_data)
    }

    /// Needs the feature `async-io`. Connects over TCP to a peer that accepts, with async-io, in
    /// smol or any other executor. The private data are those of [`exchange`](Self::exchange).
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
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check(self, private_data)?;
        let mut last = exchange_error(ExchangeError::NoAddress);
        for address in resolve(peer).await? {
            match connect_by_async_io(address).await {
                Ok(stream) => {
                    let met = self.exchange_as(Side::Connects, stream, private_data, None);
                    return met.await;
                }
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
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check(self, private_data)?;
        let deadline = Deadline::after(timeout, &time::async_io());
        let addresses = resolve_by(&deadline, peer).await?;
        let (stream, address) = time::reach(&addresses, &deadline, connect_by_async_io).await?;
        let awaited = Awaited::new(address, "write");
        let met = self.exchange_as(Side::Connects, stream, private_data, Some(&awaited));
        deadline.bound(&awaited, met).await
    }

    /// Needs the feature `async-io`. Accepts many peers over TCP concurrently, with async-io, in
    /// smol or any other executor.
    ///
    /// The listener is an `Async<TcpListener>` of async-io, or a `TcpListener` of smol:
    ///
    /// ```no_run
    /// # async fn example(group: verbs_async::AsyncGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = smol::net::TcpListener::bind("0.0.0.0:7471").await?;
    /// let mut listener = group.listen_async_io(listener);
    /// let arrival = listener.accept().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "async-io")]
    #[must_use]
    pub fn listen_async_io(
        &self,
        listener: impl Into<Arc<async_io::Async<std::net::TcpListener>>>,
    ) -> Listener {
        let listener = listener.into();
        Listener::new(self.clone(), time::async_io(), move || {
            let listener = Arc::clone(&listener);
            Box::pin(async move {
                let (stream, peer) = listener.accept().await?;
                // Without it the exchange is only slower.
                drop(stream.get_ref().set_nodelay(true));
                Ok((over(stream), peer))
            })
        })
    }

    /// Needs the feature `async-io`. Accepts one peer over TCP and connects a channel to it, with
    /// async-io, in smol or any other executor. The private data are those of
    /// [`exchange`](Self::exchange).
    ///
    /// Dropping the future closes the connection of a peer that was accepted. While this waits for
    /// a slow peer, no other is accepted: servers use [`listen_async_io`](Self::listen_async_io).
    /// smol's `TcpListener` becomes such a listener by
    /// `Arc::<Async<std::net::TcpListener>>::from(listener)`.
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
        check(self, private_data)?;
        let accepted = listener.accept().await;
        let (stream, _) = accepted.map_err(|error| tcp("accept", error))?;
        // Without it the exchange is only slower.
        drop(stream.get_ref().set_nodelay(true));
        let met = self.exchange_as(Side::Accepts, stream, private_data, None);
        met.await
    }
}

/// The exchange over a stream that a listener has accepted.
fn over(stream: impl AsyncRead + AsyncWrite + Unpin + AsFd + Send + 'static) -> Meet {
    Box::new(move |group, private_data, awaited| {
        Box::pin(async move {
            let met = group.exchange_as(Side::Accepts, stream, &private_data, Some(&awaited));
            met.await
        })
    })
}

#[cfg(feature = "tokio")]
async fn connect_by_tokio(address: SocketAddr) -> Result<adapter::Tokio<tokio::net::TcpStream>> {
    let stream = tokio::net::TcpStream::connect(address).await;
    let stream = stream.map_err(not_connected)?;
    reject_self_connect(stream.local_addr(), stream.peer_addr())?;
    // Without it the exchange is only slower.
    drop(stream.set_nodelay(true));
    Ok(adapter::Tokio(stream))
}

#[cfg(feature = "async-io")]
async fn connect_by_async_io(address: SocketAddr) -> Result<async_io::Async<TcpStream>> {
    let stream = async_io::Async::<TcpStream>::connect(address).await;
    let stream = stream.map_err(not_connected)?;
    reject_self_connect(stream.get_ref().local_addr(), stream.get_ref().peer_addr())?;
    // Without it the exchange is only slower.
    drop(stream.get_ref().set_nodelay(true));
    Ok(stream)
}

/// Rejects a connection to itself.
///
/// A connection to a local port on which no process listens may be assigned that very port for its own
/// end, and then connects to itself (a TCP self-connect).
pub(super) fn reject_self_connect(
    local: io::Result<SocketAddr>,
    peer: io::Result<SocketAddr>,
) -> Result<()> {
    match (local, peer) {
        (Ok(local), Ok(peer)) if local == peer => {
            Err(not_connected(io::ErrorKind::ConnectionRefused.into()))
        }
        _ => Ok(()),
    }
}
