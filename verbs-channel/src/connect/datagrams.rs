//! Exchanges over datagrams, each with one deadline.

use std::time::{Duration, Instant};

use verbs_core::path::DatagramEndpoint;
use verbs_core::{ProtectionDomain, QueuePairEndpoint};

use log::Level;

use super::options::Connect;
use super::peer::{Met, PeerAddr};
use super::prepared::{Connected, PreparedChannel};
use crate::buffer::BufferPool;
use crate::datagram_exchange::{Acceptor, Answer, Connector, Request, RequestId, Step};
use crate::datagrams::Datagrams;
use crate::error::Result;
use crate::exchange::{self, ExchangeError, PeerEndpoint};
use crate::panics;

/// Listens for channels on a datagram endpoint: any number of clients, without TCP.
///
/// Clients need its [`endpoint`](Self::endpoint), and call
/// [`connect`](PreparedChannel::connect) with [`Peer::Datagrams`](crate::Peer::Datagrams). Each call of
/// [`accept`](PreparedChannel::accept) connects one of them.
///
/// It has no thread: datagrams are answered during these calls, and in [`poll`](Self::poll).
/// Clients that come at other times repeat their messages until their own deadline. At most
/// [`MAX_CLIENTS`](Self::MAX_CLIENTS) of them wait here, and no port takes places that another needs. Datagrams with a forged source cost no
/// memory. They can cost time: on RoCE, the first datagram to an address of no host takes about a second.
///
/// Datagrams of other protocols are dropped: use another [`Datagrams`] for them.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_channel::verbs_core::Context;
/// use verbs_channel::connect::DatagramListener;
/// use verbs_channel::{Channel, Datagrams};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let mut listener = DatagramListener::new(Datagrams::builder(&pd).build()?)?;
/// std::fs::write("/shared/server", listener.endpoint().to_bytes())?;
///
/// // Without TCP nothing watches the peer: a timeout bounds each wait.
/// let config = Channel::builder(&pd).timeout(Duration::from_secs(5)).config();
/// loop {
///     let prepared = config.build()?;
///     let mut channel = prepared.accept(&mut listener, Duration::from_secs(60))?.channel;
///     // …
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramListener {
    datagrams: Datagrams,
    acceptor: Acceptor,
    pool: BufferPool,
}

/// Datagrams of an exchange in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 16;

/// How many datagrams are taken before anything else is done.
const AT_ONCE: usize = 256;

/// How long a client may be silent before its READY until the next one that waits is sent the same offer, and half of
/// the time that it has if it repeats its REQUEST. Its handshake takes milliseconds, and it repeats what is lost
/// after 100 ms at most.
const TURN: Duration = Duration::from_millis(300);

/// How long the last datagram of an exchange may take to leave.
const LEAVING: Duration = Duration::from_millis(100);

impl DatagramListener {
    /// How many clients can wait at once.
    pub const MAX_CLIENTS: usize = 64;

    /// Listens on a datagram endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Core`](crate::Error::Core): memory for what it sends could not be registered;
    /// [`RejectReason::Down`](crate::RejectReason::Down): the endpoint has failed.
    pub fn new(datagrams: Datagrams) -> Result<Self> {
        let (max_payload, now) = (datagrams.max_payload(), Instant::now());
        Ok(Self {
            pool: pool(&datagrams)?,
            acceptor: Acceptor::new(max_payload, Self::MAX_CLIENTS, now),
            datagrams,
        })
    }

    /// The endpoint that clients need. Publish it by any means.
    #[must_use]
    pub const fn endpoint(&self) -> DatagramEndpoint {
        self.datagrams.endpoint()
    }

    /// Answers the datagrams that have arrived, without waiting for others: 256 at most.
    ///
    /// The answer to a new address may take longer, since the kernel looks the address up: see
    /// [`PreparedChannel::connect`].
    ///
    /// A server that is busy between two calls of `accept` can call this, so that a
    /// client that lost its last answer gets it again.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`](crate::RejectReason::Down): the endpoint has failed.
    pub fn poll(&mut self) -> Result<()> {
        self.answer_until(None)
    }

