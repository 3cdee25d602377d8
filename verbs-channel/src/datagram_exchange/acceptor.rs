//! The side that is connected to, without I/O: for any number of clients.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use verbs_core::{DatagramEndpoint, QueuePairEndpoint};

use super::cookie::Cookies;
use super::wire::{self, Message, Session};
use crate::exchange::{ExchangeError, Peer, RefusalCode};
use crate::nonce::random;

/// The server's side of all exchanges over one datagram endpoint.
///
/// Give it every datagram that arrives: it returns at most one to be sent. Take a
/// [request](Self::next_request), do the handshake, and [answer](Self::answer) it or
/// [refuse](Self::refuse) it. Then give it datagrams until the request has an
/// [outcome](Self::outcome). Any number of requests can be in progress at once, up to its limit.
///
/// It has no clock: the time is an argument.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use verbs_channel::datagram_exchange::{Acceptor, Connector, Step};
/// # use verbs_channel::verbs_core::{DatagramEndpoint, PacketSequenceNumber, QKey, QueuePairEndpoint};
/// # let psn = PacketSequenceNumber::new(1)?;
/// # let [theirs, ours] = [3, 4].map(|qp_num| QueuePairEndpoint::builder(qp_num, psn).lid(1).build());
/// # let [client, server] =
/// #     [5, 6].map(|qp_num| DatagramEndpoint::builder(qp_num, QKey::new(7).unwrap()).lid(1).build());
/// # let (theirs, ours, client, server) = (theirs?, ours?, client?, server?);
///
/// let now = Instant::now();
/// let mut acceptor = Acceptor::new(4096, 64, now);
/// let second = Duration::from_secs(1);
/// let mut connector = Connector::new(&server, &theirs, b"hello", 4096, now, second)?;
/// let request = loop {
///     if let Some(request) = acceptor.next_request(now) {
///         break request;
///     }
///     let Step::Send(bytes) = connector.step(now)? else { panic!("it waits") };
///     if let Some(answer) = acceptor.received(&client, bytes, now) {
///         connector.received(&answer.bytes);
///     }
/// };
/// assert_eq!(request.peer().private_data, b"hello");
/// // Now do the handshake with `request.peer().endpoint`. If it fails: `acceptor.refuse(…)`.
/// let answer = acceptor.answer(request.id(), &ours, b"welcome", now)?;
/// connector.received(&answer.bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Acceptor {
    cookies: Cookies,
    max_payload: u32,
    limit: usize,
    /// In the order in which they came.
    exchanges: VecDeque<Exchange>,
    /// Those that ended well last: what their clients send again is answered.
    finished: VecDeque<(DatagramEndpoint, Session)>,
}

/// A datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The endpoint to send it to.
    pub to: DatagramEndpoint,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A client that wants to connect, from [`Acceptor::next_request`].
#[derive(Clone, Debug)]
pub struct Request {
    id: RequestId,
    from: DatagramEndpoint,
    max_private_data: usize,
    peer: Peer,
}

/// Identifies a request of one [`Acceptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl Request {
    /// The number of the request.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// The datagram endpoint of the client.
    #[must_use]
    pub const fn from(&self) -> DatagramEndpoint {
        self.from
    }

    /// The endpoint to connect a queue pair to, and the client's private data.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The most bytes of private data that can be sent to this client.
    #[must_use]
    pub const fn max_private_data(&self) -> usize {
        self.max_private_data
    }
}

/// One client.
#[derive(Debug)]
struct Exchange {
    from: DatagramEndpoint,
    session: Session,
    max_payload: u32,
    /// When its last datagram came, or its request was answered.
    last_active: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing was done for it yet.
    Waiting(Peer),
    /// The handshake is being done.
    Taken,
    /// The handshake is done: this is the ACCEPT.
    Answered(Vec<u8>),
    /// READY has come, then. This is whether DONE has, too.
    Ready(Instant, bool),
    /// The client does not connect.
    Failed(ExchangeError),
    /// The same, before its request was taken.
    Gone,
}

/// A client that has been silent for so long is gone: it repeats its message ten times in a second.
const SILENCE: Duration = Duration::from_secs(5);

/// How long DONE is waited for. Meanwhile the client sends READY four times if no CONFIRM arrives.
const LINGER: Duration = Duration::from_millis(250);

/// How long an exchange is kept whose outcome is not taken.
const UNTAKEN: Duration = Duration::from_secs(60);

/// How many exchanges that ended well are remembered.
const FINISHED: usize = 256;

impl Acceptor {
    /// An acceptor for a datagram endpoint that sends at most `max_payload` bytes in a datagram, with at
    /// most `limit` clients at once between their cookie and their outcome. Each needs at most about 2 KiB.
    #[must_use]
    pub fn new(max_payload: u32, limit: usize, now: Instant) -> Self {
        Self {
            cookies: Cookies::new(now),
            max_payload,
            limit,
            exchanges: VecDeque::new(),
            finished: VecDeque::new(),
        }
    }

