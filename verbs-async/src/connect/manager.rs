//! Connecting by `rdma_cm`, with any notifier and any executor.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use verbs_channel::exchange::rdmacm::{checked, hello, private_data as of_hello, refused};
use verbs_channel::verbs_core::rdmacm::{
    AddrResolved, Answer, ConnectRequest, Connector, Establishing, Message, PrivateData,
};
use verbs_channel::{ConnectedMember, PreparedChannel};

use super::awaited::Awaited;
use super::cm_listener::{CmListener, CmRequest};
use super::failure::exchange_error;
use super::listener::{Accepting, Listener, Meet};
use super::resolve::resolve_by;
use super::steps::{end_elsewhere, ended, explained, watch};
use super::time::{self, Deadline};
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::task::sync::Mutex;
use crate::threads;
use crate::threads::drop_on_thread::Elsewhere;

/// A peer that has accepted.
pub(super) struct Asked {
    pub(super) prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
    pub(super) answer: Elsewhere<Answer>,
    pub(super) theirs: PrivateData,
}

impl AsyncGroup {
    /// Needs the feature `rdmacm`. Connects by `rdma_cm` to a peer that accepts, on any executor. This is the
    /// only way on iWARP.
    ///
    /// The peer's address is that of an RDMA device. It determines this side's device, and the group must
    /// be of that device. The private data is up to 49 bytes to the peer, and up to 189 from it; on iWARP
    /// 244 each.
    ///
    /// While the peer does not listen yet, all of its addresses are tried again. A name is resolved on a
    /// helper thread. Dropping the future ends everything.
    ///
    /// The channel goes down when the peer disconnects or its process ends. `rdma_cm` does not notice that the
    /// peer's host has died.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use verbs_async::{AsyncGroup, Result};
    /// # async fn example(group: &AsyncGroup) -> Result<()> {
    /// let timeout = Duration::from_secs(5);
    /// let (channel, private_data) = group.connect_cm("192.0.2.1:7471", timeout, b"hello").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PreparedChannel::connect_cm`] and [`join`](Self::join).
    #[doc(alias = "rdma_connect")]
    pub async fn connect_cm(
        &self,
        peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let request = hello(private_data).map_err(exchange_error)?;
        let request: Arc<[u8]> = request.into();
        let deadline = self.deadline(timeout);
        let addresses = resolve_by(&deadline, peer).await?;
        let ask = |address| self.ask(None, address, Arc::clone(&request), &deadline);
        let (asked, address) = time::reach(&addresses, &deadline, ask).await?;
        let Asked {
            prepared,
            answer,
            theirs,
        } = asked;
        let met = async {
            let private_data = of_hello(&theirs).map_err(exchange_error)?;
            let channel = self.establish(prepared, answer, timeout).await?;
            Ok((channel, private_data))
        };
        deadline.bound(&Awaited::new(address, "answer"), met).await
    }

    /// Needs the feature `rdmacm`. Connects a channel that this group has [prepared](Self::prepare) by
    /// `rdma_cm`, to a program that does not use this crate: with the bytes of its own protocol, up to 56, or
    /// on iWARP 251.
    ///
    /// Its [prepared receives](PreparedChannel::start_receive) are posted before the peer can send. Returns
    /// the channel and the bytes of the peer, possibly followed by zeros. It fails if the peer does not
    /// listen yet.
    ///
    /// # Errors
    ///
    /// As [`connect_cm`](Self::connect_cm).
    pub fn connect_cm_raw(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        peer: SocketAddr,
        timeout: Duration,
        private_data: &[u8],
    ) -> impl Future<Output = Result<(AsyncChannel, PrivateData)>> {
        // Not in the future: it may never be polled.
        let prepared = Elsewhere::new(prepared);
        async move {
            let deadline = self.deadline(timeout);
            let met = async {
                let Asked {
                    prepared,
                    answer,
                    theirs,
                } = self
                    .ask(Some(prepared), peer, private_data.into(), &deadline)
                    .await?;
                let channel = self.establish(prepared, answer, timeout).await?;
                Ok((channel, theirs))
            };
            deadline.bound(&Awaited::new(peer, "answer"), met).await
        }
    }

