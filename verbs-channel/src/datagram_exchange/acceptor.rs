//! The side that is connected to, without I/O: for any number of clients.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use verbs_core::__private::random;
use verbs_core::QueuePairEndpoint;
use verbs_core::codes::Gid;
use verbs_core::path::DatagramEndpoint;

use super::cookie::Cookies;
use super::request::{Exchange, Request, RequestId, SILENCE, State, silent, source};
use super::wire::{self, Message, Session};
use crate::exchange::{ExchangeError, RefusalCode};

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
/// use verbs_channel::__private::datagram_exchange::{Acceptor, Connector, Step};
/// # use verbs_channel::verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
/// # use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
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

/// How long an exchange is kept whose outcome is not taken.
const UNTAKEN: Duration = Duration::from_secs(60);

/// How many exchanges that ended well are remembered.
const FINISHED: usize = 256;

impl Acceptor {
    /// An acceptor for a datagram endpoint that sends at most `max_payload` bytes in a datagram, with at
    /// most `limit` clients at once between their cookie and their outcome. Each needs at most about 2 KiB.
    ///
    /// The limit is shared fairly by the sources of the clients: their GIDs, or LIDs without one. While
    /// it is reached, a client of a source that has at least two places fewer than another takes one of
    /// that source's: that of the oldest client that waits, or else of the oldest that has not confirmed.
    /// One that waited gets no answer until there is room; one that was taken fails, and is kept until
    /// its [`outcome`](Self::outcome) is taken.
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
        let mut at = self.exchanges.iter().position(|exchange| {
            let Session { client, server } = exchange.session;
            // A client has no number of the server before it is accepted.
            exchange.from == *from
                && client == session.client
                && (session.server == 0 || session.server == server)
        });
        if let (Message::Request { .. }, Some(found)) = (&message, at)
            && let Some(State::Answered(None, _)) = self.exchanges.get(found).map(|any| &any.state)
        {
            // It has not received what was withdrawn: it waits again, as if it were new.
            let _withdrawn = self.exchanges.remove(found);
            at = None;
        }
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
                let max_payload = self.max_payload.min(max_payload.into());
                let peer = match wire::peer_in(peer) {
                    Ok(peer) => peer,
                    Err(error) => {
                        let code = error.code().unwrap_or(RefusalCode::FRAME);
                        return Some(wire::refused(session, code, &error, max_payload));
                    }
                };
                if !self.has_room_for(from) {
                    return None;
                }
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

    /// The client to answer or refuse next: one of the source (GID or LID) with the fewest clients here,
    /// so that a source with many delays no other; among these, the one that has waited for the longest time.
    #[must_use = "a request that was taken is to be answered or refused"]
    pub fn next_request(&mut self, now: Instant) -> Option<Request> {
        self.forget_the_silent(now);
        let held = self.held();
        let waiting = self.exchanges.iter_mut().filter(|any| any.waits());
        waiting
            .min_by_key(|exchange| held.get(&source(&exchange.from)).copied())
            .and_then(Exchange::take)
    }

    /// Accepts a client. Returns the datagram to send.
    ///
    /// Either this side's handshake is done, or it is done when the client [is ready](Self::is_ready), before the
    /// answer to its READY is sent. In the second way one queue pair can be offered to several clients: the first
    /// that is ready gets it, and the others are [abandoned](Self::abandon).
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
        exchange.state = State::Answered(Some(bytes.clone()), now);
        // No datagrams were received during the handshake.
        exchange.last_active = now;
        let to = exchange.from;
        Ok(Answer { to, bytes })
    }

    /// Stops repeating an [answer](Self::answer) that may have been lost: if the client asks again, its request ends
    /// with [`ExchangeError::Over`], and it waits like a new one. It can still become [ready](Self::is_ready).
    pub fn withdraw(&mut self, id: RequestId) {
        if let Some(exchange) = self.find(id)
            && let State::Answered(accept, _) = &mut exchange.state
        {
            *accept = None;
        }
    }

    /// Whether the READY of a client that was answered has arrived.
    #[must_use]
    pub fn is_ready(&self, id: RequestId) -> bool {
        let exchange = self.exchanges.iter().find(|known| known.is(id));
        exchange.is_some_and(|exchange| matches!(exchange.state, State::Ready(..)))
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
    /// READY, or after five seconds of silence: see [`due`](Self::due). While another client
    /// [waits](Self::next_request), it ends after one second of silence, or two seconds without READY.
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
            _ => self.due(id).is_some_and(|due| now >= due),
        };
        is_over.then(|| self.end(id))
    }

    /// When the request will have an outcome, unless a datagram ends it earlier, or shows that another
    /// client waits. `None` if it has one already, or has not been answered.
    #[must_use]
    pub fn due(&self, id: RequestId) -> Option<Instant> {
        let exchange = self.exchanges.iter().find(|known| known.is(id))?;
        exchange.due(self.exchanges.iter().any(Exchange::waits))
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
            Some(_) => Err(silent()),
        }
    }

    /// How many clients have returned their cookie, and have no outcome yet.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.exchanges.len()
    }

    /// The clients of each source that have a place.
    fn held(&self) -> HashMap<Result<Gid, u16>, usize> {
        let mut held = HashMap::new();
        for exchange in self.exchanges.iter().filter(|any| any.has_a_place()) {
            *held.entry(source(&exchange.from)).or_default() += 1;
        }
        held
    }

    /// Whether there is a place for a client, or another source has to give it one.
    fn has_room_for(&mut self, from: &DatagramEndpoint) -> bool {
        let held = self.held();
        if held.values().sum::<usize>() < self.limit {
            return true;
        }
        let held = |from| held.get(&source(from)).copied().unwrap_or_default();
        let unconfirmed = (0..).zip(&self.exchanges).filter(|(_, exchange)| {
            let is_confirmed = matches!(exchange.state, State::Ready(..));
            exchange.has_a_place() && !is_confirmed
        });
        let greediest = unconfirmed
            .map(|(at, exchange)| (held(&exchange.from), exchange.waits(), Reverse(at)))
            .max();
        let Some((most, waits, Reverse(at))) = greediest else {
            return false;
        };
        // Else the two sources would take this place from each other again and again.
        if most <= held(from) + 1 {
            return false;
        }
        if waits {
            let _repeats = self.exchanges.remove(at);
        } else if let Some(exchange) = self.exchanges.get_mut(at) {
            exchange.state = State::Failed(silent());
        }
        true
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
