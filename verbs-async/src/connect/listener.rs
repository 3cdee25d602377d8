//! Listeners: many peers connect concurrently, and a slow peer does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{poll_fn, ready};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::__private::is_of_one_connection;
use verbs_channel::connect::PeerAddr;
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::Side;
use verbs_channel::{Connect, PreparedChannel};

use super::callers::{
    Bind, Boxed, Caller, Callers, HandshakeResult, MAX_HANDSHAKES, Meeting, Terms,
};
use super::clients::Clients;
use super::deadline::{Deadline, FirstDue, late_by};
use super::errors::{check, exchange_error, tcp, with_peer};
use super::exchange::Progress;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads;
use crate::threads::on_thread::OnThread;

/// Accepts peers over TCP, by `rdma_cm` or over datagrams, and connects a channel of a group to each.
///
/// Created by [`AsyncGroup::listen`]. Many exchanges and handshakes run concurrently, each with the timeout of the
/// [options](Connect), from when it has a place until it has a channel. So a slow or silent peer delays no
/// other, until [`max_handshakes`](Self::max_handshakes) are in progress. If another peer comes then, a peer that keeps
/// this side waiting for two seconds loses its place: the oldest of the address with the most that have sent nothing,
/// or of the address with the most of all, if that has more than its share of the places. Over datagrams,
/// one that does not confirm within one or two seconds does, clients of the port (GID or LID) with the fewest are
/// next, and no port takes places that another needs. Further peers wait in the backlog of the underlying listener,
/// or resend their datagrams until their own deadline. Datagrams with a forged source cost no memory.
///
/// This makes progress only while a task waits in [`accept`](Self::accept). So spawn a task for
/// each channel, and call `accept` again.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn example(group: verbs_async::AsyncGroup) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_async::{Error, ErrorChain, verbs_channel};
///
/// let mut listener = group.listen("0.0.0.0:7471", Duration::from_secs(2)).await?;
/// loop {
///     let arrival = match listener.accept().await {
///         Ok(arrival) => arrival,
///         Err(Error::Channel(error @ verbs_channel::Error::GroupFailed(_))) => {
///             return Err(error.into());
///         }
///         Err(error) => {
///             eprintln!("{}", ErrorChain::new(&error));
///             // Too many open files, for example.
///             tokio::time::sleep(Duration::from_millis(100)).await;
///             continue;
///         }
///     };
///     match arrival.outcome {
///         Ok(met) => drop(tokio::spawn(async move { drop(met.channel) })),
///         Err(error) => eprintln!("{:?}: {}", arrival.peer, ErrorChain::new(&error)),
///     }
/// }
/// # }
/// ```
pub struct Listener {
    local_addr: Option<SocketAddr>,
    max_handshakes: usize,
    // Only `poll_accept` uses it, by `&mut`. The lock is there to make it `Sync`.
    state: Mutex<State>,
}

struct State {
    terms: Terms,
    // Polled only while the group has not failed.
    failed: Boxed<Error>,
    source: Source,
    handshakes: Vec<Handshake>,
    // Has come while there was no place.
    waiting: Option<Caller>,
    timer: FirstDue,
}

enum Source {
    Callers(Box<dyn Callers>),
    Datagrams(Box<Clients>),
}

struct TcpCallers {
    listener: TcpListener,
    notifier: Box<dyn CqNotifier>,
    needs_rdma_cm: bool,
}

struct Handshake {
    peer: Option<SocketAddr>,
    progress: Arc<Progress>,
    met: Meeting,
}

