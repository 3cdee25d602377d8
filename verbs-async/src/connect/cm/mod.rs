//! Connecting by `rdma_cm` in async code.
//!
//! A call that has an identifier of `rdma_cm` may block, and so may dropping it. So all of these run on the
//! helper threads. A task waits only for their results, and for the descriptor of a step.

mod datagrams;
mod multicast;
mod requests;

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use verbs_channel::__private::{CmDatagrams, CmExchange, CmStep, HostAddress, Meeting};
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::{Exchange, ExchangeError};
pub(super) use verbs_channel::verbs_core::rdmacm::ConnectRequest;
use verbs_channel::verbs_core::rdmacm::{Connection, Pending, Step};
use verbs_channel::{Connect, PreparedChannel};

use super::deadline::{Deadline, GRACE};
use super::tcp::Socket;
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::group::{AsyncGroup, Prepared};
use crate::threads::Source;
use crate::threads::on_thread::OnThread;
pub use datagrams::{CmDatagramListener, CmDatagramRequest};
pub(super) use requests::{Requests, bind};

type Side = OnThread<CmExchange<ConnectedMember>>;

/// How long the side that could not connect waits for the peer's reason: it is on the way if it has one.
const REASON: Duration = Duration::from_millis(500);

impl AsyncGroup {
    /// Connects to a peer that accepts by `rdma_cm`.
    pub(super) async fn connect_cm(
        &self,
        peer: HostAddress,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        deadline: &Deadline,
    ) -> Result<Met<AsyncChannel>> {
        options.check_cm()?;
        let addresses = deadline.resolve(peer).await?;
        let prepared = deadline.bound("answer", prepared).await?.into_inner();
        // The options were checked: an error would drop the channel here.
        let side = CmExchange::connect(prepared, addresses, options, deadline.begun)?;
        let met = self.run_cm(OnThread::new(side), deadline);
        deadline.bound_with(GRACE, "answer", met).await
    }

    /// Accepts a peer that asks for a connection.
    pub(super) async fn accept_cm(
        &self,
        request: OnThread<ConnectRequest>,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        deadline: &Deadline,
    ) -> Result<Met<AsyncChannel>> {
        let prepared = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                let refused = request.call(None, move |request| {
                    PreparedChannel::refuse(request, Duration::ZERO, &error);
                    error
                });
                return Err(refused.await?);
            }
        };
        let (options, begun) = (options.clone(), deadline.begun);
        let side = request.call(None, move |request| {
            CmExchange::accept(prepared.into_inner(), request, &options, begun)
        });
        self.run_cm(OnThread::new(side.await??), deadline).await
    }

    /// Connects to the peer of an exchange over TCP, as devices of iWARP need it. If the peer cannot connect, it sends
    /// the reason over the stream.
    pub(super) async fn meet_by_manager(
        &self,
        socket: &Socket<'_>,
        exchange: &mut Exchange,
        meeting: Meeting,
        prepared: Prepared,
        deadline: &Deadline,
    ) -> Result<AsyncChannel> {
        deadline.expects("connect");
        let listens = meeting.listens;
        let local = socket.stream.local_addr().ok();
        let (timeout, begun) = (deadline.timeout, deadline.begun);
        let side = prepared.call(None, move |prepared| {
            CmExchange::meet(prepared, &meeting, local, timeout, begun)
        });
        let mut side = OnThread::new(side.await??);
        exchange.listens_at(side.listens_at());
        deadline.waits();
        socket.run(exchange).await?;
        let listener = exchange.meeting().and_then(|meeting| meeting.listener);
        side.meets(listener);
        exchange.read_ahead();
        let met = self.run_cm(side, deadline);
        if listens {
            let refused = async {
                match socket.run(exchange).await {
                    Err(refused) => Err(refused.into()),
                    // A READY that came too early: the request is due as before.
                    Ok(()) => pending().await,
                }
            };
            return Ok(first(met, refused).await?.channel);
        }
        let met = met.await;
        if let Err(Error::Channel(verbs_channel::Error::Exchange(failure))) = &met
            && failure.error.may_be_of_peer()
        {
            let time = REASON.min(deadline.left());
            let read = deadline.within(time, socket.run(exchange)).await?;
            if let Some(Err(refused @ ExchangeError::Refused { .. })) = read {
                // The peer's own reason is more precise.
                return Err(refused.into());
            }
        }
        met.map(|met| met.channel)
            .map_err(|error| error.with_peer(listener))
    }

    /// Runs one side until its channel has joined, and the peer is connected.
    async fn run_cm(&self, mut side: Side, deadline: &Deadline) -> Result<Met<AsyncChannel>> {
        let mut channel = None;
        loop {
            let source = side.peer_addr().map(|peer| Source::Peer(peer.ip()));
            let step;
            (side, step) = side.call_mut(source, CmExchange::step).await?;
            match step? {
                CmStep::Wait(until) => {
                    deadline.waits();
                    readable(&side, until, deadline).await?;
                }
                CmStep::Connected(member) => {
                    deadline.peer_has_shown();
                    match self.join_when_free(OnThread::new(member)).await {
                        Ok(joined) => {
                            channel = Some(joined);
                            side.ready();
                        }
                        Err(error) => {
                            let refuse = move |side: &mut CmExchange<_>| {
                                side.refuse(&error);
                                error
                            };
                            let (_side, error) = side.call_mut(None, refuse).await?;
                            return Err(error);
                        }
                    }
                }
                CmStep::Established(connection) => {
                    let peer = side.peer_addr().map(PeerAddr::Socket);
                    let private_data = side.into_inner().into_private_data();
                    let channel = channel.ok_or(ExchangeError::Over)?;
                    channel.watch_connection(connection)?;
                    return Ok(Met::new(channel, private_data, peer));
                }
            }
        }
    }
}

/// The output of the future that is ready first.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

impl AsyncChannel {
    /// Watches the peer through a connection of `rdma_cm`, which is ended on a helper thread.
    fn watch_connection(&self, connection: Connection) -> Result<()> {
        let connection = OnThread::new(connection);
        self.group().watch_peers()?;
        let watched = (self.driver())
            .with_engine(|engine| engine.watch_connection(self.id(), connection.into_inner()));
        Ok(watched?)
    }
}

/// Waits until a side can go on, or until then.
async fn readable(side: &Side, until: Instant, deadline: &Deadline) -> Result<()> {
    let descriptor = side.poll_fd().map(|fd| fd.try_clone_to_owned());
    let Some(descriptor) = descriptor.transpose()? else {
        return deadline.sleep_until(until).await;
    };
    let notifier = deadline.events.another_notifier(descriptor)?;
    let time = until.saturating_duration_since(Instant::now());
    let readable = deadline.within(time, notifier.readable()).await?;
    Ok(readable.transpose().map(|_late| ())?)
}

/// Waits until a step of datagrams has ended. `timeout` is that of the whole search, for its errors.
async fn ended<S>(events: &CqEvents, pending: Pending<S>, timeout: Duration) -> Result<OnThread<S>>
where
    S: Step + Send + 'static,
    Pending<S>: Send,
{
    let descriptor = pending.poll_fd().map(|fd| fd.try_clone_to_owned());
    let mut pending = OnThread::new(pending);
    let descriptor = descriptor.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?;
    let notifier = events.another_notifier(descriptor)?;
    loop {
        notifier.readable().await?;
        let polled;
        (pending, polled) = pending.call_mut(None, Pending::poll).await?;
        let explained = |error| CmDatagrams::explain(error, timeout);
        if let Some(ended) = polled.map_err(explained)? {
            return Ok(OnThread::new(ended));
        }
    }
}