    /// Needs the feature `rdmacm`. Accepts one peer by `rdma_cm` and connects a channel to it, on any executor.
    /// The private data is up to 189 bytes to the peer, and up to 49 from it; on iWARP 244 each.
    ///
    /// Dropping the future rejects only a peer that was already taken. While this waits for a slow peer, no
    /// other is accepted: servers use [`listen_cm`](Self::listen_cm).
    ///
    /// # Errors
    ///
    /// As [`PreparedChannel::accept_cm`], [`CmListener::request`] and [`join`](Self::join).
    #[doc(alias = "rdma_accept")]
    pub async fn accept_cm(
        &self,
        listener: &mut CmListener,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        // Private data that are too long are an error before a peer is taken.
        drop(hello(private_data).map_err(exchange_error)?);
        let deadline = self.deadline(timeout);
        let request = deadline.share(1, listener.request()).await?;
        let request = request.ok_or_else(|| deadline.late("connect"))??;
        let (peer, met) = (request.peer_addr(), self.meet_cm(request, private_data));
        deadline.bound(&Awaited::new(peer, "confirm"), met).await
    }

    /// Needs the feature `rdmacm`. Accepts many peers by `rdma_cm` concurrently, on any executor: peers that
    /// call [`connect_cm`](Self::connect_cm) or [`PreparedChannel::connect_cm`].
    ///
    /// ```no_run
    /// # use verbs_async::{AsyncGroup, CqEvents};
    /// # async fn example(group: AsyncGroup, events: CqEvents) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_async::CmListener;
    /// use verbs_async::verbs_core::rdmacm;
    ///
    /// let listener = rdmacm::Listener::bind("0.0.0.0:7471".parse()?, 128)?;
    /// let mut listener = group.listen_cm(CmListener::new(listener, &events)?);
    /// loop {
    ///     let arrival = listener.accept().await?;
    ///     // …
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn listen_cm(&self, listener: CmListener) -> Listener {
        let listener = Arc::new(Mutex::new(listener));
        let start = time::of_events(&self.shared().events);
        let last = Arc::clone(&listener);
        let accept = move || -> Accepting {
            let listener = Arc::clone(&listener);
            Box::pin(async move {
                let next = poll_fn(|cx| listener.lock().poll_request(cx)).await;
                let request = next.map_err(io::Error::from)?;
                let peer = request.peer_addr();
                let meet: Meet = Box::new(|group, private_data, _| {
                    Box::pin(async move { group.meet_cm(request, &private_data).await })
                });
                Ok((meet, peer))
            })
        };
        Listener::of_manager(self.clone(), start, accept, async move {
            if let Some(last) = Arc::into_inner(last) {
                last.into_inner().close().await;
            }
        })
    }

