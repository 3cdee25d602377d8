//! Asking a peer for a connection by `rdma_cm`, until one of its addresses accepts.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs_core::Context;
use verbs_core::rdmacm::{
    AddrResolved, Answer, Connector, Message, Pending, PrivateData, RouteResolved, Step,
};

use super::attempts::{Attempt, Attempts};
use super::deadline::Deadline;
use super::options::Connect;
use super::prepared::{Connected, PreparedChannel};
use crate::error::{Error, Result};
use crate::exchange::addresses::connector;
use crate::exchange::cm::{explain, hello, is_port_taken, is_unresolved, private_data};
use crate::exchange::meeting::Meeting;
use crate::exchange::{ExchangeError, ExchangeFailure};

/// Private data of the messages of both sides.
pub(super) enum Data {
    Framed(Vec<u8>),
    Raw(Vec<u8>),
    Meeting(Meeting),
}

/// The side that connects, until a peer has accepted.
pub(super) struct Asking<T: Connected> {
    pub(super) prepared: PreparedChannel<T>,
    pub(super) attempts: Attempts,
    pub(super) wait: Waiting,
    // The last attempt that had no answer in time.
    late: Waiting,
    // Limits of the attempt.
    until: Instant,
    pub(super) again: Duration,
    ports: u32,
    taken: Option<ExchangeError>,
    // In an exchange over TCP: the device whose address to connect from, and the stream's.
    pub(super) from: Option<(Context, Option<SocketAddr>)>,
}

pub(super) enum Waiting {
    Begin,
    Address(Pending<AddrResolved>),
    Route(Pending<RouteResolved>),
    Answer(Pending<Answer>),
}

/// How long the kernel waits for an address before it looks again: an answer on the way may be lost.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// From how many ports a request is tried.
const PORTS: u32 = 8;

impl Data {
    pub(super) fn new(options: &Connect) -> Result<Self, ExchangeError> {
        Ok(match options.is_raw {
            true => Self::Raw(options.private_data.clone()),
            false => Self::Framed(hello(&options.private_data)?),
        })
    }

    pub(super) fn request(&self) -> Result<Vec<u8>, ExchangeError> {
        match self {
            Self::Framed(bytes) | Self::Raw(bytes) => Ok(bytes.clone()),
            Self::Meeting(meeting) => meeting.request(),
        }
    }

    pub(super) fn answer(&self) -> Result<Vec<u8>, ExchangeError> {
        match self {
            Self::Meeting(meeting) => meeting.answer(),
            _ => self.request(),
        }
    }

    /// The peer's data in its request or its answer.
    pub(super) fn theirs(&self, come: &PrivateData) -> Result<Vec<u8>, ExchangeError> {
        match self {
            Self::Framed(_) => private_data(come),
            Self::Raw(_) => Ok(come.as_bytes().to_vec()),
            Self::Meeting(_) => Ok(Vec::new()),
        }
    }
}

impl Connect {
    /// Checks that the messages of `rdma_cm` have room for the private data: to be called before there is a peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateDataBeyondManager`].
    #[doc(hidden)]
    pub fn check_cm(&self) -> Result<(), ExchangeError> {
        Data::new(self).map(drop)
    }
}

impl<T: Connected> Asking<T> {
    pub(super) fn new(
        prepared: PreparedChannel<T>,
        addresses: Vec<SocketAddr>,
        deadline: Deadline,
    ) -> Self {
        Self {
            prepared,
            attempts: Attempts::until(addresses, deadline),
            wait: Waiting::Begin,
            late: Waiting::Begin,
            until: deadline.at(),
            again: Duration::MAX,
            ports: 0,
            taken: None,
            from: None,
        }
    }

    /// The answer of the first address that accepts, or how long to wait.
    pub(super) fn step(
        &mut self,
        data: &Data,
        deadline: Deadline,
    ) -> Result<Result<(Answer, SocketAddr), Instant>> {
        loop {
            let address = match self.attempts.current() {
                Some(address) if !matches!(self.wait, Waiting::Begin) => address,
                _ => match self.attempts.step()? {
                    Attempt::Try(address, until) => {
                        (self.until, self.ports, self.taken) = (until, 1, None);
                        if let Err(error) = self.begin(address, None) {
                            self.failed(error);
                            continue;
                        }
                        address
                    }
                    Attempt::Pause(until) => return Ok(Err(until)),
                },
            };
            match self.go_on(address, data, deadline.timeout()) {
                Ok(Some(answer)) => return Ok(Ok((answer, address))),
                Ok(None) if self.left().is_zero() => {
                    self.late = mem::replace(&mut self.wait, Waiting::Begin);
                    match self.taken.take() {
                        Some(taken) => self.attempts.failed(taken),
                        None => self.attempts.timed_out(),
                    }
                }
                Ok(None) => return Ok(Err(self.until)),
                Err(error) => self.failed(error),
            }
        }
    }

