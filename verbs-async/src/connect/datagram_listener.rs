//! Listening over datagrams: many clients connect concurrently, and a slow one does not delay the others.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::datagram_exchange::{Acceptor, Answer, Request, RequestId};
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::{DatagramEndpoint, QueuePairEndpoint};
use verbs_channel::{BufferPool, Datagram};

use log::Level;

use super::datagrams::pool;
use super::failure::{check_private_data, exchange_error};
use super::time::{self, Deadline, Sleep, Start};
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::task::sync::Mutex;
use crate::task::wake;

/// Accepts clients over datagrams, without TCP, and connects a channel of a group to each.
///
/// Created by [`AsyncGroup::listen_over_datagrams_tokio`] and
/// [`AsyncGroup::listen_over_datagrams_async_io`]. Many exchanges and handshakes run concurrently, each with
/// its own timeout. So a slow or silent client delays no other, until
/// [`max_handshakes`](Self::max_handshakes) are in progress. Then one that does not confirm within one or two
/// seconds fails, clients of the port (GID or LID) with the fewest are next, and no port takes places
/// that another needs. Further clients resend their datagrams until their own deadline. Datagrams with a forged source cost no memory: see
/// [`datagram_exchange`](verbs_channel::datagram_exchange).
///
/// This makes progress only while a task waits in [`accept`](Self::accept). So spawn a task for each
/// channel, and call `accept` again.
///
/// The channels do not watch their peers: see
/// [`PreparedChannel::connect_over_datagrams`](verbs_channel::PreparedChannel::connect_over_datagrams).
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn example(group: verbs_async::AsyncGroup) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_async::verbs_channel::Datagrams;
/// use verbs_async::{AsyncDatagrams, ErrorChain};
///
/// let datagrams = AsyncDatagrams::create_tokio(Datagrams::builder(group.pd()))?;
/// std::fs::write("/shared/server", datagrams.endpoint().to_bytes())?;
/// let mut listener = group.listen_over_datagrams_tokio(datagrams, b"welcome").await?;
/// loop {
///     let arrival = listener.accept().await?;
///     match arrival.outcome {
///         Ok((channel, private_data)) => {
///             tokio::spawn(async move { drop((channel, private_data)) });
///         }
///         Err(error) => eprintln!("{:?}: {}", arrival.peer, ErrorChain::new(&error)),
///     }
/// }
/// # }
/// ```
pub struct AsyncDatagramListener {
    endpoint: DatagramEndpoint,
    timeout: Duration,
    max_handshakes: usize,
    // Only `poll_accept` uses it, by `&mut`. The lock is there to make this `Sync`.
    state: Mutex<State>,
}

/// A client that has connected to an [`AsyncDatagramListener`], and the outcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct DatagramArrival {
    /// The client's datagram endpoint.
    pub peer: DatagramEndpoint,
    /// The channel and the client's private data, or the error. The error concerns this client only.
    pub outcome: Result<(AsyncChannel, Vec<u8>)>,
}

struct State {
    group: AsyncGroup,
    // Polled only while the group has not failed.
    failed: Boxed<Error>,
    datagrams: AsyncDatagrams,
    private_data: Arc<[u8]>,
    pool: BufferPool,
    start: Start,
    acceptor: Acceptor,
    receiving: Option<Boxed<Result<Datagram>>>,
    // Each has a buffer of the pool: no more than those.
    sending: Vec<Boxed<()>>,
    handshakes: Vec<Boxed<Shaken>>,
    answered: Vec<Answered>,
    // When the first of those that were answered is due.
    timer: Option<(Instant, Sleep)>,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handshake that has completed or failed.
struct Shaken {
    request: Request,
    deadline: Deadline,
    met: Result<(QueuePairEndpoint, AsyncChannel)>,
}

/// A client that was sent this side's endpoint.
struct Answered {
    request: Request,
    deadline: Deadline,
    channel: AsyncChannel,
}

impl AsyncGroup {
    /// Needs the feature `tokio`. Accepts many clients over datagrams concurrently, in a tokio runtime that has
    /// timers. Clients need the [`endpoint`](AsyncDatagramListener::endpoint) of the listener, by any
    /// means, and [connect](Self::connect_over_datagrams_tokio) to it, or are blocking.
    ///
    /// Each client is sent this private data. Datagrams of other protocols are dropped: use another
    /// endpoint for them.
    ///
    /// # Errors
    ///
    /// The private data is too long for a datagram, or memory for what is sent could not be registered.
    #[cfg(feature = "tokio")]
    pub async fn listen_over_datagrams_tokio(
        &self,
        datagrams: AsyncDatagrams,
        private_data: &[u8],
    ) -> Result<AsyncDatagramListener> {
        AsyncDatagramListener::new(self.clone(), datagrams, private_data, time::tokio()).await
    }

