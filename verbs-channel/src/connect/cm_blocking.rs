//! Waiting for a connection by `rdma_cm` in blocking calls.

use std::mem;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_core::rdmacm::{ConnectRequest, Connection, Listener};

use super::cm::{CmExchange, CmStep};
use super::cm_request::failure;
use super::deadline::Deadline;
use super::peer::{Met, PeerAddr};
use super::prepared::{Connected, PreparedChannel};
use super::tcp;
use crate::error::{Error, Result};
use crate::exchange::cm::explain;
use crate::exchange::meeting::Meeting;
use crate::exchange::{Exchange, ExchangeError};

/// The stream beside a connection: if the peer cannot connect, it sends the reason over that.
type Beside<'a> = (&'a TcpStream, &'a mut Exchange, Deadline);

/// One side, until it has its connection.
struct Half<T: Connected> {
    side: CmExchange<T>,
    connected: Option<T>,
    connection: Option<Connection>,
}

impl<T: Connected> Half<T> {
    const fn new(side: CmExchange<T>) -> Self {
        Self {
            side,
            connected: None,
            connection: None,
        }
    }

    /// Goes on as far as possible; returns until when to wait, unless it has its connection.
    fn step(&mut self) -> Result<Option<Instant>> {
        while self.connection.is_none() {
            match self.side.step()? {
                CmStep::Wait(until) => return Ok(Some(until)),
                CmStep::Connected(channel) => {
                    self.connected = Some(channel);
                    self.side.ready();
                }
                CmStep::Established(connection) => self.connection = Some(connection),
            }
        }
        Ok(None)
    }

    fn into_ends(self) -> Result<(T, Connection)> {
        Ok(self
            .connected
            .zip(self.connection)
            .ok_or(ExchangeError::Over)?)
    }
}

/// Runs one side until it is connected. Returns the channel and the peer's private data.
pub(super) fn run<T: Connected>(
    side: CmExchange<T>,
    mut beside: Option<Beside<'_>>,
) -> Result<Met<T>> {
    let mut half = Half::new(side);
    while let Some(until) = half.step()? {
        let stream = beside.as_ref().map(|(stream, ..)| stream.as_fd());
        if let [_, true] = wait_readable([half.side.poll_fd(), stream], until)?
            && let Some((stream, exchange, deadline)) = beside.take()
        {
            // If it is no error, it is a READY that came too early: the request is due as before.
            let peer = stream.peer_addr().ok();
            tcp::run(stream, deadline, exchange).map_err(|error| failure(peer, error))?;
        }
    }
    let peer = half.side.peer_addr().map(PeerAddr::Socket);
    let private_data = mem::take(&mut half.side.theirs);
    let (mut channel, connection) = half.into_ends()?;
    channel.watch_connection(connection)?;
    Ok(Met {
        channel,
        private_data,
        peer,
    })
}

impl<T: Connected> CmExchange<T> {
    /// Connects two channels of this process to each other, within `timeout`: from an address of the first one's
    /// device to one of the other's.
    ///
    /// The two devices may be the same, as in [`Channel::loopback`](crate::Channel::loopback). A connection ends
    /// when it is dropped: a channel keeps it if it [watches its peer](crate::Channel::watch_connection) by it.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::NoLocalAddr`] if one of the devices has no address, otherwise as
    /// [`step`](Self::step).
    pub fn pair<U: Connected>(
        one: PreparedChannel<T>,
        other: PreparedChannel<U>,
        timeout: Duration,
    ) -> Result<((T, Connection), (U, Connection))> {
        let deadline = Deadline::after(timeout);
        let [connects, listens] = Meeting::pair();
        let [from, to] = [one.context().local_addr()?, other.context().local_addr()?];
        let mut one = Half::new(Self::meet_before(one, &connects, Some(from), deadline)?);
        let other = CmExchange::meet_before(other, &listens, Some(to), deadline)?;
        let mut other = Half::new(other);
        one.side.meets(other.side.listens_at());
        loop {
            let [until, end] = [one.step()?, other.step()?];
            let Some(until) = until.into_iter().chain(end).min() else {
                return Ok((one.into_ends()?, other.into_ends()?));
            };
            let _readable = wait_readable([one.side.poll_fd(), other.side.poll_fd()], until)?;
        }
    }
}

/// Connects two channels that have met over TCP, as devices of iWARP need it.
pub(super) fn meet<T: Connected>(
    prepared: PreparedChannel<T>,
    (stream, deadline): (&TcpStream, Deadline),
    exchange: &mut Exchange,
    meeting: &Meeting,
) -> Result<T> {
    let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
    let failed = |error| failure(peer, error);
    let mut side = CmExchange::meet_before(prepared, meeting, local, deadline)?;
    exchange.listens_at(side.listens_at());
    tcp::run(stream, deadline, exchange).map_err(failed)?;
    let listener = exchange.meeting().and_then(|meeting| meeting.listener);
    side.meets(listener);
    if meeting.listens {
        exchange.read_ahead();
        let met = run(side, Some((stream, exchange, deadline)));
        return met
            .map(|met| met.channel)
            .map_err(|error| error.with_peer(peer));
    }
    let met = run(side, None);
    if let Err(Error::Exchange(failure)) = &met
        && failure.error.may_be_of_peer()
    {
        // The peer's own reason is more precise.
        let until = Deadline::after(REASON.min(deadline.left().unwrap_or_default()));
        if let Some(refused) = tcp::refusal(stream, until, exchange) {
            return Err(failed(refused));
        }
    }
    Ok(met?.channel)
}

/// How long the side that could not connect waits for the peer's reason: it is on the way if it has one.
const REASON: Duration = Duration::from_millis(500);

pub(super) fn next_request(listener: &mut Listener, deadline: Deadline) -> Result<ConnectRequest> {
    let request = listener.request(Some(deadline.left().unwrap_or_default()));
    let request = request.map_err(|error| explain(error, deadline.timeout()))?;
    let (what, after) = ("connect", Some(deadline.timeout()));
    Ok(request.ok_or(ExchangeError::TimedOut { what, after })?)
}

/// Waits until one of these is readable or has ended, or until then. Returns which are.
fn wait_readable(
    sources: [Option<BorrowedFd<'_>>; 2],
    until: Instant,
) -> Result<[bool; 2], ExchangeError> {
    let mut polled = Vec::with_capacity(sources.len());
    for source in sources.iter().flatten() {
        polled.push(PollFd::from_borrowed_fd(*source, PollFlags::IN));
    }
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
    match poll(&mut polled, left.ok().as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            let (what, source) = ("wait for", error.into());
            return Err(ExchangeError::Tcp { what, source });
        }
    }
    let mut are = polled.iter().map(|polled| !polled.revents().is_empty());
    Ok(sources.map(|source| source.is_some() && are.next().unwrap_or_default()))
}