    fn failed(&mut self, error: ExchangeError) {
        self.wait = Waiting::Begin;
        self.attempts.failed(self.taken.take().unwrap_or(error));
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Looks for the way to an address, from this one if it is known.
    fn begin(
        &mut self,
        address: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Result<(), ExchangeError> {
        let explained = |error| explain(error, Duration::ZERO);
        let (connector, address) = match (from, &self.from) {
            (Some(from), _) => {
                let mut connector = Connector::new().map_err(explained)?;
                connector.bind(from).map_err(explained)?;
                (connector, address)
            }
            (None, Some((context, local))) => connector(context, *local, address)?,
            (None, None) => (Connector::new().map_err(explained)?, address),
        };
        let resolving = connector.resolve_addr(address, self.again.min(self.left()));
        self.wait = Waiting::Address(resolving.map_err(explained)?);
        Ok(())
    }

    /// Goes on with this address as far as possible.
    fn go_on(
        &mut self,
        address: SocketAddr,
        data: &Data,
        timeout: Duration,
    ) -> Result<Option<Answer>, ExchangeError> {
        let explained = |error| explain(error, timeout);
        loop {
            let left = self.left();
            self.wait = match mem::replace(&mut self.wait, Waiting::Begin) {
                Waiting::Address(pending) => match polled(pending) {
                    Ok(Ok(resolved)) => {
                        Waiting::Route(resolved.resolve_route(left).map_err(explained)?)
                    }
                    Ok(Err(pending)) => {
                        self.wait = Waiting::Address(pending);
                        return Ok(None);
                    }
                    Err(error) if is_unresolved(&error) && !left.is_zero() => {
                        self.begin(address, None)?;
                        continue;
                    }
                    Err(error) => return Err(explained(error)),
                },
                Waiting::Route(pending) => match polled(pending).map_err(explained)? {
                    Ok(route) => {
                        let local = route.local_addr();
                        match (self.request(route, &data.request()?), local) {
                            (Ok(pending), _) => Waiting::Answer(pending),
                            // On iWARP the connection uses a port of TCP, but `rdma_cm` chooses one without regard
                            // to those in use: on soft-iWARP the request fails then.
                            (Err(error), Some(mut local))
                                if is_port_taken(&error) && self.ports < PORTS =>
                            {
                                self.ports += 1;
                                self.taken = Some(error);
                                local.set_port(0);
                                self.begin(address, Some(local))?;
                                continue;
                            }
                            (Err(error), _) => {
                                self.taken = None;
                                return Err(error);
                            }
                        }
                    }
                    Err(pending) => {
                        self.wait = Waiting::Route(pending);
                        return Ok(None);
                    }
                },
                Waiting::Answer(pending) => {
                    self.taken = None;
                    match polled(pending).map_err(explained)? {
                        Ok(answer) => return Ok(Some(answer)),
                        Err(pending) => {
                            self.wait = Waiting::Answer(pending);
                            return Ok(None);
                        }
                    }
                }
                Waiting::Begin => return Ok(None),
            };
        }
    }

    /// Asks the peer at the end of a route for a connection.
    fn request(
        &mut self,
        route: RouteResolved,
        message: &[u8],
    ) -> Result<Pending<Answer>, ExchangeError> {
        self.prepared.check_device(&route.device_name())?;
        let asked = route.request(self.prepared.qp_mut(), Message::raw(message));
        asked.map_err(|error| explain(error, Duration::ZERO))
    }
}

impl<T: Connected> PreparedChannel<T> {
    /// The address decides on the device.
    pub(super) fn check_device(&self, needed: &str) -> Result<(), ExchangeError> {
        let ours = self.context().device().name();
        if ours == needed {
            return Ok(());
        }
        Err(ExchangeError::OtherDevice {
            needed: needed.to_owned(),
            ours: ours.to_owned(),
        })
    }
}

/// The result of a step, or the step that has not ended.
pub(super) fn polled<S: Step>(
    mut pending: Pending<S>,
) -> Result<Result<S, Pending<S>>, verbs_core::Error> {
    Ok(pending.poll()?.ok_or(pending))
}

pub(super) fn failure(peer: Option<SocketAddr>, error: ExchangeError) -> Error {
    ExchangeFailure::new(peer, error).into()
}