    /// Needs the feature `async-io`. As
    /// [`listen_over_datagrams_tokio`](Self::listen_over_datagrams_tokio), with async-io, in smol or any
    /// other executor.
    ///
    /// # Errors
    ///
    /// The private data is too long for a datagram, or memory for what is sent could not be registered.
    #[cfg(feature = "async-io")]
    pub async fn listen_over_datagrams_async_io(
        &self,
        datagrams: AsyncDatagrams,
        private_data: &[u8],
    ) -> Result<AsyncDatagramListener> {
        AsyncDatagramListener::new(self.clone(), datagrams, private_data, time::async_io()).await
    }
}

impl AsyncDatagramListener {
    async fn new(
        group: AsyncGroup,
        datagrams: AsyncDatagrams,
        private_data: &[u8],
        start: Start,
    ) -> Result<Self> {
        check_private_data(private_data)?;
        let state = State {
            failed: Box::pin(Arc::clone(group.shared()).failed()),
            group,
            private_data: private_data.into(),
            pool: pool(&datagrams, BUFFERS).await?,
            start,
            acceptor: Acceptor::new(datagrams.max_payload(), MAX_CLIENTS, Instant::now()),
            receiving: None,
            sending: Vec::new(),
            handshakes: Vec::new(),
            answered: Vec::new(),
            timer: None,
            datagrams,
        };
        Ok(Self {
            endpoint: state.datagrams.endpoint(),
            timeout: TIMEOUT,
            max_handshakes: MAX_HANDSHAKES,
            state: Mutex::new(state),
        })
    }

    /// The endpoint that clients need. Publish it by any means.
    #[must_use]
    pub const fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// Sets the timeout of each client, until it has a channel: from its request, or, if
    /// [`max_handshakes`](Self::max_handshakes) were in progress, from its turn. The default is 10 seconds.
    #[must_use]
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many clients can be in progress. The default and the maximum are 256, and the minimum
    /// is 1.
    ///
    /// Each of them takes a queue pair.
    #[must_use]
    pub fn max_handshakes(mut self, clients: usize) -> Self {
        self.max_handshakes = clients.clamp(1, MAX_HANDSHAKES);
        self
    }