    /// Takes a datagram that was received, and returns the datagram to send in return. Datagrams of
    /// other protocols are ignored.
    #[must_use = "the answer is to be sent"]
    pub fn received(
        &mut self,
        from: &DatagramEndpoint,
        datagram: &[u8],
        now: Instant,
    ) -> Option<Answer> {
        let (session, message) = wire::parse(datagram)?;
        self.forget_the_silent(now);
        let at = self.exchanges.iter().position(|exchange| {
            let Session { client, server } = exchange.session;
            // A client has no number of the server before it is accepted.
            exchange.from == *from
                && client == session.client
                && (session.server == 0 || session.server == server)
        });
        let bytes = match at.and_then(|at| self.exchanges.get_mut(at)) {
            Some(exchange) => {
                let answer = exchange.received(session, message, now);
                if matches!(exchange.state, State::Gone) {
                    let _gone = at.and_then(|at| self.exchanges.remove(at));
                }
                answer
            }
            None => {
                // Its sender may be forged: what is sent there is about as short.
                let max = self
                    .max_payload
                    .min(u32::try_from(datagram.len()).unwrap_or(u32::MAX));
                self.stranger(from, session, message, max, now)
            }
        }?;
        Some(Answer { to: *from, bytes })
    }

    /// A message of a client for which nothing is kept. `max` is the longest answer.
    fn stranger(
        &mut self,
        from: &DatagramEndpoint,
        session: Session,
        message: Message<'_>,
        max: u32,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let mut finished = self.finished.iter();
        match message {
            Message::Request {
                cookie,
                max_payload,
                peer,
            } => {
                let client = session.client;
                if finished.any(|(ours, session)| ours == from && session.client == client) {
                    return None;
                }
                if !self.cookies.is_ours(cookie, from, client, now) {
                    let cookie = self.cookies.make(from, client, now);
                    return Some(wire::cookie(session, cookie));
                }
                if self.exchanges.len() >= self.limit {
                    return None;
                }
                let max_payload = self.max_payload.min(max_payload.into());
                let peer = match wire::peer_in(peer) {
                    Ok(peer) => peer,
                    Err(error) => {
                        let code = error.code().unwrap_or(RefusalCode::FRAME);
                        return Some(wire::refused(session, code, &error, max_payload));
                    }
                };
                // 0 is no number.
                let server = random().max(1);
                self.exchanges.push_back(Exchange {
                    from: *from,
                    session: Session { client, server },
                    max_payload,
                    last_active: now,
                    state: State::Waiting(peer),
                });
                None
            }
            Message::Ready => Some(
                if finished.any(|(ours, known)| ours == from && *known == session) {
                    wire::confirm(session)
                } else {
                    wire::unknown(session)
                },
            ),
            Message::Unusable(error @ ExchangeError::Version(_)) => {
                Some(wire::refused(session, RefusalCode::VERSION, &error, max))
            }
            _ => None,
        }
    }

    /// The client that has waited for the longest time. Answer or refuse it next.
    #[must_use = "a request that was taken is to be answered or refused"]
    pub fn next_request(&mut self, now: Instant) -> Option<Request> {
        self.forget_the_silent(now);
        self.exchanges.iter_mut().find_map(Exchange::take)
    }

    /// Accepts a client: this side's handshake is done. Returns the datagram to send.
    ///
    /// # Errors
    ///
    /// - [`ExchangeError::PrivateData`], [`ExchangeError::PrivateDataBeyondMtu`]: it is longer than
    ///   [`max_private_data`](Request::max_private_data). The request can be [refused](Self::refuse) then.
    /// - [`ExchangeError::Refused`]: the client does not connect any more.
    /// - [`ExchangeError::Over`]: the request was answered before, or ended.
    pub fn answer(
        &mut self,
        id: RequestId,
        endpoint: &QueuePairEndpoint,
        private_data: &[u8],
        now: Instant,
    ) -> Result<Answer, ExchangeError> {
        let exchange = self.find(id).ok_or(ExchangeError::Over)?;
        match exchange.state {
            State::Taken => {}
            // The client's reason.
            State::Failed(_) => return Err(self.end(id).err().unwrap_or(ExchangeError::Over)),
            _ => return Err(ExchangeError::Over),
        }
        wire::check(private_data, wire::max_of_accept(exchange.max_payload))?;
        let bytes = wire::accept(exchange.session, endpoint, private_data);
        exchange.state = State::Answered(bytes.clone());
        // No datagrams were received during the handshake.
        exchange.last_active = now;
        let to = exchange.from;
        Ok(Answer { to, bytes })
    }

