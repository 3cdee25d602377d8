//! The side that connects, without I/O.

use std::mem;
use std::time::{Duration, Instant};

use verbs_core::__private::random;
use verbs_core::QueuePairEndpoint;
use verbs_core::path::DatagramEndpoint;

use super::wire::{self, Message, Session};
use crate::exchange::{self, ExchangeError, PeerEndpoint, RefusalCode};

/// The client's side of an exchange over datagrams.
///
/// It is run twice, each time until it is [done](Step::Done): first for the server's endpoint, then, after
/// the handshake, for [`ready`](Self::ready) or [`refuse`](Self::refuse).
///
/// It has no clock: the time is an argument. A time before that of an earlier call counts as that
/// earlier time.
///
/// # Examples
///
/// ```no_run
/// use std::time::{Duration, Instant};
/// use verbs_channel::__private::datagram_exchange::{Connector, Step};
/// use verbs_channel::exchange::PeerEndpoint;
/// use verbs_channel::{BufferPool, Datagrams};
///
/// fn run(
///     connector: &mut Connector,
///     datagrams: &mut Datagrams,
///     pool: &BufferPool,
/// ) -> Result<PeerEndpoint, Box<dyn std::error::Error>> {
///     let server = connector.server();
///     loop {
///         match connector.step(Instant::now())? {
///             // A datagram that is not sent is one that is lost: it is repeated.
///             Step::Send(bytes) => {
///                 if let Some(block) = pool.take_with(bytes)? {
///                     datagrams.send_to(&server, block)?;
///                 }
///             }
///             Step::Wait(until) => {
///                 let timeout = until.saturating_duration_since(Instant::now());
///                 if let Some(datagram) = datagrams.receive_from(timeout)? {
///                     connector.received(&datagram);
///                 }
///             }
///             Step::Done(peer) => return Ok(peer.clone()),
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Connector {
    server: DatagramEndpoint,
    session: Session,
    stage: Stage,
    /// The endpoint and the private data of this side.
    ours: Vec<u8>,
    cookie: u64,
    max_payload: u16,
    peer: Option<PeerEndpoint>,
    deadline: Instant,
    timeout: Duration,
    /// When the message of this stage is sent next; `None`: now.
    again: Option<Instant>,
    pause: Duration,
    /// The datagram that was sent last.
    out: Vec<u8>,
    /// Sent once, before anything else is done.
    parting: Option<Vec<u8>>,
    /// How the exchange ended. Returned when the parting message is sent.
    ended: Option<ExchangeError>,
}

/// The message that an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server's ACCEPT.
    Request,
    /// The handshake of this side.
    Handshake,
    /// The server's CONFIRM.
    Ready,
    /// Nothing: both sides are connected.
    Connected,
}

