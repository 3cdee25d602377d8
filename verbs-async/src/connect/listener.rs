//! Listeners: many peers connect concurrently, and a slow peer does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::{Connect, DownReason, PreparedChannel};

use super::callers::{
    Bind, Caller, Connecting, Entrance, HandshakeResult, MAX_HANDSHAKES, TcpEntrance, Terms,
};
use super::clients::Clients;
#[cfg(feature = "rdmacm")]
use super::cm;
use super::deadline::{Boxed, Deadline, Progress, Timer, late_by, look_up};
use super::tcp::check;
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::group::AsyncGroup;
use crate::task::sync::Mutex;
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
    failed: Boxed<DownReason>,
    source: Box<dyn Entrance>,
    handshakes: Vec<Handshake>,
    // Has come while there was no place.
    waiting: Option<Caller>,
    timer: Timer,
}

struct Handshake {
    peer: Option<PeerAddr>,
    deadline: Arc<Deadline>,
    met: Connecting,
}

/// A handshake that ends if its peer does not go on.
struct Late {
    at: usize,
    due: Instant,
    after: Duration,
}

impl Listener {
    pub(super) async fn new(
        group: &AsyncGroup,
        on: OnThread<Bind>,
        options: Connect,
    ) -> Result<Self> {
        let source = enter(on, group, &options).await?;
        let local_addr = source.local_addr();
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
            timer: Timer::default(),
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
    /// down. The call can be repeated. The error of a single peer is in its [`HandshakeResult`]. After [`Error::Channel`](crate::Error::Channel) with
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
        let failed = match state.terms.group.failure() {
            Some(reason) => Poll::Ready(reason),
            None => state.failed.as_mut().poll(cx),
        };
        if let Poll::Ready(reason) = failed {
            return Poll::Ready(Err(verbs_channel::Error::GroupFailed(reason).into()));
        }
        let arrival = state.poll_accept(max_handshakes, cx);
        state.source.poll_sends(cx);
        arrival
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
        state.source.close().await;
    }
}

/// Where to listen. The options are checked first: otherwise each peer would be refused for this side's mistake.
async fn enter(
    on: OnThread<Bind>,
    group: &AsyncGroup,
    options: &Connect,
) -> Result<Box<dyn Entrance>> {
    let events = &group.shared().events;
    match &*on {
        Bind::Address(_) | Bind::Tcp(_) => check(group, options)?,
        Bind::Datagrams(_) => options.check()?,
        #[cfg(feature = "rdmacm")]
        Bind::Cm(_) | Bind::CmAddress(_) => options.check_cm()?,
    }
    Ok(match on.into_inner() {
        Bind::Address(address) => {
            let listener = TcpListener::bind(&look_up(address).await?[..])?;
            Box::new(TcpEntrance::new(listener, events)?)
        }
        Bind::Tcp(listener) => Box::new(TcpEntrance::new(listener, events)?),
        #[cfg(feature = "rdmacm")]
        Bind::CmAddress(address) => Box::new(cm::Requests::of(cm::bind(address).await?, events)?),
        #[cfg(feature = "rdmacm")]
        Bind::Cm(listener) => Box::new(cm::Requests::of(OnThread::new(listener), events)?),
        Bind::Datagrams(datagrams) => Box::new(Clients::new(datagrams).await?),
    })
}