impl Listener {
    pub(super) async fn new(
        group: &AsyncGroup,
        on: OnThread<Bind>,
        options: Connect,
    ) -> Result<Self> {
        let events = &group.shared().events;
        // The options are checked first: otherwise each peer would be refused for this side's mistake.
        let (source, local_addr) = match on.into_inner() {
            Bind::Address(address) => {
                check(group, &options)?;
                let bound = match address.known() {
                    Some(addresses) => TcpListener::bind(&addresses[..]),
                    None => {
                        let looked_up = threads::look_up(move || {
                            let addresses = address.resolve()?;
                            Ok::<_, verbs_channel::Error>(TcpListener::bind(&addresses[..]))
                        });
                        looked_up.await.map_err(Error::Thread)??
                    }
                };
                TcpCallers::on(bound?, group)?
            }
            Bind::Tcp(listener) => {
                check(group, &options)?;
                TcpCallers::on(listener, group)?
            }
            #[cfg(feature = "rdmacm")]
            on @ (Bind::Cm(_) | Bind::CmAddress(_)) => {
                let (callers, local_addr) = super::cm::requests(on, &options, events).await?;
                (Source::Callers(callers), local_addr)
            }
            Bind::Datagrams(datagrams) => {
                options.check().map_err(exchange_error)?;
                let clients = Clients::new(datagrams, events).await?;
                (Source::Datagrams(Box::new(clients)), None)
            }
        };
        let state = State {
            failed: Box::pin(Arc::clone(group.shared()).failed()),
            terms: Terms {
                group: group.clone(),
                options,
                prepare: None,
            },
            source,
            handshakes: Vec::new(),
            waiting: None,
            timer: FirstDue::default(),
        };
        Ok(Self {
            local_addr,
            max_handshakes: MAX_HANDSHAKES,
            state: Mutex::new(state),
        })
    }

    /// Waits for the next peer whose handshake has completed or failed.
    ///
    /// Dropping the future loses no peer.
    ///
    /// # Errors
    ///
    /// This side cannot accept, for example because no descriptors are left (`EMFILE`), or the datagram endpoint is
    /// down. The call can be repeated. The error of a single peer is in its [`HandshakeResult`]. After [`Error::Channel`] with
    /// [`GroupFailed`](verbs_channel::Error::GroupFailed) no peer can be accepted any more: the device, the completion
    /// queue or the notifier of the group has failed.
    pub async fn accept(&mut self) -> Result<HandshakeResult> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<HandshakeResult>> {
        let max_handshakes = self.max_handshakes;
        let state = self.state.get_mut();
        let failed = state.terms.group.poll_failed(state.failed.as_mut(), cx);
        if let Poll::Ready(error) = failed {
            return Poll::Ready(Err(error));
        }
        if let Source::Datagrams(clients) = &mut state.source {
            return clients.poll_accept(&state.terms, max_handshakes, cx);
        }
        if let Some(arrival) = state.poll_handshakes(cx, 0) {
            return Poll::Ready(Ok(arrival));
        }
        loop {
            let timeout = state.terms.options.timeout();
            if let Some(at) = state.overdue(timeout) {
                return Poll::Ready(Ok(state.late(at, timeout)));
            }
            if state.waiting.is_none()
                && let Source::Callers(callers) = &mut state.source
                && let Poll::Ready(come) = callers.poll_caller(cx)
            {
                match come {
                    Ok(caller) => state.waiting = Some(caller),
                    Err(error) if is_of_one_connection(&error) => continue,
                    Err(error) => return Poll::Ready(Err(tcp("accept", error))),
                }
            }
            if state.handshakes.len() < max_handshakes {
                if let Some(caller) = state.waiting.take() {
                    state.begin(caller);
                    if let Some(arrival) = state.poll_handshakes(cx, state.handshakes.len() - 1) {
                        return Poll::Ready(Ok(arrival));
                    }
                    continue;
                }
            } else if state.waiting.is_some()
                && let Some((at, since)) = state.loser(max_handshakes)
                && since.elapsed() >= SILENCE
            {
                return Poll::Ready(Ok(state.late(at, SILENCE)));
            }
            task::ready!(state.poll_timer(max_handshakes, cx))?;
        }
    }