/// The next action of an exchange.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else to do")]
pub enum Step<'a> {
    /// Send this datagram to the [server](Connector::server). It counts as sent.
    Send(&'a [u8]),
    /// Wait for a datagram, for [`received`](Connector::received), but not beyond this time.
    Wait(Instant),
    /// After the first run: do the handshake with the peer's endpoint, then call
    /// [`ready`](Connector::ready) or [`refuse`](Connector::refuse). After the second run both sides are
    /// connected.
    Done(&'a PeerEndpoint),
}

/// The pauses between two messages that are the same: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Connector {
    /// Begins an exchange with the server that has this datagram endpoint, which fails after `timeout`.
    ///
    /// `max_payload` is the length of the longest datagram that this side can send:
    /// [`Datagrams::max_payload`](crate::Datagrams::max_payload).
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`] for more than
    /// [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) bytes, and
    /// [`ExchangeError::PrivateDataBeyondMtu`] for more than fit a datagram of both sides' ports.
    pub fn new(
        server: &DatagramEndpoint,
        endpoint: &QueuePairEndpoint,
        private_data: &[u8],
        max_payload: u32,
        now: Instant,
        timeout: Duration,
    ) -> Result<Self, ExchangeError> {
        let max = max_payload.min(server.mtu().bytes());
        wire::check(private_data, wire::max_of_request(max))?;
        Ok(Self {
            server: *server,
            session: Session {
                client: random(),
                server: 0,
            },
            stage: Stage::Request,
            ours: [&endpoint.to_bytes(), private_data].concat(),
            cookie: 0,
            max_payload: u16::try_from(max_payload).unwrap_or(u16::MAX),
            peer: None,
            deadline: exchange::deadline(now, timeout),
            timeout,
            again: None,
            pause: FIRST_PAUSE,
            out: Vec::new(),
            parting: None,
            ended: None,
        })
    }

    /// The endpoint to which the datagrams are sent.
    #[must_use]
    pub const fn server(&self) -> DatagramEndpoint {
        self.server
    }

    /// The next thing to do.
    ///
    /// # Errors
    ///
    /// The exchange has failed: [`ExchangeError::Refused`], [`ExchangeError::TimedOut`],
    /// [`ExchangeError::Endpoint`] or [`ExchangeError::Version`], for example. If this side refuses the
    /// server, the reason has been sent. After that, always [`ExchangeError::Over`].
    pub fn step(&mut self, now: Instant) -> Result<Step<'_>, ExchangeError> {
        let is_waiting = matches!(self.stage, Stage::Request | Stage::Ready);
        if is_waiting && self.ended.is_none() && now >= self.deadline {
            self.late();
        }
        if let Some(parting) = self.parting.take() {
            self.out = parting;
            return Ok(Step::Send(&self.out));
        }
        if let Some(error) = &mut self.ended {
            return Err(mem::replace(error, ExchangeError::Over));
        }
        if let (false, Some(peer)) = (is_waiting, &self.peer) {
            return Ok(Step::Done(peer));
        }
        if let Some(again) = self.again.filter(|again| now < *again) {
            return Ok(Step::Wait(again.min(self.deadline)));
        }
        self.out = match self.stage {
            Stage::Request => {
                wire::request(self.session, self.cookie, self.max_payload, &self.ours)
            }
            _ => wire::ready(self.session),
        };
        // A pause that no clock can measure ends at the deadline.
        self.again = Some(now.checked_add(self.pause).unwrap_or(self.deadline));
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        Ok(Step::Send(&self.out))
    }

    /// Takes a datagram that was received, from any sender. Datagrams of other exchanges are
    /// ignored.
    pub fn received(&mut self, datagram: &[u8]) {
        let Some((session, message)) = wire::parse(datagram) else {
            return;
        };
        // The server's number is 0 until it has accepted.
        let is_ours = session.client == self.session.client
            && (self.session.server == 0 || session.server == self.session.server);
        if !is_ours || self.ended.is_some() {
            return;
        }
        match (self.stage, message) {
            (Stage::Request, Message::Cookie(cookie)) if cookie != self.cookie => {
                self.cookie = cookie;
                self.at_once();
            }
            (Stage::Request, Message::Accept(peer)) if session.server != 0 => {
                self.session = session;
                match wire::peer_in(peer) {
                    Ok(peer) => {
                        self.peer = Some(peer);
                        self.stage = Stage::Handshake;
                    }
                    Err(error) => self.fail(error),
                }
            }
            (Stage::Ready, Message::Confirm) => {
                self.stage = Stage::Connected;
                self.parting = Some(wire::done(self.session));
            }
            (Stage::Request | Stage::Handshake | Stage::Ready, Message::Refused(error)) => {
                self.ended = Some(error);
            }
            (Stage::Request, Message::Unusable(error)) => self.fail(error),
            _ => {}
        }
    }

    /// Continues after the handshake: sends READY until the server confirms it.
    pub fn ready(&mut self) {
        if self.stage == Stage::Handshake && self.ended.is_none() {
            self.stage = Stage::Ready;
            self.at_once();
        }
    }

    /// Refuses the server, in place of [`ready`](Self::ready): this side will not connect.
    ///
    /// Run the exchange until [`step`](Self::step) returns [`ExchangeError::Over`]. The server is sent the
    /// texts of the error and of its causes, up to 254 bytes, once.
    pub fn refuse(&mut self, why: &(dyn std::error::Error + 'static)) {
        if self.ended.is_none() && self.stage != Stage::Connected {
            let max = self.max_answer();
            let refused = wire::refused(self.session, RefusalCode::HANDSHAKE, why, max);
            self.parting = Some(refused);
            self.ended = Some(ExchangeError::Over);
        }
    }

    fn late(&mut self) {
        let what = match self.stage {
            Stage::Ready => "confirm",
            _ => "answer",
        };
        let after = Some(self.timeout);
        let error = ExchangeError::TimedOut { what, after };
        self.fail(error);
    }

    fn fail(&mut self, error: ExchangeError) {
        let max = self.max_answer();
        let code = error.code().unwrap_or(RefusalCode::HANDSHAKE);
        self.parting = Some(wire::refused(self.session, code, &error, max));
        self.ended = Some(error);
    }

    fn max_answer(&self) -> u32 {
        self.server.mtu().bytes().min(self.max_payload.into())
    }

    fn at_once(&mut self) {
        self.again = None;
        self.pause = FIRST_PAUSE;
    }
}
