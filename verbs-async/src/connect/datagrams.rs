//! Connecting over datagrams.

use std::future::Future;
use std::time::{Duration, Instant};

use verbs_channel::__private::datagram_exchange::{Connector, Step};
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::exchange::PeerEndpoint;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Connect};

use super::deadline::Deadline;
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::group::{AsyncGroup, Prepared};
use crate::threads;

/// Datagrams of an exchange in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 4;

/// How long the last datagram of an exchange may take to leave.
const LEAVING: Duration = Duration::from_millis(100);

impl AsyncGroup {
    /// Connects to the server that has this endpoint.
    pub(super) async fn connect_over(
        &self,
        (datagrams, server): (&AsyncDatagrams, DatagramEndpoint),
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        deadline: &Deadline,
    ) -> Result<Met<AsyncChannel>> {
        options.check()?;
        let prepared = deadline.bound("answer", prepared).await?;
        let (max, ours) = (datagrams.max_payload(), prepared.endpoint());
        let (begun, data) = (deadline.begun, options.data());
        let connector = Connector::new(&server, &ours, data, max, begun, options.timeout());
        let mut connector = connector?;
        let client = Client {
            datagrams,
            pool: deadline.bound("answer", pool(datagrams, BUFFERS)).await?,
            deadline,
        };
        let peer = client.run(&mut connector).await?;
        let handshake = self.handshake_with(prepared, peer.endpoint, None);
        let connected = deadline.bound("answer", handshake).await;
        match &connected {
            Ok(_) => connector.ready(),
            Err(error) => connector.refuse(error),
        }
        let agreed = client.run(&mut connector).await;
        // The error of the handshake is more precise than that of the exchange.
        let channel = connected?;
        agreed?;
        let server = PeerAddr::Datagram(server);
        Ok(Met::new(channel, peer.private_data, Some(server)))
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
    async fn run(&self, connector: &mut Connector) -> Result<PeerEndpoint> {
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
                Err(error) => break Err(error.into()),
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
        let left = self.deadline.left().max(LEAVING);
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
    Ok(threads::run(move || BufferPool::new(&pd, len, blocks)).await??)
}
