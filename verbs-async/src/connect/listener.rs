//! Listeners: many peers connect concurrently, and a slow peer does not delay the others.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
#[cfg(feature = "rdmacm")]
use std::net::Ipv6Addr;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use verbs_channel::connect::PeerAddr;
use verbs_channel::exchange::Side;
#[cfg(feature = "rdmacm")]
use verbs_channel::verbs_core::rdmacm;
use verbs_channel::{Connect, ConnectedMember, Met, PreparedChannel};

use super::arrival::{Arrival, Bind, MAX_HANDSHAKES, SHORTEST, Terms};
use super::clients::Clients;
#[cfg(feature = "rdmacm")]
use super::cm_requests::Requests;
use super::deadline::{Deadline, Timer, late_by, no_timer};
use super::errors::{tcp, with_peer};
use super::exchange::Progress;
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::group::AsyncGroup;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads;
use crate::threads::drop_on_thread::Elsewhere;

/// Accepts peers over TCP, by `rdma_cm` or over datagrams, and connects a channel of a group to each.
///
/// Created by [`AsyncGroup::listen`]. Many exchanges and handshakes run concurrently, each with the timeout of the
/// [options](Connect), from its connection or request until it has a channel. So a slow or silent peer delays no
/// other, until [`max_handshakes`](Self::max_handshakes) are in progress. If another peer comes then, one that has
/// shown nothing for two seconds loses its place: the oldest of the address with the most. Over datagrams,
/// one that does not confirm within one or two seconds does, clients of the port (GID or LID) with the fewest are
/// next, and no port takes places that another needs. Further peers wait in the backlog of the underlying listener,
/// or resend their datagrams until their own deadline. Datagrams with a forged source cost no memory: see
/// [`datagram_exchange`](verbs_channel::datagram_exchange).
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
/// use verbs_async::ErrorChain;
///
/// let mut listener = group.listen("0.0.0.0:7471", Duration::from_secs(2)).await?;
/// loop {
///     let arrival = listener.accept().await?;
///     match arrival.outcome {
///         Ok(met) => drop(tokio::spawn(async move { drop(met.channel) })),
///         Err(error) => eprintln!("{}: {}", arrival.peer, ErrorChain::new(&error)),
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
    failed: Pin<Box<dyn Future<Output = Error> + Send>>,
    source: Source,
    handshakes: Vec<Handshake>,
    // Has come while there was no place.
    waiting: Option<(Caller, SocketAddr)>,
    timer: Option<Timer>,
}

enum Source {
    Tcp(TcpListener, Box<dyn CqNotifier>),
    #[cfg(feature = "rdmacm")]
    Cm(Requests<rdmacm::Listener>),
    Datagrams(Box<Clients>),
}

/// A peer that asks for a channel.
enum Caller {
    Tcp(TcpStream),
    #[cfg(feature = "rdmacm")]
    Cm(Box<Elsewhere<rdmacm::ConnectRequest>>),
}

struct Handshake {
    peer: SocketAddr,
    begun: Instant,
    progress: Arc<Progress>,
    met: Pin<Box<dyn Future<Output = Result<Met<AsyncChannel>>> + Send>>,
}

