//! Connecting by `rdma_cm` two channels that have met over a stream: devices of iWARP connect in no other way.

use std::future::{Future as _, poll_fn};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use verbs_channel::exchange::rdmacm::{
    connector, explain, is_unresolved, listener, may_be_of_peer, to_stranger,
};
use verbs_channel::exchange::{Exchange, ExchangeError, Meeting};
use verbs_channel::verbs_core::rdmacm::{AddrResolved, ConnectRequest, Listener, Message};
use verbs_channel::{ConnectedMember, PreparedChannel};

use super::awaited::Awaited;
use super::cm_requests::Requests;
use super::exchange::{agreed, run};
use super::failure::{exchange_error, with_peer};
use super::manager::Asked;
use super::steps::ended;
use super::time::{self, Deadline};
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::threads;
use crate::threads::drop_on_thread::Elsewhere;

/// How long the kernel waits for an address before it looks again, and how often: an answer on the way may be
/// lost.
const AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 10;

/// How long the side that could not connect waits for the peer's reason: it is on the way if it has one.
const REASON: Duration = Duration::from_millis(500);

impl AsyncGroup {
    /// The rest of an exchange of a side that connects by `rdma_cm`.
    pub(super) async fn meet_by_manager(
        &self,
        (mut stream, socket): (impl AsyncRead + AsyncWrite + Unpin, Option<TcpStream>),
        mut exchange: Exchange,
        prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
        awaited: Option<&Awaited>,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        run(&mut stream, &mut exchange)
            .await
            .map_err(exchange_error)?;
        let awaits = |what, at| awaited.map_or((), |awaited| awaited.set(what, at));
        let ends = (&mut stream, socket);
        let met = self.meet_met(ends, &mut exchange, prepared, &awaits).await;
        awaits("write", None);
        agreed(stream, exchange, met).await
    }

