//! Connecting by `rdma_cm` two channels that have met over TCP: devices of iWARP connect in no other way.

use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_core::rdmacm::{ConnectRequest, Listener, Message, PrivateData};

use super::deadline::Deadline;
use super::manager::{answered, failure};
use super::prepared::{Connected, PreparedChannel};
use super::tcp;
use crate::error::Result;
use crate::exchange::rdmacm::{connector, explain, listener, may_be_of_peer, to_stranger};
use crate::exchange::{Exchange, ExchangeError, Meeting, Side};

/// How long the kernel waits for an address before it looks again: an answer on the way may be lost.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// How long the side that could not connect waits for the peer's reason: it is on the way if it has one.
const REASON: Duration = Duration::from_millis(500);

impl<T: Connected> PreparedChannel<T> {
    /// The exchange over a TCP connection that this side came to in this way.
    pub(super) fn exchange_of(&self, side: Side, private_data: &[u8]) -> Result<Exchange> {
        let exchange = match self.context().device().needs_rdma_cm() {
            true => Exchange::by_manager(private_data, side),
            false => Exchange::new(&self.endpoint(), private_data),
        };
        Ok(exchange?)
    }

    /// Connects to the peer at the other end of a TCP connection.
    pub(super) fn meet(
        self,
        stream: &TcpStream,
        deadline: Deadline,
        exchange: Exchange,
    ) -> Result<(T, Vec<u8>)> {
        tcp::meet(stream, deadline, exchange, |exchange| {
            match exchange.meeting().cloned() {
                None => self.handshake_met(exchange),
                Some(meeting) if meeting.listens => {
                    self.meet_listening((stream, deadline), exchange, &meeting)
                }
                Some(meeting) => self.meet_connecting((stream, deadline), exchange, &meeting),
            }
        })
    }

    /// This side listens, and the peer connects.
    fn meet_listening(
        self,
        (stream, deadline): (&TcpStream, Deadline),
        exchange: &mut Exchange,
        meeting: &Meeting,
    ) -> Result<T> {
        let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
        let failed = |error| failure(peer, error);
        let mut listener = listener(self.context(), local).map_err(failed)?;
        exchange.listens_at(listener.local_addr());
        tcp::run(stream, deadline, exchange).map_err(failed)?;
        let request = asked(&mut listener, (stream, deadline), exchange, meeting);
        let request = request.map_err(failed)?;
        let (mut connected, connection) = self.admit(request, deadline, &meeting.answer()?)?;
        connected.watch_connection(connection)?;
        Ok(connected)
    }

    /// The peer listens, and this side connects.
    fn meet_connecting(
        mut self,
        (stream, deadline): (&TcpStream, Deadline),
        exchange: &mut Exchange,
        meeting: &Meeting,
    ) -> Result<T> {
        let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
        exchange.listens_at(None);
        let met = tcp::run(stream, deadline, exchange);
        met.map_err(|error| failure(peer, error))?;
        let listener = exchange.meeting().and_then(|meeting| meeting.listener);
        let to = listener.ok_or(ExchangeError::Over)?;
        let failed = |error| failure(Some(to), error);
        let context = self.context().clone();
        let from = || connector(&context, local, to);
        let asked = self.ask(from, (deadline, AGAIN), &meeting.request()?);
        let answer = asked.and_then(|asked| answered(asked, deadline));
        let answer = answer.map_err(|error| {
            if !may_be_of_peer(&error) {
                return failed(error);
            }
            // The peer's own reason is more precise.
            let until = deadline.sooner(REASON.min(deadline.left().unwrap_or_default()));
            let refusal = tcp::refusal(stream, until, exchange);
            refusal.map_or_else(|| failed(error), |refused| failure(peer, refused))
        })?;
        // Dropping the answer ends the connection.
        meeting
            .check_answer(answer.private_data())
            .map_err(failed)?;
        let (mut connected, connection) = self.establish(answer, to, deadline)?;
        connected.watch_connection(connection)?;
        Ok(connected)
    }
}

/// The request of the peer at the end of the stream. If the peer cannot connect, it sends the reason over that.
fn asked(
    listener: &mut Listener,
    (stream, deadline): (&TcpStream, Deadline),
    exchange: &mut Exchange,
    meeting: &Meeting,
) -> Result<ConnectRequest, ExchangeError> {
    let is_ours = |come: &PrivateData| meeting.is_request(come);
    exchange.read_ahead();
    let mut beside = Some(stream);
    loop {
        let request = next_of(listener, is_ours);
        if let Some(request) = request.map_err(|error| explain(error, deadline.timeout()))? {
            return Ok(request);
        }
        let sources = [Some(listener.as_fd()), beside.map(std::os::fd::AsFd::as_fd)];
        if let [_, true] = wait_readable(sources, deadline)? {
            // If it is no error, it is a READY that came too early: the request is due as before.
            tcp::run(stream, deadline, exchange)?;
            beside = None;
        }
    }
}

/// How many strangers are rejected before the deadline is looked at again.
const AT_ONCE: usize = 16;

/// Takes requests that wait, until one carries the right data. Others are rejected; after
/// [some](AT_ONCE) the caller looks at its deadline, as strangers may come without end.
pub(super) fn next_of(
    listener: &mut Listener,
    is_ours: impl Fn(&PrivateData) -> bool,
) -> verbs_core::Result<Option<ConnectRequest>> {
    for _ in 0..AT_ONCE {
        let Some(request) = listener.poll_request()? else {
            break;
        };
        if is_ours(request.private_data()) {
            return Ok(Some(request));
        }
        // Best effort: without the reason a stranger is rejected, too.
        drop(request.reject(Message::raw(&to_stranger())));
    }
    Ok(None)
}

/// Waits until one of these is readable, or has ended. Returns which are.
pub(super) fn wait_readable(
    sources: [Option<BorrowedFd<'_>>; 2],
    deadline: Deadline,
) -> Result<[bool; 2], ExchangeError> {
    let mut polled = Vec::with_capacity(sources.len());
    for source in sources.iter().flatten() {
        polled.push(PollFd::from_borrowed_fd(*source, PollFlags::IN));
    }
    loop {
        let late = ExchangeError::TimedOut {
            what: "connect",
            after: Some(deadline.timeout()),
        };
        let left = deadline.left().ok_or(late)?;
        let left = Timespec::try_from(left).ok();
        match poll(&mut polled, left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => {
                let (what, source) = ("wait for", error.into());
                return Err(ExchangeError::Tcp { what, source });
            }
        }
    }
    let mut are = polled.iter().map(|polled| !polled.revents().is_empty());
    Ok(sources.map(|source| source.is_some() && are.next().unwrap_or_default()))
}