    /// Waits for the next client whose exchange has completed or failed.
    ///
    /// Dropping the future loses no client.
    ///
    /// # Errors
    ///
    /// The datagram endpoint is down, the group [has failed](AsyncGroup::failure), or the runtime has no timers. An error
    /// of one client is in its [`DatagramArrival`].
    pub async fn accept(&mut self) -> Result<DatagramArrival> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<DatagramArrival>> {
        let state = self.state.get_mut();
        let failed = state.group.poll_failed(state.failed.as_mut(), cx);
        if let Poll::Ready(error) = failed {
            return Poll::Ready(Err(error));
        }
        loop {
            let has_received = state.poll_datagrams(cx)?;
            state.poll_sends(cx);
            let room = self.max_handshakes.saturating_sub(state.in_progress());
            state.begin_handshakes(room, self.timeout);
            let arrival = match state.poll_handshakes(cx) {
                None => state.next_outcome(),
                arrival => arrival,
            };
            // The answer that was sent just now has to be polled, too.
            state.poll_sends(cx);
            if let Some(arrival) = arrival {
                return Poll::Ready(Ok(arrival));
            }
            if !has_received && state.poll_timer(cx)?.is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl State {
    fn in_progress(&self) -> usize {
        self.handshakes.len() + self.answered.len()
    }

    /// Answers the datagrams that have arrived, up to a number. Returns whether there may be more.
    fn poll_datagrams(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        for _ in 0..AT_ONCE {
            let receiving = self.receiving.get_or_insert_with(|| {
                let datagrams = self.datagrams.clone();
                Box::pin(async move { datagrams.receive_from().await })
            });
            let Poll::Ready(received) = receiving.as_mut().poll(cx) else {
                return Ok(false);
            };
            self.receiving = None;
            let datagram = received?;
            let (from, now) = (datagram.from(), Instant::now());
            let answer = self.acceptor.received(&from, &datagram, now);
            self.send(answer);
        }
        Ok(true)
    }

    /// Sends a datagram, or loses it if there is no buffer: a client that is there repeats its message.
    fn send(&mut self, answer: Option<Answer>) {
        let Some(Answer { to, bytes, .. }) = answer else {
            return;
        };
        let Ok(Some(block)) = self.pool.take_with(&bytes) else {
            return;
        };
        let datagrams = self.datagrams.clone();
        self.sending.push(Box::pin(async move {
            if let Err(rejected) = datagrams.send_to(&to, block).await {
                let error = rejected.error();
                wake::log(Level::Debug, format_args!("cannot answer {to:?}: {error}"));
            }
        }));
    }

    fn poll_sends(&mut self, cx: &mut Context<'_>) {
        self.sending
            .retain_mut(|send| send.as_mut().poll(cx).is_pending());
    }

    fn begin_handshakes(&mut self, room: usize, timeout: Duration) {
        for _ in 0..room {
            let Some(request) = self.acceptor.next_request(Instant::now()) else {
                return;
            };
            let deadline = Deadline::after(timeout, &self.start);
            let (group, len) = (self.group.clone(), self.private_data.len());
            self.handshakes.push(Box::pin(async move {
                let max = request.max_private_data();
                let met = async {
                    if len > max {
                        let error = ExchangeError::PrivateDataBeyondMtu { len, max };
                        return Err(exchange_error(error));
                    }
                    let prepared = group.prepare_elsewhere().await?;
                    let ours = prepared.endpoint();
                    let theirs = request.peer().endpoint;
                    let shaken = group.handshake_watched(prepared, theirs, None);
                    Ok((ours, shaken.await?))
                };
                let met = match deadline.share(1, met).await {
                    Ok(Some(met)) => met,
                    Ok(None) => Err(deadline.timed_out()),
                    Err(error) => Err(error),
                };
                Shaken {
                    request,
                    deadline,
                    met,
                }
            }));
        }
    }

    /// Answers the clients whose handshake has completed. Returns the first whose handshake has failed.
    fn poll_handshakes(&mut self, cx: &mut Context<'_>) -> Option<DatagramArrival> {
        let mut at = 0;
        while let Some(handshake) = self.handshakes.get_mut(at) {
            let Poll::Ready(shaken) = handshake.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            drop(self.handshakes.swap_remove(at));
            if let Some(arrival) = self.answer(shaken) {
                return Some(arrival);
            }
        }
        None
    }

    /// Accepts or refuses a client. If it does not connect, returns why.
    fn answer(&mut self, shaken: Shaken) -> Option<DatagramArrival> {
        let Shaken {
            request,
            deadline,
            met,
        } = shaken;
        let (id, peer) = (request.id(), request.from());
        let answered = match met {
            Ok((ours, channel)) => {
                let now = Instant::now();
                let answer = self.acceptor.answer(id, &ours, &self.private_data, now);
                answer
                    .map_err(exchange_error)
                    .map(|answer| (answer, channel))
            }
            Err(error) => Err(error),
        };
        match answered {
            Ok((answer, channel)) => {
                self.send(Some(answer));
                self.answered.push(Answered {
                    request,
                    deadline,
                    channel,
                });
                None
            }
            Err(error) => {
                let refusal = self.acceptor.refuse(id, &error);
                self.send(refusal);
                let outcome = Err(error);
                Some(DatagramArrival { peer, outcome })
            }
        }
    }

    /// The first client that was answered and has an outcome.
    fn next_outcome(&mut self) -> Option<DatagramArrival> {
        let now = Instant::now();
        let acceptor = &mut self.acceptor;
        let (at, outcome) = (0..).zip(&self.answered).find_map(|(at, client)| {
            let id: RequestId = client.request.id();
            let outcome = match client.deadline.left() {
                Some(_) => acceptor.outcome(id, now)?,
                None => acceptor.abandon(id),
            };
            Some((at, outcome))
        })?;
        let Answered {
            request, channel, ..
        } = self.answered.swap_remove(at);
        let data = || request.peer().private_data.clone();
        Some(DatagramArrival {
            peer: request.from(),
            outcome: match outcome {
                Ok(()) => Ok((channel, data())),
                Err(error) => Err(exchange_error(error)),
            },
        })
    }

    /// Waits until the first client that was answered is due.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>> {
        let (acceptor, now) = (&self.acceptor, Instant::now());
        let due = self.answered.iter().map(|client| {
            let left = now + client.deadline.left().unwrap_or_default();
            let due = acceptor.due(client.request.id());
            due.map_or(left, |due| due.min(left))
        });
        let Some(due) = due.min() else {
            self.timer = None;
            return Ok(Poll::Pending);
        };
        // A timer that is a little early is started anew.
        let is_set = self.timer.as_ref().is_some_and(|(at, _)| *at <= due);
        if !is_set {
            let time = due.saturating_duration_since(now).max(SHORTEST);
            self.timer = Some((due, time::start(&self.start, time)?));
        }
        let Some((_, timer)) = &mut self.timer else {
            return Ok(Poll::Pending);
        };
        let polled = timer.as_mut().poll(cx);
        if polled.is_ready() {
            self.timer = None;
        }
        Ok(polled.map_err(time::no_timer)?)
    }
}

/// Datagrams in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 64;

/// How many datagrams are taken before anything else is done.
const AT_ONCE: usize = 64;

/// The default timeout of a client.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most clients in progress.
const MAX_HANDSHAKES: usize = 256;

/// How many clients can wait at once, or be in progress.
const MAX_CLIENTS: usize = 2 * MAX_HANDSHAKES;

/// The shortest timer: so that a timer that is early does not spin.
const SHORTEST: Duration = Duration::from_millis(1);

impl fmt::Debug for AsyncDatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDatagramListener")
            .field("endpoint", &self.endpoint)
            .field("timeout", &self.timeout)
            .field("max_handshakes", &self.max_handshakes)
            .finish_non_exhaustive()
    }
}