impl Listener {
    pub(super) async fn new(group: &AsyncGroup, on: Bind, options: Connect) -> Result<Self> {
        let events = &group.shared().events;
        let (source, local_addr) = match on {
            Bind::Address(address) => {
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
                Source::tcp(bound?, events)?
            }
            Bind::Tcp(listener) => Source::tcp(listener, events)?,
            #[cfg(feature = "rdmacm")]
            Bind::Cm(listener) => {
                let requests = Requests::new(listener, events)?;
                let local_addr = requests.local_addr();
                (Source::Cm(requests), local_addr)
            }
            Bind::Datagrams(datagrams) => {
                let clients = Clients::new(datagrams, &options, events).await?;
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
            timer: None,
        };
        Ok(Self {
            local_addr,
            max_handshakes: MAX_HANDSHAKES,
            state: Mutex::new(state),
        })
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
        prepare: impl Fn(&AsyncGroup, PeerAddr) -> Result<PreparedChannel<ConnectedMember>>
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
        #[cfg(feature = "rdmacm")]
        if let Source::Cm(requests) = state.source {
            drop((state.handshakes, state.waiting));
            requests.close().await;
            return;
        }
        drop(state);
    }

    /// Waits for the next peer whose handshake has completed or failed.
    ///
    /// Dropping the future loses no peer.
    ///
    /// # Errors
    ///
    /// This side cannot accept, for example because no descriptors are left (`EMFILE`), or the datagram endpoint is
    /// down. The call can be repeated. The error of a single peer is in its [`Arrival`]. After [`Error::Channel`] with
    /// [`GroupFailed`](verbs_channel::Error::GroupFailed) no peer can be accepted any more: the device, the completion
    /// queue or the notifier of the group has failed.
    pub async fn accept(&mut self) -> Result<Arrival> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arrival>> {
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
            if let Some(at) = state.first(timeout, |_| true) {
                return Poll::Ready(Ok(state.late(at, timeout)));
            }
            if state.waiting.is_none()
                && let Poll::Ready(come) = state.source.poll_caller(cx)
            {
                match come {
                    Ok(caller) => state.waiting = Some(caller),
                    Err(error) if is_of_one_connection(&error) => continue,
                    Err(error) => return Poll::Ready(Err(tcp("accept", error))),
                }
            }
            if state.handshakes.len() < max_handshakes {
                if let Some((caller, peer)) = state.waiting.take() {
                    state.begin(caller, peer);
                    if let Some(arrival) = state.poll_handshakes(cx, state.handshakes.len() - 1) {
                        return Poll::Ready(Ok(arrival));
                    }
                    continue;
                }
            } else if state.waiting.is_some()
                && let Some(at) = state.silent()
            {
                return Poll::Ready(Ok(state.late(at, SILENCE)));
            }
            ready!(state.poll_timer(cx))?;
        }
    }
}

impl Source {
    fn tcp(listener: TcpListener, events: &CqEvents) -> Result<(Self, Option<SocketAddr>)> {
        listener.set_nonblocking(true)?;
        let notifier = events.another_notifier(listener.try_clone()?.into())?;
        let local_addr = listener.local_addr().ok();
        Ok((Self::Tcp(listener, notifier), local_addr))
    }

    fn poll_caller(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Caller, SocketAddr)>> {
        match self {
            Self::Tcp(listener, notifier) => loop {
                match listener.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(notifier.poll_readable(cx))?;
                    }
                    accepted => {
                        return Poll::Ready(
                            accepted.map(|(stream, peer)| (Caller::Tcp(stream), peer)),
                        );
                    }
                }
            },
            #[cfg(feature = "rdmacm")]
            Self::Cm(requests) => requests.poll_request(cx).map(|request| {
                let request = request.map_err(io::Error::from)?;
                let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
                let peer = request.peer_addr().unwrap_or(unknown);
                Ok((Caller::Cm(Box::new(Elsewhere::new(request))), peer))
            }),
            Self::Datagrams(_) => Poll::Pending,
        }
    }
}

impl State {
    fn begin(&mut self, caller: Caller, peer: SocketAddr) {
        let terms = self.terms.clone();
        let (timeout, events) = (terms.options.timeout(), &terms.group.shared().events);
        let progress = Arc::new(Progress::new(Deadline::of_listener(timeout, events)));
        let shared = Arc::clone(&progress);
        let met = async move {
            let prepared = terms.prepare(peer.into());
            let (group, options) = (&terms.group, &terms.options);
            match caller {
                Caller::Tcp(stream) => {
                    let end = (stream, Side::Accepts);
                    group.exchange_over(end, options, prepared, &shared).await
                }
                #[cfg(feature = "rdmacm")]
                Caller::Cm(request) => {
                    let deadline = &shared.deadline;
                    group.accept_cm(*request, options, prepared, deadline).await
                }
            }
        };
        self.handshakes.push(Handshake {
            peer,
            begun: Instant::now(),
            progress,
            met: Box::pin(met),
        });
    }