    async fn meet_met(
        &self,
        (stream, socket): (
            &mut (impl AsyncRead + AsyncWrite + Unpin),
            Option<TcpStream>,
        ),
        exchange: &mut Exchange,
        prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
        awaits: &(impl Fn(&'static str, Option<SocketAddr>) + Send + Sync),
    ) -> Result<AsyncChannel> {
        let local = socket.as_ref().and_then(|socket| socket.local_addr().ok());
        let met = exchange.meeting().cloned();
        let meeting = &met.ok_or_else(|| exchange_error(ExchangeError::Over))?;
        let channel = if meeting.listens {
            let request = self
                .asked(stream, exchange, (meeting, local), awaits)
                .await?;
            let asks = request.peer_addr();
            awaits("answer", asks);
            let answer = meeting.answer().map_err(exchange_error)?;
            self.accept(prepared, request, answer, Duration::ZERO)
                .await?
        } else {
            let meeting = (meeting, local);
            self.connect_met(stream, exchange, meeting, prepared, awaits)
                .await?
        };
        if let Some(socket) = socket {
            channel.watch_peer(OwnedFd::from(socket))?;
        }
        Ok(channel)
    }

    /// This side listens: the request of the peer at the end of the stream. If the peer cannot connect, it sends
    /// the reason over that.
    async fn asked(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        exchange: &mut Exchange,
        (meeting, local): (&Meeting, Option<SocketAddr>),
        awaits: &(impl Fn(&'static str, Option<SocketAddr>) + Send + Sync),
    ) -> Result<Elsewhere<ConnectRequest>> {
        let context = self.pd().context().clone();
        let listener = threads::run(move || listener(&context, local)).await;
        let listener = listener.map_err(Error::Thread)?.map_err(exchange_error)?;
        let mut requests = Requests::<Listener>::new(listener, &self.shared().events)?;
        exchange.listens_at(requests.local_addr());
        run(stream, exchange).await.map_err(exchange_error)?;
        awaits("connect", None);
        exchange.read_ahead();
        let mut ahead = pin!(run(stream, exchange));
        let mut is_read = false;
        loop {
            let next = poll_fn(|cx| {
                // If it is no error, it is a READY that came too early: the request is due as before.
                if !is_read && let Poll::Ready(read) = ahead.as_mut().poll(cx) {
                    is_read = true;
                    if let Err(error) = read {
                        return Poll::Ready(Err(exchange_error(error)));
                    }
                }
                requests.poll_request(cx)
            });
            let request = next.await?;
            let is_ours = meeting.is_request(request.private_data());
            let request = Elsewhere::new(request);
            if is_ours {
                return Ok(request);
            }
            let reason = to_stranger();
            let rejected =
                request.call(move |request: ConnectRequest| request.reject(Message::raw(&reason)));
            // Best effort: without the reason a stranger is rejected, too.
            drop(rejected.await);
        }
    }

    /// The peer listens, and this side connects.
    async fn connect_met(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        exchange: &mut Exchange,
        (meeting, local): (&Meeting, Option<SocketAddr>),
        prepared: Elsewhere<PreparedChannel<ConnectedMember>>,
        awaits: &(impl Fn(&'static str, Option<SocketAddr>) + Send + Sync),
    ) -> Result<AsyncChannel> {
        exchange.listens_at(None);
        run(stream, exchange).await.map_err(exchange_error)?;
        let to = exchange.meeting().and_then(|meeting| meeting.listener);
        let to = to.ok_or_else(|| exchange_error(ExchangeError::Over))?;
        let request = meeting.request().map_err(exchange_error)?;
        awaits("answer", Some(to));
        let asked = async {
            let resolved = self.resolved(local, to).await?;
            self.ask_from(Some(prepared), resolved, request.into(), (AGAIN, AGAIN))
                .await
        };
        let asked = asked.await;
        let is_of_peer = |error: &Error| match error {
            Error::Channel(verbs_channel::Error::Exchange(failure)) => {
                may_be_of_peer(&failure.error)
            }
            _ => false,
        };
        if asked.as_ref().is_err_and(is_of_peer)
            && let Some(refused) = self.refusal(stream, exchange).await
        {
            // The peer's own reason is more precise.
            return Err(exchange_error(refused));
        }
        let connected = async {
            let Asked {
                prepared,
                answer,
                theirs,
            } = asked?;
            // Dropping the answer ends the connection.
            meeting.check_answer(&theirs).map_err(exchange_error)?;
            self.establish(prepared, answer, Duration::ZERO).await
        };
        let connected = connected.await;
        connected.map_err(|error| with_peer(error, Some(to)))
    }

    /// The reason that the peer has sent instead of its part of the exchange, or sends soon. If there is none, the
    /// exchange can go on.
    async fn refusal(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        exchange: &mut Exchange,
    ) -> Option<ExchangeError> {
        exchange.read_ahead();
        let soon = Deadline::after(REASON, &time::of_events(&self.shared().events));
        let read = soon.share(1, run(stream, exchange)).await.ok()??;
        read.err()
            .filter(|error| matches!(error, ExchangeError::Refused { .. }))
    }

    /// The way to the peer's listener, from an address of this group's device.
    async fn resolved(
        &self,
        local: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<Elsewhere<AddrResolved>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let context = self.pd().context().clone();
            let begun = threads::run(move || {
                let (connector, to) = connector(&context, local, to)?;
                let resolving = connector.resolve_addr(to, AGAIN);
                resolving.map_err(|error| explain(error, AGAIN))
            });
            let resolving = begun.await.map_err(Error::Thread)?;
            let resolving = resolving.map_err(exchange_error)?;
            let resolved = ended(&self.shared().events, resolving, AGAIN).await;
            match resolved {
                Err(error) if tries < TRIES && may_be_resolved(&error) => {}
                resolved => return resolved,
            }
        }
    }
}

/// Whether another try may find the address.
fn may_be_resolved(error: &Error) -> bool {
    let Error::Channel(verbs_channel::Error::Exchange(failure)) = error else {
        return false;
    };
    matches!(&failure.error, ExchangeError::Manager(error) if is_unresolved(error))
}