impl State {
    fn poll_accept(
        &mut self,
        max_handshakes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<HandshakeResult>> {
        let received = self.source.poll_messages(cx);
        // First, so that no arrival is lost: an error comes again.
        if let Some(arrival) = self.poll_handshakes(cx, 0) {
            return Poll::Ready(Ok(arrival));
        }
        received?;
        loop {
            let count = self.handshakes.len();
            let has_place = count < max_handshakes;
            let late = self.first_late(max_handshakes);
            let due = late.as_ref().map(|late| late.due);
            if let Some(late) = late.filter(|late| late.due <= Instant::now()) {
                return Poll::Ready(Ok(self.end(&late)));
            }
            if self.waiting.is_none()
                && let Poll::Ready(come) = self.source.poll_caller(has_place, cx)
            {
                self.waiting = Some(come?);
            } else if has_place && let Some(caller) = self.waiting.take() {
                self.begin(caller);
                if let Some(arrival) = self.poll_handshakes(cx, count) {
                    return Poll::Ready(Ok(arrival));
                }
            } else {
                task::ready!(self.timer.poll(due, &self.terms.group.shared().events, cx))?;
            }
        }
    }

    fn begin(&mut self, caller: Caller) {
        let terms = self.terms.clone();
        let (timeout, events) = (terms.options.timeout(), &terms.group.shared().events);
        let deadline = Arc::new(Deadline::of_listener(timeout, events, caller.late));
        self.handshakes.push(Handshake {
            peer: caller.peer,
            met: (caller.connect)(terms, Arc::clone(&deadline)),
            deadline,
        });
    }

    /// The first handshake, from this index on, that has completed.
    fn poll_handshakes(&mut self, cx: &mut Context<'_>, from: usize) -> Option<HandshakeResult> {
        for at in from..self.handshakes.len() {
            if let Poll::Ready(outcome) = self.handshakes[at].met.as_mut().poll(cx) {
                return Some(self.handshakes.swap_remove(at).ended(outcome));
            }
        }
        None
    }

    /// The first handshake that is late, or loses its place if a peer waits for one.
    fn first_late(&self, max_handshakes: usize) -> Option<Late> {
        let late = |at, begun: Instant, after| {
            let due = begun.checked_add(after)?;
            Some(Late { at, due, after })
        };
        let deadlines = (0..).zip(self.handshakes.iter().map(|one| &one.deadline));
        let oldest = deadlines
            .filter(|(_, deadline)| !deadline.has_timer)
            .min_by_key(|(_, deadline)| deadline.begun);
        let oldest = oldest.and_then(|(at, oldest)| late(at, oldest.begun, oldest.timeout));
        let is_full = self.waiting.is_some() && self.handshakes.len() >= max_handshakes;
        let loser = is_full.then(|| self.loser(max_handshakes)).flatten();
        let loser = loser.and_then(|(at, since)| late(at, since, SILENCE));
        oldest.into_iter().chain(loser).min_by_key(|late| late.due)
    }

    /// The first handshake that loses its place to another peer, and since when this side waits for its peer: the
    /// oldest of the address with the most that have shown nothing, or of the address with the most of all, if
    /// those are more than its share.
    fn loser(&self, max_handshakes: usize) -> Option<(usize, Instant)> {
        let addresses: BTreeSet<_> = self.handshakes.iter().map(Handshake::ip).collect();
        // One address more: a peer behind the one that waits may be of another.
        let share = (max_handshakes / (addresses.len() + 1)).max(1);
        let silent = self.oldest_of_most(1, |progress| !progress.has_shown);
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
        is_one: impl Fn(&Progress) -> bool,
    ) -> Option<(usize, Instant)> {
        let mut by_address = BTreeMap::<_, Vec<_>>::new();
        for (at, one) in self.handshakes.iter().enumerate() {
            let progress = one.deadline.progress();
            if is_one(&progress)
                && let Some(since) = progress.waits_since
            {
                let same = by_address.entry(one.ip()).or_default();
                same.push((one.deadline.begun, at, since));
            }
        }
        let most = by_address.into_values().max_by_key(Vec::len)?;
        let oldest = most.iter().min_by_key(|(begun, ..)| *begun);
        let (_, at, since) = oldest.filter(|_| most.len() >= least)?;
        Some((*at, *since))
    }

    fn end(&mut self, late: &Late) -> HandshakeResult {
        let ended = self.handshakes.swap_remove(late.at);
        let what = ended.deadline.progress().late;
        ended.ended(Err(late_by(late.after, what)))
    }
}

impl Handshake {
    const fn addr(&self) -> Option<SocketAddr> {
        match self.peer {
            Some(PeerAddr::Socket(peer)) => Some(peer),
            _ => None,
        }
    }

    fn ip(&self) -> Option<IpAddr> {
        self.addr().map(|peer| peer.ip())
    }

    fn ended(self, outcome: Result<Met<AsyncChannel>>) -> HandshakeResult {
        HandshakeResult {
            peer: self.peer,
            outcome: outcome.map_err(|error| error.with_peer(self.addr())),
        }
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