    /// The first handshake, from this index on, that has completed.
    fn poll_handshakes(&mut self, cx: &mut Context<'_>, from: usize) -> Option<Arrival> {
        for at in from..self.handshakes.len() {
            if let Poll::Ready(outcome) = self.handshakes[at].met.as_mut().poll(cx) {
                let Handshake { peer, .. } = self.handshakes.swap_remove(at);
                let outcome = outcome.map_err(|error| with_peer(error, Some(peer)));
                let peer = peer.into();
                return Some(Arrival { peer, outcome });
            }
        }
        None
    }

    /// The oldest of these handshakes, if it has taken this time.
    fn first(&self, time: Duration, is_one: impl Fn(&Handshake) -> bool) -> Option<usize> {
        let begun = |at: &usize| self.handshakes[*at].begun;
        let all = (0..self.handshakes.len()).filter(|at| is_one(&self.handshakes[*at]));
        all.min_by_key(begun)
            .filter(|at| begun(at).elapsed() >= time)
    }

    /// The handshake that loses its place to another peer: the oldest of the address with the most that have
    /// shown nothing for too long.
    fn silent(&self) -> Option<usize> {
        let from = |peer: SocketAddr| {
            let same = |other: &&Handshake| other.is_silent() && other.peer.ip() == peer.ip();
            self.handshakes.iter().filter(same).count()
        };
        let silent = self.handshakes.iter().filter(|one| one.is_silent());
        let most = silent.max_by_key(|one| from(one.peer))?.peer.ip();
        self.first(SILENCE, |one| one.is_silent() && one.peer.ip() == most)
    }

    /// Ends a handshake that has taken this time.
    fn late(&mut self, at: usize, after: Duration) -> Arrival {
        let Handshake { peer, progress, .. } = self.handshakes.swap_remove(at);
        let has_shown = progress.has_shown.load(Ordering::Relaxed);
        let needs_rdma_cm = self.terms.group.pd().context().device().needs_rdma_cm();
        let what = match &self.source {
            Source::Tcp(..) if has_shown && needs_rdma_cm => "connect",
            Source::Tcp(..) => "write",
            _ => "confirm",
        };
        Arrival {
            peer: peer.into(),
            outcome: Err(with_peer(late_by(after, what), Some(peer))),
        }
    }

    /// Waits until the first handshake is late, or silent for too long.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let timeout = self.terms.options.timeout();
        let due = self.handshakes.iter().filter_map(|one| {
            let may_go = self.waiting.is_some() && one.is_silent();
            let time = if may_go {
                SILENCE.min(timeout)
            } else {
                timeout
            };
            one.begun.checked_add(time)
        });
        let Some(due) = due.min() else {
            self.timer = None;
            return Poll::Pending;
        };
        // A timer that is a little early is started anew.
        let is_set = |timer: &Timer| timer.at().is_some_and(|at| at <= due);
        if !self.timer.as_ref().is_some_and(is_set) {
            let time = due.saturating_duration_since(Instant::now());
            let events = &self.terms.group.shared().events;
            self.timer = Some(Timer::new(time.max(SHORTEST), events).map_err(no_timer)?);
        }
        let Some(timer) = &mut self.timer else {
            return Poll::Pending;
        };
        ready!(timer.poll(cx)).map_err(no_timer)?;
        self.timer = None;
        Poll::Ready(Ok(()))
    }
}

impl Handshake {
    fn is_silent(&self) -> bool {
        !self.progress.has_shown.load(Ordering::Relaxed)
    }
}

/// Whether the error concerns one connection only, and accepting can continue.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// After which time a peer that has shown nothing may lose its place.
const SILENCE: Duration = Duration::from_secs(2);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local_addr", &self.local_addr)
            .field("max_handshakes", &self.max_handshakes)
            .finish_non_exhaustive()
    }
}
