//! Channels that connect by themselves, each in a group of its own.

use std::fmt;
#[cfg(any(feature = "async-io", feature = "rdmacm"))]
use std::net::ToSocketAddrs;
use std::time::Duration;

use verbs_channel::Channel;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use verbs_channel::verbs_core::Context;
use verbs_channel::verbs_core::ProtectionDomain;

#[cfg(feature = "rdmacm")]
use super::cm_listener::CmListener;
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::AsyncGroup;

impl AsyncChannel {
    /// Needs the feature `tokio`. Connects over TCP to a peer that accepts, in a tokio runtime: a
    /// channel with default settings, in a group of its own.
    ///
    /// It fails if the peer does not listen yet, and has no deadline: see
    /// [`connect_tokio_within`](Self::connect_tokio_within).
    /// [`AsyncGroup::connect_tokio`] has settings and private data, and shares a queue among channels.
    ///
    /// ```no_run
    /// # async fn example() -> verbs_async::Result<()> {
    /// use verbs_async::AsyncChannel;
    /// use verbs_async::verbs_channel::verbs_core::Context;
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let channel = AsyncChannel::connect_tokio(&pd, "server:7471").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`AsyncGroup::new`], [`CqEvents::create_tokio`] and [`AsyncGroup::exchange`].
    #[cfg(feature = "tokio")]
    pub async fn connect_tokio(
        pd: &ProtectionDomain,
        peer: impl tokio::net::ToSocketAddrs + fmt::Debug,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_tokio)?;
        let (channel, _) = group.connect_tokio(peer, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `tokio`. [`connect_tokio`](Self::connect_tokio) with a timeout for the whole
    /// connection.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again.
    ///
    /// # Errors
    ///
    /// As [`connect_tokio`](Self::connect_tokio) and [`AsyncGroup::connect_tokio_within`].
    #[cfg(feature = "tokio")]
    pub async fn connect_tokio_within(
        pd: &ProtectionDomain,
        peer: impl tokio::net::ToSocketAddrs + fmt::Debug,
        timeout: Duration,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_tokio)?;
        let (channel, _) = group.connect_tokio_within(peer, timeout, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `tokio`. Accepts one peer over TCP, in a tokio runtime: a channel with
    /// default settings, in a group of its own.
    ///
    /// Servers use [`AsyncGroup::listen_tokio`]. This program is both ends of a connection: without
    /// arguments it answers one question, and with `HOST:7471 QUESTION` it asks one.
    ///
    /// ```no_run
    /// use std::{env, error::Error, time::Duration};
    ///
    /// use tokio::net::TcpListener;
    /// use verbs_async::AsyncChannel;
    /// use verbs_async::verbs_channel::BufferPool;
    /// use verbs_async::verbs_core::Context;
    ///
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn Error>> {
    ///     let args: Vec<String> = env::args().skip(1).collect();
    ///     if !matches!(args.len(), 0 | 2) {
    ///         return Err("arguments: none, or HOST:7471 QUESTION".into());
    ///     }
    ///     let pd = Context::first_active()?.alloc_pd()?;
    ///     let pool = BufferPool::new(&pd, 4096, 4)?;
    ///     if let [server, question] = &args[..] {
    ///         let timeout = Duration::from_secs(10);
    ///         let channel = AsyncChannel::connect_tokio_within(&pd, &**server, timeout).await?;
    ///         // The receive is posted before the question is sent.
    ///         let answer = channel.receive(pool.take_when_free().await);
    ///         let question = pool.take_when_free().await.filled(question.as_bytes())?;
    ///         channel.send(question).await.0?;
    ///         let (received, inbox) = answer.await;
    ///         let answer = received?.message_in(&inbox).ok_or("it is not a message")?;
    ///         println!("{}", String::from_utf8_lossy(answer));
    ///         return Ok(channel.close().await?);
    ///     }
    ///     let listener = TcpListener::bind("0.0.0.0:7471").await?;
    ///     let channel = AsyncChannel::accept_tokio(&pd, &listener).await?;
    ///     let (received, inbox) = channel.receive(pool.take_when_free().await).await;
    ///     let question = received?.message_in(&inbox).ok_or("it is not a message")?;
    ///     let answer = pool.take_when_free().await.filled(&question.to_ascii_uppercase())?;
    ///     channel.send(answer).await.0?;
    ///     Ok(channel.close().await?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect_tokio`](Self::connect_tokio).
    #[cfg(feature = "tokio")]
    pub async fn accept_tokio(
        pd: &ProtectionDomain,
        listener: &tokio::net::TcpListener,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_tokio)?;
        let (channel, _) = group.accept_tokio(listener, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `async-io`. Connects over TCP to a peer that accepts, with async-io, in
    /// smol or any other executor: a channel with default settings, in a group of its own.
    ///
    /// It fails if the peer does not listen yet, and has no deadline: see
    /// [`connect_async_io_within`](Self::connect_async_io_within).
    /// [`AsyncGroup::connect_async_io`] has settings and private data, and shares a queue among
    /// channels.
    ///
    /// # Errors
    ///
    /// As [`AsyncGroup::new`], [`CqEvents::create_async_io`] and [`AsyncGroup::exchange`].
    #[cfg(feature = "async-io")]
    pub async fn connect_async_io(
        pd: &ProtectionDomain,
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_async_io)?;
        let (channel, _) = group.connect_async_io(peer, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `async-io`. [`connect_async_io`](Self::connect_async_io) with a timeout for the
    /// whole connection.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again.
    ///
    /// # Errors
    ///
    /// As [`connect_async_io`](Self::connect_async_io) and [`AsyncGroup::connect_async_io_within`].
    #[cfg(feature = "async-io")]
    pub async fn connect_async_io_within(
        pd: &ProtectionDomain,
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
        timeout: Duration,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_async_io)?;
        let (channel, _) = group.connect_async_io_within(peer, timeout, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `async-io`. Accepts one peer over TCP, with async-io, in smol or any other
    /// executor: a channel with default settings, in a group of its own.
    ///
    /// Servers use [`AsyncGroup::listen_async_io`]. smol's `TcpListener` becomes such a listener by
    /// `Arc::<Async<std::net::TcpListener>>::from(listener)`.
    ///
    /// # Errors
    ///
    /// As [`connect_async_io`](Self::connect_async_io).
    #[cfg(feature = "async-io")]
    pub async fn accept_async_io(
        pd: &ProtectionDomain,
        listener: &async_io::Async<std::net::TcpListener>,
    ) -> Result<Self> {
        let group = group_of_one(pd, CqEvents::create_async_io)?;
        let (channel, _) = group.accept_async_io(listener, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `rdmacm`. Connects by `rdma_cm` to a peer that accepts, on any executor: a channel
    /// with default settings, in a group of its own, whose completions are announced by `events`.
    ///
    /// The peer's address is one of an RDMA device. While the peer does not listen yet, this tries
    /// again. [`AsyncGroup::connect_cm`] has settings and private data, and shares a queue among channels.
    ///
    /// ```no_run
    /// # async fn example() -> verbs_async::Result<()> {
    /// use std::time::Duration;
    /// use verbs_async::verbs_core::Context;
    /// use verbs_async::{AsyncChannel, CqEvents};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// // or create_tokio, create_async_io
    /// let events = CqEvents::create_thread(pd.context())?;
    /// let timeout = Duration::from_secs(5);
    /// let channel = AsyncChannel::connect_cm(&pd, &events, "192.0.2.1:7471", timeout).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`AsyncGroup::new`] and [`AsyncGroup::connect_cm`].
    #[cfg(feature = "rdmacm")]
    #[doc(alias = "rdma_connect")]
    pub async fn connect_cm(
        pd: &ProtectionDomain,
        events: &CqEvents,
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
        timeout: Duration,
    ) -> Result<Self> {
        let group = AsyncGroup::new(Channel::builder(pd), 1, events)?;
        let (channel, _) = group.connect_cm(peer, timeout, b"").await?;
        Ok(channel)
    }

    /// Needs the feature `rdmacm`. Accepts one peer by `rdma_cm`, on any executor: a channel with default
    /// settings, in a group of its own, whose completions are announced by the listener's events.
    ///
    /// Servers use [`AsyncGroup::listen_cm`].
    ///
    /// # Errors
    ///
    /// As [`AsyncGroup::new`] and [`AsyncGroup::accept_cm`].
    #[cfg(feature = "rdmacm")]
    #[doc(alias = "rdma_accept")]
    pub async fn accept_cm(
        pd: &ProtectionDomain,
        listener: &mut CmListener,
        timeout: Duration,
    ) -> Result<Self> {
        let group = AsyncGroup::new(Channel::builder(pd), 1, listener.events())?;
        let (channel, _) = group.accept_cm(listener, timeout, b"").await?;
        Ok(channel)
    }
}

/// A group of one channel, with default settings.
#[cfg(any(feature = "tokio", feature = "async-io"))]
fn group_of_one(
    pd: &ProtectionDomain,
    create_events: impl FnOnce(&Context) -> Result<CqEvents>,
) -> Result<AsyncGroup> {
    let events = create_events(pd.context())?;
    AsyncGroup::new(Channel::builder(pd), 1, &events)
}