    /// The same until then: the answers may take longer than there is time for. At least one is given.
    fn answer_until(&mut self, deadline: Option<Instant>) -> Result<()> {
        for _ in 0..AT_ONCE {
            let any = self.answer_one(None)?;
            if !any || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a datagram until then, and answers it. Returns whether one has come.
    fn answer_one(&mut self, until: Option<Instant>) -> Result<bool> {
        let Some(answer) = self.receive(until)? else {
            return Ok(false);
        };
        self.send(answer);
        Ok(true)
    }

    /// Waits for a datagram until then. Returns the answer to it, if one has come.
    fn receive(&mut self, until: Option<Instant>) -> Result<Option<Option<Answer>>> {
        let timeout = until.map_or(Duration::ZERO, left);
        let received = self.datagrams.receive_from(timeout)?;
        Ok(received.map(|datagram| {
            let (from, now) = (datagram.from(), Instant::now());
            self.acceptor.received(&from, &datagram, now)
        }))
    }

    /// Sends it, or loses it: a client that is there repeats its message.
    fn send(&mut self, answer: Option<Answer>) {
        let Some(Answer { to, bytes, .. }) = answer else {
            return;
        };
        if let Err(error) = send(&mut self.datagrams, &self.pool, &to, &bytes) {
            panics::log(Level::Debug, format_args!("cannot answer {to:?}: {error}"));
        }
    }

    /// Offers an endpoint to clients until one of them is ready. Returns its request, and what it is to be sent
    /// after the handshake.
    fn offer(
        &mut self,
        ours: &QueuePairEndpoint,
        private_data: &[u8],
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(Request, Option<Answer>)> {
        let mut offers = Vec::new();
        let ready = self.first_ready(&mut offers, ours, private_data, deadline, timeout);
        // The endpoint is another's, or nobody's: a client that is ready later is refused, and one that has not
        // received the offer waits again.
        for offer in offers {
            let _timed_out = self.acceptor.abandon(offer.id());
        }
        ready
    }

    /// Adds clients to those that have the offer, each after the turn of the one before, and returns the first
    /// that is ready.
    fn first_ready(
        &mut self,
        offers: &mut Vec<Request>,
        ours: &QueuePairEndpoint,
        private_data: &[u8],
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(Request, Option<Answer>)> {
        let mut turn_ends = Instant::now();
        let mut latest_end = turn_ends;
        let (mut until, mut failure) = (None, None);
        loop {
            // All that has come: a client may have left meanwhile.
            for _ in 0..AT_ONCE {
                let Some(answer) = self.receive(until.take())? else {
                    break;
                };
                let acceptor = &self.acceptor;
                let ready = offers.iter().position(|any| acceptor.is_ready(any.id()));
                if let Some(ready) = ready {
                    return Ok((offers.remove(ready), answer));
                }
                let now = Instant::now();
                if let (Some(again), Some(offer)) = (&answer, offers.last())
                    && again.to == offer.from()
                {
                    turn_ends = latest_end.min(now + TURN);
                }
                self.send(answer);
                if now >= deadline {
                    break;
                }
            }
            let now = Instant::now();
            offers.retain(|offer| {
                let Some(outcome) = self.acceptor.outcome(offer.id(), now) else {
                    return true;
                };
                if let Err(error) = outcome {
                    let from = offer.from();
                    panics::log(
                        Level::Debug,
                        format_args!("{from:?} is not connected: {error}"),
                    );
                    failure = Some(error);
                }
                false
            });
            let has_turn = offers.is_empty() || now >= turn_ends;
            if now < deadline
                && has_turn
                && let Some(request) = self.acceptor.next_request(now)
            {
                let (len, max) = (private_data.len(), request.max_private_data());
                if len > max {
                    let error = ExchangeError::PrivateDataBeyondMtu { len, max };
                    failure = Some(self.refuse(request.id(), error));
                    continue;
                }
                if let Some(before) = offers.last() {
                    self.acceptor.withdraw(before.id());
                }
                let answer = self
                    .acceptor
                    .answer(request.id(), ours, private_data, now)?;
                self.send(Some(answer));
                offers.push(request);
                turn_ends = Instant::now() + TURN;
                latest_end = turn_ends + TURN;
                continue;
            }
            if offers.is_empty()
                && let Some(error) = failure.take()
            {
                return Err(error.into());
            }
            if now >= deadline {
                let (what, after) = match offers.is_empty() {
                    true => ("connect", Some(timeout)),
                    false => ("answer", None),
                };
                return Err(ExchangeError::TimedOut { what, after }.into());
            }
            let acceptor = &self.acceptor;
            let due = offers.iter().filter_map(|offer| acceptor.due(offer.id()));
            let turn_ends = (now < turn_ends && !offers.is_empty()).then_some(turn_ends);
            until = due.chain(turn_ends).chain([deadline]).min();
        }
    }

    /// Waits until a client that was ready is connected.
    fn outcome(&mut self, id: RequestId, deadline: Instant) -> Result<()> {
        loop {
            self.answer_until(Some(deadline))?;
            let now = Instant::now();
            if let Some(outcome) = self.acceptor.outcome(id, now) {
                return Ok(outcome?);
            }
            if now >= deadline {
                return Ok(self.acceptor.abandon(id)?);
            }
            let due = self.acceptor.due(id).unwrap_or(deadline);
            let _any = self.answer_one(Some(due.min(deadline)))?;
        }
    }

    fn refuse<E: std::error::Error + 'static>(&mut self, id: RequestId, why: E) -> E {
        let refusal = self.acceptor.refuse(id, &why);
        self.send(refusal);
        let _left = self.datagrams.flush(LEAVING);
        why
    }
}

/// Connects over datagrams to a server with this endpoint.
pub(super) fn connect<T: Connected>(
    prepared: PreparedChannel<T>,
    datagrams: &mut Datagrams,
    server: &DatagramEndpoint,
    options: &Connect,
) -> Result<Met<T>> {
    let (max, now) = (datagrams.max_payload(), Instant::now());
    let (ours, timeout) = (prepared.endpoint(), options.timeout());
    let mut connector = Connector::new(server, &ours, &options.private_data, max, now, timeout)?;
    let pool = pool(datagrams)?;
    let peer = run(datagrams, &pool, &mut connector)?;
    let connected = prepared.handshake(&peer.endpoint);
    match &connected {
        Ok(_) => connector.ready(),
        Err(error) => connector.refuse(error),
    }
    let agreed = run(datagrams, &pool, &mut connector);
    // The error of the handshake is more precise than that of the exchange.
    let connected = connected?;
    agreed?;
    let server = PeerAddr::Datagram(*server);
    Ok(Met::new(connected, peer.private_data, Some(server)))
}

/// Connects over datagrams to the next client of this listener.
pub(super) fn accept<T: Connected>(
    prepared: PreparedChannel<T>,
    listener: &mut DatagramListener,
    options: &Connect,
) -> Result<Met<T>> {
    let timeout = options.timeout();
    let deadline = exchange::deadline(Instant::now(), timeout);
    let ours = prepared.endpoint();
    let (request, confirm) = listener.offer(&ours, &options.private_data, deadline, timeout)?;
    let id = request.id();
    let connected = match prepared.handshake(&request.peer().endpoint) {
        Ok(connected) => connected,
        Err(error) => return Err(listener.refuse(id, error)),
    };
    listener.send(confirm);
    listener.outcome(id, deadline)?;
    let _left = listener.datagrams.flush(LEAVING);
    let private_data = request.peer().private_data.clone();
    let peer = PeerAddr::Datagram(request.from());
    Ok(Met::new(connected, private_data, Some(peer)))
}

/// Runs the client's side until it is done, or over.
fn run(
    datagrams: &mut Datagrams,
    pool: &BufferPool,
    connector: &mut Connector,
) -> Result<PeerEndpoint> {
    let server = connector.server();
    let done = loop {
        match connector.step(Instant::now()) {
            Ok(Step::Send(bytes)) => send(datagrams, pool, &server, bytes)?,
            Ok(Step::Wait(until)) => {
                if let Some(datagram) = datagrams.receive_from(Some(left(until)))? {
                    connector.received(&datagram);
                }
            }
            Ok(Step::Done(peer)) => break Ok(peer.clone()),
            Err(error) => break Err(error.into()),
        }
    };
    // The endpoint may be dropped next.
    let _left = datagrams.flush(LEAVING);
    done
}

/// Sends a datagram, or loses it if there is no room: it is repeated then.
fn send(
    datagrams: &mut Datagrams,
    pool: &BufferPool,
    to: &DatagramEndpoint,
    bytes: &[u8],
) -> Result<()> {
    let Some(buffer) = pool.take_with(bytes)? else {
        return Ok(());
    };
    match datagrams.try_send_to(to, buffer) {
        Err(rejected) if !rejected.error().is_backpressure() => Err(rejected.into_error()),
        _ => Ok(()),
    }
}

fn pool(datagrams: &Datagrams) -> Result<BufferPool> {
    let pd: &ProtectionDomain = datagrams.pd()?;
    BufferPool::new(pd, datagrams.max_payload() as usize, BUFFERS)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
