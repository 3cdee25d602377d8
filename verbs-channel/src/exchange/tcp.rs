//! What carries an exchange: a blocking TCP connection, with one deadline for all of it.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::QueuePairEndpoint;

use super::{Exchange, ExchangeError, Peer, Step};
use crate::error::Result;

/// Connects; a peer that does not listen yet is tried again until the deadline.
pub(crate) fn connect(
    peer: impl ToSocketAddrs,
    deadline: Instant,
) -> Result<TcpStream, ExchangeError> {
    let what = "connect to";
    let tcp = |source| ExchangeError::Tcp { what, source };
    let addresses: Vec<_> = peer.to_socket_addrs().map_err(tcp)?.collect();
    let mut last = None;
    loop {
        for address in &addresses {
            let Some(left) = left(deadline) else {
                return Err(last.map_or(ExchangeError::TimedOut { what: "answer" }, tcp));
            };
            match TcpStream::connect_timeout(address, left) {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    last = Some(error);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(ExchangeError::TimedOut { what: "answer" });
                }
                Err(error) => return Err(tcp(error)),
            }
        }
        if addresses.is_empty() {
            return Err(ExchangeError::NoAddress);
        }
        thread::sleep(RETRY.min(left(deadline).unwrap_or_default()));
    }
}

/// Accepts one connection. The listener is left as it was.
pub(crate) fn accept(
    listener: &TcpListener,
    deadline: Instant,
) -> Result<TcpStream, ExchangeError> {
    let what = "accept";
    let tcp = |source| ExchangeError::Tcp { what, source };
    listener.set_nonblocking(true).map_err(tcp)?;
    let accepted = loop {
        match listener.accept() {
            Ok((stream, _)) => break Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(tcp(error)),
        }
        match left(deadline) {
            Some(left) => thread::sleep(RETRY.min(left)),
            None => break Err(ExchangeError::TimedOut { what: "connect" }),
        }
    };
    listener.set_nonblocking(false).map_err(tcp)?;
    accepted
}

/// Runs an exchange, with the handshake in its middle, over a connection; what the handshake came
/// to, and the peer's private data. The connection's options are as before, and it is shut down if
/// the exchange fails: the peer must not wait for what does not come.
pub(crate) fn meet<C>(
    stream: &TcpStream,
    deadline: Instant,
    exchange: Exchange,
    handshake: impl FnOnce(&QueuePairEndpoint) -> Result<C>,
) -> Result<(C, Vec<u8>)> {
    let tcp = |source| ExchangeError::Tcp {
        what: "set up the connection to",
        source,
    };
    let before = Settings::of(stream).map_err(tcp)?;
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true));
    prepared.map_err(tcp)?;
    let agreed = agree(stream, deadline, exchange, handshake).and_then(|agreed| {
        before.restore(stream).map_err(tcp)?;
        Ok(agreed)
    });
    if agreed.is_err() {
        // Nothing more can be done for a connection that refuses even this.
        drop(stream.shutdown(Shutdown::Both));
        drop(before.restore(stream));
    }
    agreed
}

fn agree<C>(
    stream: &TcpStream,
    deadline: Instant,
    mut exchange: Exchange,
    handshake: impl FnOnce(&QueuePairEndpoint) -> Result<C>,
) -> Result<(C, Vec<u8>)> {
    let peer = run(stream, deadline, &mut exchange)?;
    let connected = handshake(&peer.endpoint);
    match &connected {
        Ok(_) => exchange.ready(),
        Err(error) => exchange.refuse(error),
    }
    let agreed = run(stream, deadline, &mut exchange);
    // The handshake's own error says more than that the exchange is over.
    let connected = connected?;
    agreed?;
    Ok((connected, peer.private_data))
}

fn run(
    mut stream: &TcpStream,
    deadline: Instant,
    exchange: &mut Exchange,
) -> Result<Peer, ExchangeError> {
    loop {
        let step = exchange.step()?;
        let left = left(deadline).ok_or_else(|| io::ErrorKind::TimedOut.into());
        // At its timeout a socket answers `WouldBlock`: the loop looks at the clock again.
        let moved = match step {
            Step::Write(bytes) => left
                .and_then(|left| stream.set_write_timeout(Some(left)))
                .and_then(|()| stream.write(bytes)),
            Step::Read(buffer) => left
                .and_then(|left| stream.set_read_timeout(Some(left)))
                .and_then(|()| stream.read(buffer)),
            Step::Done(peer) => return Ok(peer.clone()),
        };
        exchange.moved(moved);
    }
}

/// What an exchange changes of a connection, to change it back.
struct Settings {
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    nodelay: bool,
}

impl Settings {
    fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self {
            read_timeout: stream.read_timeout()?,
            write_timeout: stream.write_timeout()?,
            nodelay: stream.nodelay()?,
        })
    }

    fn restore(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(self.read_timeout)?;
        stream.set_write_timeout(self.write_timeout)?;
        stream.set_nodelay(self.nodelay)
    }
}

/// Between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// The longest that anything is waited for: what a deadline that cannot be computed stands for.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LONGEST)
}

/// The time that is left, if there is some.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}