    /// Needs the feature `rdmacm`. Accepts a peer that connects by `rdma_cm` and does not use this crate, for a
    /// channel that this group has [prepared](Self::prepare): with the bytes of its own protocol, up to 196,
    /// or on iWARP 251.
    ///
    /// The [prepared receives](PreparedChannel::start_receive) are posted before the peer can send. Dropping
    /// the future rejects the peer, or ends the connection.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use verbs_async::verbs_channel::BufferPool;
    /// # use verbs_async::{AsyncGroup, CmListener};
    /// # async fn example(
    /// #     group: AsyncGroup,
    /// #     pool: BufferPool,
    /// #     mut listener: CmListener,
    /// # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// loop {
    ///     let request = listener.request().await?;
    ///     let mut prepared = group.prepare()?;
    ///     for block in std::iter::from_fn(|| pool.take()).take(8) {
    ///         prepared.start_receive(block)?;
    ///     }
    ///     let timeout = Duration::from_secs(5);
    ///     // In a task of its own, so that a slow peer does not delay the others:
    ///     let channel = group.accept_cm_raw(prepared, request, timeout, b"").await?;
    ///     for receive in channel.prepared_receives() {
    ///         let (received, block) = receive.await;
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PreparedChannel::accept_cm_raw`] and [`join`](Self::join).
    #[doc(alias = "rdma_accept")]
    pub fn accept_cm_raw(
        &self,
        prepared: PreparedChannel<ConnectedMember>,
        request: CmRequest,
        timeout: Duration,
        private_data: &[u8],
    ) -> impl Future<Output = Result<AsyncChannel>> {
        // Not in the future: it may never be polled.
        let prepared = Elsewhere::new(prepared);
        async move {
            let (deadline, peer) = (self.deadline(timeout), request.peer_addr());
            let met = self.accept(prepared, request.request, private_data.to_vec(), timeout);
            deadline.bound(&Awaited::new(peer, "confirm"), met).await
        }
    }

    /// Accepts a peer of this crate. There is no timeout: the listener has one.
    async fn meet_cm(
        &self,
        request: CmRequest,
        private_data: &[u8],
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let answer = hello(private_data).map_err(exchange_error)?;
        let checked = request.request.call(checked).await?;
        let (request, theirs) = checked.map_err(exchange_error)?;
        let request = Elsewhere::new(request);
        let prepared = self.prepare_elsewhere().await?;
        let accepted = self.accept(prepared, request, answer, Duration::ZERO);
        Ok((accepted.await?, theirs))
    }

    pub(super) async fn accept(
        &self,
        prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
        request: Elsewhere<ConnectRequest>,
        answer: Vec<u8>,
        timeout: Duration,
    ) -> Result<AsyncChannel> {
        let joined = request.call(move |request| prepared.into_inner().join_request_cm(request));
        let (member, accepting) = joined.await??;
        let (member, accepting) = (Elsewhere::new(member), Elsewhere::new(accepting));
        let channel = match self.join_when_free(member).await {
            Ok(channel) => channel,
            Err(error) => {
                let reason = refused(&error);
                let rejected =
                    accepting.call(move |accepting| accepting.reject(Message::raw(&reason)));
                // Best effort: this side's own error is the one to return.
                drop(rejected.await);
                return Err(error);
            }
        };
        let accepted = accepting.call(move |accepting| accepting.accept(Message::raw(&answer)));
        let confirming = accepted.await?.map_err(explained(timeout))?;
        let connection = ended(&self.shared().events, confirming, timeout).await?;
        watch(&channel, connection)?;
        Ok(channel)
    }

    /// Asks at one address, from a new connector, with a channel of its own if there is none.
    async fn ask(
        &self,
        prepared: Option<Elsewhere<PreparedChannel<ConnectedMember>>>,
        address: SocketAddr,
        request: Arc<[u8]>,
        deadline: &Deadline,
    ) -> Result<Asked> {
        let (events, timeout) = (&self.shared().events, deadline.timeout());
        let left = deadline.left().unwrap_or_default();
        let begun = threads::run(move || Connector::new()?.resolve_addr(address, left)).await;
        let resolving = begun.map_err(Error::Thread)?.map_err(explained(timeout))?;
        let resolved = ended(events, resolving, timeout).await?;
        self.ask_from(prepared, resolved, request, (left, timeout))
            .await
    }

    /// Asks at an address that has been found, within this time.
    pub(super) async fn ask_from(
        &self,
        prepared: Option<Elsewhere<PreparedChannel<ConnectedMember>>>,
        resolved: Elsewhere<AddrResolved>,
        request: Arc<[u8]>,
        (left, timeout): (Duration, Duration),
    ) -> Result<Asked> {
        let events = &self.shared().events;
        let begun = resolved.call(move |resolved: AddrResolved| resolved.resolve_route(left));
        let resolving = begun.await?.map_err(explained(timeout))?;
        let route = ended(events, resolving, timeout).await?;
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => self.prepare_elsewhere().await?,
        };
        let asked = route.call(move |route| {
            let mut prepared = prepared.into_inner();
            let asking = prepared.request_cm_from_any_port(route, &request, left)?;
            Ok((prepared, asking))
        });
        let (prepared, asking) = asked.await?.map_err(exchange_error)?;
        let prepared = Elsewhere::new(prepared);
        let answer = ended(events, asking, timeout).await?;
        let theirs = *answer.private_data();
        Ok(Asked {
            prepared,
            answer,
            theirs,
        })
    }

    /// Connects to a peer that has accepted.
    pub(super) async fn establish(
        &self,
        prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
        answer: Elsewhere<Answer>,
        timeout: Duration,
    ) -> Result<AsyncChannel> {
        let answered = answer.call(move |answer| prepared.into_inner().answered_cm(answer));
        let (member, establishing) = answered.await??;
        let (member, establishing) = (Elsewhere::new(member), Elsewhere::new(establishing));
        let channel = self.join_when_free(member).await?;
        let established = establishing.call(Establishing::establish).await?;
        let connection = established.map_err(explained(timeout))?;
        watch(&channel, Elsewhere::new(connection))?;
        Ok(channel)
    }

    /// Connects two channels of the group to each other.
    pub(crate) fn loopback_cm(
        &self,
        left: PreparedChannel<ConnectedMember>,
        right: PreparedChannel<ConnectedMember>,
    ) -> Result<(AsyncChannel, AsyncChannel)> {
        let (left, right) = left.pair_cm(right, Duration::from_secs(10))?;
        let [left, right] = [left, right].map(|(mut member, connection)| {
            member.watch_connection(connection, end_elsewhere);
            Ok::<_, Error>(self.join(member)?)
        });
        Ok((left?, right?))
    }

    fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::after(timeout, &time::of_events(&self.shared().events))
    }
}