    /// The address that it listens at; `None` over datagrams.
    #[must_use]
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// Sets how many handshakes can be in progress. The default and the maximum are 256, and the minimum is 1.
    ///
    /// Each handshake takes a queue pair.
    #[must_use]
    pub fn max_handshakes(mut self, peers: usize) -> Self {
        self.max_handshakes = peers.clamp(1, MAX_HANDSHAKES);
        self
    }

    /// Sets the function that prepares the channel for each peer, on a helper thread: usually with
    /// [receives](PreparedChannel::start_receive), which are posted before the peer can send. If it returns an error,
    /// the peer is refused, and sent the error's text.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     group: verbs_async::AsyncGroup,
    /// #     pool: verbs_async::verbs_channel::BufferPool,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let listener = group.listen("0.0.0.0:7471", Duration::from_secs(5)).await?;
    /// let mut listener = listener.prepare_with(move |group, _peer| {
    ///     let mut prepared = group.prepare()?;
    ///     for block in std::iter::from_fn(|| pool.take()).take(8) {
    ///         prepared.start_receive(block).map_err(|rejected| rejected.into_error())?;
    ///     }
    ///     Ok(prepared)
    /// });
    /// let channel = listener.accept().await?.outcome?.channel;
    /// for receive in channel.prepared_receives() {
    ///     let (received, block) = receive.await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn prepare_with(
        mut self,
        prepare: impl Fn(&AsyncGroup, Option<PeerAddr>) -> Result<PreparedChannel<ConnectedMember>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.state.get_mut().terms.prepare = Some(Arc::new(prepare));
        self
    }

    /// Ends the handshakes in progress, and closes what it listens with: its port is free when this returns.
    ///
    /// Dropping the listener does the same, but with `rdma_cm` on a helper thread, without waiting for it.
    pub async fn close(self) {
        let state = self.state.into_inner();
        drop((state.handshakes, state.waiting));
        if let Source::Callers(callers) = state.source {
            callers.close().await;
        }
    }
}

impl TcpCallers {
    fn on(listener: TcpListener, group: &AsyncGroup) -> Result<(Source, Option<SocketAddr>)> {
        listener.set_nonblocking(true)?;
        let events = &group.shared().events;
        let callers = Self {
            notifier: events.another_notifier(listener.try_clone()?.into())?,
            needs_rdma_cm: group.pd().context().device().needs_rdma_cm(),
            listener,
        };
        let local_addr = callers.listener.local_addr().ok();
        Ok((Source::Callers(Box::new(callers)), local_addr))
    }
}

impl Callers for TcpCallers {
    fn poll_caller(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Caller>> {
        let (stream, peer) = loop {
            match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    task::ready!(self.notifier.poll_readable(cx))?;
                }
                accepted => break accepted?,
            }
        };
        Poll::Ready(Ok(Caller {
            peer: Some(peer),
            connect: Box::new(move |terms, progress| {
                Box::pin(async move {
                    let prepared = terms.prepare(Some(peer.into()));
                    let (group, options) = (&terms.group, &terms.options);
                    let end = (stream, Side::Accepts);
                    group.exchange_over(end, options, prepared, &progress).await
                })
            }),
        }))
    }

    fn late(&self, has_shown: bool) -> &'static str {
        match has_shown && self.needs_rdma_cm {
            true => "connect",
            false => "write",
        }
    }

    fn close(self: Box<Self>) -> Boxed<()> {
        Box::pin(ready(()))
    }
}

impl State {
    fn begin(&mut self, caller: Caller) {
        let terms = self.terms.clone();
        let (timeout, events) = (terms.options.timeout(), &terms.group.shared().events);
        let progress = Arc::new(Progress::new(Deadline::of_listener(timeout, events)));
        let met = (caller.connect)(terms, Arc::clone(&progress));
        self.handshakes.push(Handshake {
            peer: caller.peer,
            progress,
            met,
        });
    }