    /// Refuses a client, and forgets it. Returns the datagram to send, which is not repeated: the client
    /// times out if it is lost.
    #[must_use = "the answer is to be sent"]
    pub fn refuse(
        &mut self,
        id: RequestId,
        why: &(dyn std::error::Error + 'static),
    ) -> Option<Answer> {
        let exchange = self.remove(id)?;
        let (session, code) = (exchange.session, RefusalCode::HANDSHAKE);
        let bytes = wire::refused(session, code, why, exchange.max_payload);
        let to = exchange.from;
        Some(Answer { to, bytes })
    }

    /// The outcome of a request that was answered: `Ok` if the client is connected; `None` until it is
    /// known. It is returned once.
    ///
    /// A request that was answered ends with the client's DONE, a quarter of a second after its
    /// READY, or after five seconds of silence: see [`due`](Self::due).
    ///
    /// # Errors
    ///
    /// - [`ExchangeError::TimedOut`]: the client is silent.
    /// - [`ExchangeError::Refused`]: the client does not connect.
    /// - [`ExchangeError::Over`]: there is no such request.
    pub fn outcome(&mut self, id: RequestId, now: Instant) -> Option<Result<(), ExchangeError>> {
        let Some(exchange) = self.find(id) else {
            return Some(Err(ExchangeError::Over));
        };
        let is_over = match exchange.state {
            State::Waiting(_) | State::Taken | State::Gone => false,
            State::Failed(_) | State::Ready(_, true) => true,
            _ => exchange.due().is_some_and(|due| now >= due),
        };
        is_over.then(|| self.end(id))
    }

    /// When the request will have an outcome, unless a datagram ends it earlier. `None` if it has
    /// one already, or has not been answered.
    #[must_use]
    pub fn due(&self, id: RequestId) -> Option<Instant> {
        let exchange = self.exchanges.iter().find(|known| known.is(id))?;
        exchange.due()
    }

    /// Ends a request now, because its time is over on this side. It is connected if the client's
    /// READY has arrived.
    ///
    /// # Errors
    ///
    /// As [`outcome`](Self::outcome).
    pub fn abandon(&mut self, id: RequestId) -> Result<(), ExchangeError> {
        self.end(id)
    }

    fn end(&mut self, id: RequestId) -> Result<(), ExchangeError> {
        match self.remove(id) {
            None => Err(ExchangeError::Over),
            Some(Exchange {
                state: State::Ready(..),
                from,
                session,
                ..
            }) => {
                self.finished.truncate(FINISHED - 1);
                self.finished.push_front((from, session));
                Ok(())
            }
            Some(Exchange {
                state: State::Failed(error),
                ..
            }) => Err(error),
            Some(_) => {
                let (what, after) = ("answer", None);
                Err(ExchangeError::TimedOut { what, after })
            }
        }
    }

    /// How many clients have returned their cookie, and have no outcome yet.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.exchanges.len()
    }

    /// A client that is gone before its request was taken is not to be taken any more.
    fn forget_the_silent(&mut self, now: Instant) {
        self.exchanges.retain(|exchange| {
            let patience = match exchange.state {
                State::Waiting(_) => SILENCE,
                _ => UNTAKEN,
            };
            now.saturating_duration_since(exchange.last_active) < patience
        });
    }

    fn find(&mut self, id: RequestId) -> Option<&mut Exchange> {
        self.exchanges.iter_mut().find(|exchange| exchange.is(id))
    }

    fn remove(&mut self, id: RequestId) -> Option<Exchange> {
        let at = self.exchanges.iter().position(|known| known.is(id))?;
        self.exchanges.remove(at)
    }
}

impl Exchange {
    const fn is(&self, id: RequestId) -> bool {
        self.session.server == id.0
    }

    fn take(&mut self) -> Option<Request> {
        let State::Waiting(peer) = &mut self.state else {
            return None;
        };
        let peer = Peer {
            endpoint: peer.endpoint,
            private_data: std::mem::take(&mut peer.private_data),
        };
        self.state = State::Taken;
        Some(Request {
            id: RequestId(self.session.server),
            from: self.from,
            max_private_data: wire::max_of_accept(self.max_payload),
            peer,
        })
    }

    /// When it is over unless something comes.
    fn due(&self) -> Option<Instant> {
        let (since, patience) = match self.state {
            State::Answered(_) => (self.last_active, SILENCE),
            State::Ready(at, false) => (at, LINGER),
            _ => return None,
        };
        // A clock that ends before has reached every time.
        Some(since.checked_add(patience).unwrap_or(since))
    }

    fn received(
        &mut self,
        session: Session,
        message: Message<'_>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.last_active = self.last_active.max(now);
        let is_certain = session == self.session;
        match (&mut self.state, message) {
            (State::Answered(accept), Message::Request { .. }) => Some(accept.clone()),
            (State::Answered(_), Message::Ready) if is_certain => {
                self.state = State::Ready(now, false);
                Some(wire::confirm(session))
            }
            (State::Ready(..), Message::Ready) if is_certain => Some(wire::confirm(session)),
            (State::Failed(_), Message::Ready) => Some(wire::unknown(session)),
            (State::Ready(_, done), Message::Done) if is_certain => {
                *done = true;
                None
            }
            (State::Waiting(_), Message::Refused(_)) => {
                self.state = State::Gone;
                None
            }
            (_, Message::Refused(error)) => {
                self.state = State::Failed(error);
                None
            }
            _ => None,
        }
    }
}
