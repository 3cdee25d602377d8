//! Connecting over datagrams, with the timers of either runtime.

use std::time::{Duration, Instant};

use verbs_channel::BufferPool;
use verbs_channel::datagram_exchange::{Connector, Step};
#[expect(unused_imports, reason = "named in documentation")]
use verbs_channel::exchange::ExchangeError;
use verbs_channel::exchange::Peer;
use verbs_channel::verbs_core::DatagramEndpoint;

use super::failure::{check_private_data, exchange_error};
use super::time::{self, Deadline};
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::threads;

/// Datagrams of an exchange in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 4;

/// How long the last datagram of an exchange may take to leave.
const LEAVING: Duration = Duration::from_millis(100);

impl AsyncGroup {
    /// Needs the feature `tokio`. Connects over datagrams to the server that has this endpoint, in a
    /// tokio runtime that has timers. The server
    /// [listens](Self::listen_over_datagrams_tokio), or is blocking: see
    /// [`DatagramListener`](verbs_channel::DatagramListener).
    ///
    /// Each side sends the other private data, as far as they fit into a datagram: see
    /// [`datagram_exchange`](verbs_channel::datagram_exchange#length). Returns the channel and the
    /// peer's private data. Datagrams that are lost are repeated until the timeout. Others that arrive
    /// meanwhile are dropped, so `datagrams` is for one exchange at a time.
    ///
    /// **The channel does not watch its peer**: see
    /// [`PreparedChannel::connect_over_datagrams`](verbs_channel::PreparedChannel::connect_over_datagrams).
    /// Bound what waits for the peer by timeouts.
    ///
    /// Dropping the future drops the channel.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use verbs_async::verbs_channel::Datagrams;
    /// # use verbs_async::verbs_channel::verbs_core::DatagramEndpoint;
    /// # use verbs_async::{AsyncChannel, AsyncDatagrams, AsyncGroup};
    /// # #[cfg(feature = "tokio")]
    /// async fn meet(
    ///     group: &AsyncGroup,
    ///     server: &DatagramEndpoint,
    /// ) -> verbs_async::Result<AsyncChannel> {
    ///     let datagrams = AsyncDatagrams::create_tokio(Datagrams::builder(group.pd()))?;
    ///     let timeout = Duration::from_secs(5);
    ///     let connected = group.connect_over_datagrams_tokio(&datagrams, server, timeout, b"");
    ///     let (channel, _) = connected.await?;
    ///     Ok(channel)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] with an [`ExchangeError`]: the server refused the connection (with its
    /// reason), did not answer in time, or has restarted. With any other error this side could not
    /// connect or [join](Self::join), and the server is sent the reason; or `datagrams` is down.
    #[cfg(feature = "tokio")]
    pub async fn connect_over_datagrams_tokio(
        &self,
        datagrams: &AsyncDatagrams,
        server: &DatagramEndpoint,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let deadline = Deadline::after(timeout, &time::tokio());
        self.connect_over(datagrams, server, timeout, private_data, deadline)
            .await
    }

    /// Needs the feature `async-io`. As
    /// [`connect_over_datagrams_tokio`](Self::connect_over_datagrams_tokio), with async-io, in smol or any
    /// other executor.
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] with an [`ExchangeError`]: the server refused the connection (with its
    /// reason), did not answer in time, or has restarted. With any other error this side could not
    /// connect or [join](Self::join), and the server is sent the reason; or `datagrams` is down.
    #[cfg(feature = "async-io")]
    pub async fn connect_over_datagrams_async_io(
        &self,
        datagrams: &AsyncDatagrams,
        server: &DatagramEndpoint,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let deadline = Deadline::after(timeout, &time::async_io());
        self.connect_over(datagrams, server, timeout, private_data, deadline)
            .await
    }

    async fn connect_over(
        &self,
        datagrams: &AsyncDatagrams,
        server: &DatagramEndpoint,
        timeout: Duration,
        private_data: &[u8],
        deadline: Deadline,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        check_private_data(private_data)?;
        let begun = Instant::now();
        let late = || deadline.timed_out();
        let prepared = deadline.share(1, self.prepare_elsewhere()).await?;
        let prepared = prepared.ok_or_else(late)??;
        let (max, ours) = (datagrams.max_payload(), prepared.endpoint());
        let mut connector = Connector::new(server, &ours, private_data, max, begun, timeout)
            .map_err(exchange_error)?;
        let pool = deadline.share(1, pool(datagrams, BUFFERS)).await?;
        let client = Client {
            datagrams,
            pool: pool.ok_or_else(late)??,
            deadline: &deadline,
        };
        let peer = client.run(&mut connector).await?;
        let handshake = self.handshake_watched(prepared, peer.endpoint, None);
        let connected = match deadline.share(1, handshake).await? {
            Some(connected) => connected,
            None => Err(late()),
        };
        match &connected {
            Ok(_) => connector.ready(),
            Err(error) => connector.refuse(error),
        }
        let agreed = client.run(&mut connector).await;
        // The error of the handshake is more precise than that of the exchange.
        let channel = connected?;
        agreed?;
        Ok((channel, peer.private_data))
    }
}

/// The datagrams of one exchange.
struct Client<'a> {
    datagrams: &'a AsyncDatagrams,
    pool: BufferPool,
    deadline: &'a Deadline,
}

impl Client<'_> {
    /// Runs the exchange until it is done, or over.
    async fn run(&self, connector: &mut Connector) -> Result<Peer> {
        let server = connector.server();
        let done = loop {
            match connector.step(Instant::now()) {
                Ok(Step::Send(bytes)) => self.send(&server, bytes).await?,
                Ok(Step::Wait(until)) => {
                    let time = until.saturating_duration_since(Instant::now());
                    let received = self.datagrams.receive_from();
                    if let Some(datagram) = self.deadline.within(time, received).await? {
                        connector.received(&datagram?);
                    }
                }
                Ok(Step::Done(peer)) => break Ok(peer.clone()),
                Err(error) => break Err(exchange_error(error)),
            }
        };
        // The endpoint may be dropped next.
        let flushed = self.datagrams.flush();
        let _left = self.deadline.within(LEAVING, flushed).await?;
        done
    }

    /// Sends a datagram, or loses it if there is no buffer: it is repeated then.
    async fn send(&self, to: &DatagramEndpoint, bytes: &[u8]) -> Result<()> {
        let Some(block) = self.pool.take_with(bytes)? else {
            return Ok(());
        };
        // The last one may leave a little after the deadline.
        let left = self.deadline.left().unwrap_or(LEAVING);
        let sent = self.datagrams.send_to(to, block);
        match self.deadline.within(left, sent).await? {
            Some(Err(rejected)) => Err(rejected.into_error()),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

/// Memory for datagrams, registered on a helper thread.
pub(super) async fn pool(datagrams: &AsyncDatagrams, blocks: usize) -> Result<BufferPool> {
    let (pd, len) = (datagrams.pd().clone(), datagrams.max_payload() as usize);
    let pool = threads::run(move || BufferPool::new(&pd, len, blocks)).await;
    Ok(pool.map_err(Error::Thread)??)
}