    /// The first handshake, from this index on, that has completed.
    fn poll_handshakes(&mut self, cx: &mut Context<'_>, from: usize) -> Option<HandshakeResult> {
        for at in from..self.handshakes.len() {
            if let Poll::Ready(outcome) = self.handshakes[at].met.as_mut().poll(cx) {
                let Handshake { peer, .. } = self.handshakes.swap_remove(at);
                let outcome = outcome.map_err(|error| with_peer(error, peer));
                let peer = peer.map(PeerAddr::Socket);
                return Some(HandshakeResult { peer, outcome });
            }
        }
        None
    }

    /// The oldest handshake, if it has taken this time.
    fn overdue(&self, time: Duration) -> Option<usize> {
        let begun = |at: &usize| self.handshakes[*at].begun();
        let oldest = (0..self.handshakes.len()).min_by_key(begun);
        oldest.filter(|at| begun(at).elapsed() >= time)
    }

    /// The first handshake that loses its place to another peer, and since when this side waits for its peer: the
    /// oldest of the address with the most that have shown nothing, or of the address with the most of all, if
    /// those are more than its share.
    fn loser(&self, max_handshakes: usize) -> Option<(usize, Instant)> {
        let addresses: BTreeSet<_> = self.handshakes.iter().map(Handshake::ip).collect();
        // One address more: a peer behind the one that waits may be of another.
        let share = (max_handshakes / (addresses.len() + 1)).max(1);
        let silent = self.oldest_of_most(1, |one| !one.progress.has_shown());
        let any = self.oldest_of_most(share + 1, |_| true);
        silent
            .into_iter()
            .chain(any)
            .min_by_key(|(_, since)| *since)
    }

    /// The oldest of the handshakes of this kind in which this side waits for the peer, and since when: among those
    /// of the address that has the most, if it has at least `least`.
    fn oldest_of_most(
        &self,
        least: usize,
        is_one: impl Fn(&Handshake) -> bool,
    ) -> Option<(usize, Instant)> {
        let mut by_address = BTreeMap::<_, Vec<_>>::new();
        for (at, one) in self.handshakes.iter().enumerate() {
            if is_one(one)
                && let Some(since) = one.progress.waits_since()
            {
                let same = by_address.entry(one.ip()).or_default();
                same.push((one.begun(), at, since));
            }
        }
        let most = by_address.into_values().max_by_key(Vec::len)?;
        let oldest = most.iter().min_by_key(|(begun, ..)| *begun);
        let (_, at, since) = oldest.filter(|_| most.len() >= least)?;
        Some((*at, *since))
    }

    /// Ends a handshake that has taken this time.
    fn late(&mut self, at: usize, after: Duration) -> HandshakeResult {
        let Handshake { peer, progress, .. } = self.handshakes.swap_remove(at);
        let what = match &self.source {
            Source::Callers(callers) => callers.late(progress.has_shown()),
            Source::Datagrams(_) => "confirm",
        };
        HandshakeResult {
            peer: peer.map(PeerAddr::Socket),
            outcome: Err(with_peer(late_by(after, what), peer)),
        }
    }

    /// Waits until the first handshake is late, or loses its place.
    fn poll_timer(&mut self, max_handshakes: usize, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let timeout = self.terms.options.timeout();
        let begun = self.handshakes.iter().map(Handshake::begun).min();
        let late = begun.and_then(|begun| begun.checked_add(timeout));
        let is_full = self.waiting.is_some() && self.handshakes.len() >= max_handshakes;
        let loser = is_full.then(|| self.loser(max_handshakes)).flatten();
        let loses = loser.and_then(|(_, since)| since.checked_add(SILENCE));
        let due = late.into_iter().chain(loses).min();
        let events = &self.terms.group.shared().events;
        self.timer.poll(due, events, cx)
    }
}

impl Handshake {
    fn begun(&self) -> Instant {
        self.progress.deadline.begun()
    }

    fn ip(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip())
    }
}

/// How long this side waits for a peer before that may lose its place to another.
const SILENCE: Duration = Duration::from_secs(2);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local_addr", &self.local_addr)
            .field("max_handshakes", &self.max_handshakes)
            .finish_non_exhaustive()
    }
}
