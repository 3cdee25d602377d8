//! Exchanges over a blocking TCP connection, each with one deadline.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, SendFlags};

use super::attempts::{Attempt, Attempts};
use super::deadline::Deadline;
use super::peer::HostAddress;
use crate::error::Result;
use crate::exchange::{Exchange, ExchangeError, ExchangeFailure, Io};

/// Refuses the peer at the other end of a TCP connection: sends it the reason, and shuts the
/// connection down.
pub(crate) fn refuse(
    stream: &TcpStream,
    timeout: Duration,
    why: &(dyn std::error::Error + 'static),
) {
    let exchange = Exchange::refusing(why);
    let over = meet(stream, Deadline::after(timeout), exchange, |_| Ok(()));
    // The outcome of an exchange that refuses is always that it is over.
    drop(over);
}

/// Connects to the first of the peer's addresses that answers. While one of them refuses because the
/// peer does not listen yet, all are tried again until the deadline.
pub(crate) fn connect(
    peer: &HostAddress,
    deadline: Deadline,
) -> Result<TcpStream, ExchangeFailure> {
    let mut attempts = Attempts::until(peer.resolve()?, deadline);
    loop {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        match attempts.step()? {
            Attempt::Pause(until) => thread::sleep(left(until)),
            Attempt::Try(address, until) => {
                match TcpStream::connect_timeout(&address, left(until).max(SHORTEST)) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => attempts.timed_out(),
                    dialled => {
                        if let Some(stream) = attempts.dialled(dialled) {
                            return Ok(stream);
                        }
                    }
                }
            }
        }
    }
}

/// Runs an exchange over a connection, with the handshake in its middle, which may [run](run) it further.
/// Returns the handshake's outcome and the peer's private data.
///
/// The connection's options are restored. If the exchange fails, the connection is shut down, so that
/// the peer does not wait.
pub(crate) fn meet<C>(
    stream: &TcpStream,
    deadline: Deadline,
    exchange: Exchange,
    handshake: impl FnOnce(&mut Exchange) -> Result<C>,
) -> Result<(C, Vec<u8>)> {
    // The address is not available after the peer has closed the connection.
    let peer = stream.peer_addr().ok();
    let tcp = |source| {
        let what = "set up the connection to";
        ExchangeFailure::new(peer, ExchangeError::Tcp { what, source })
    };
    let before = Settings::of(stream).map_err(tcp)?;
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true));
    prepared.map_err(tcp)?;
    let agreed = agree(stream, peer, deadline, exchange, handshake).and_then(|agreed| {
        before.restore(stream).map_err(tcp)?;
        Ok(agreed)
    });
    if agreed.is_err() {
        // Best effort: the error of the exchange is the one to return.
        drop(stream.shutdown(Shutdown::Both));
        drop(before.restore(stream));
    }
    agreed
}

fn agree<C>(
    stream: &TcpStream,
    address: Option<SocketAddr>,
    deadline: Deadline,
    mut exchange: Exchange,
    handshake: impl FnOnce(&mut Exchange) -> Result<C>,
) -> Result<(C, Vec<u8>)> {
    let failure = |error| ExchangeFailure::new(address, error);
    run(stream, deadline, &mut exchange).map_err(failure)?;
    let connected = handshake(&mut exchange);
    match &connected {
        Ok(_) => exchange.ready(),
        Err(error) => exchange.refuse(error),
    }
    let agreed = run(stream, deadline, &mut exchange);
    // The error of the handshake is more precise than that of the exchange.
    let connected = connected?;
    agreed.map_err(failure)?;
    Ok((connected, exchange.into_private_data()))
}

/// Runs an exchange until it is done.
pub(super) fn run(
    mut stream: &TcpStream,
    deadline: Deadline,
    exchange: &mut Exchange,
) -> Result<(), ExchangeError> {
    loop {
        let refuses = exchange.refuses();
        let Some(io) = exchange.io().map_err(|error| deadline.explain(error))? else {
            return Ok(());
        };
        let left = deadline
            .left()
            .ok_or_else(|| io::ErrorKind::TimedOut.into());
        // At its timeout a socket returns `WouldBlock`: the loop checks the deadline again.
        let moved = match io {
            // The peer gets the reason after the deadline, too.
            Io::Write(bytes) if refuses && left.is_err() => write_now(stream, bytes),
            Io::Write(bytes) => left
                .and_then(|left| stream.set_write_timeout(Some(left)))
                .and_then(|()| stream.write(bytes)),
            Io::Read(buffer) => left
                .and_then(|left| stream.set_read_timeout(Some(left)))
                .and_then(|()| stream.read(buffer)),
        };
        exchange.moved(moved);
    }
}

/// Writes as much as there is room for in the buffer of the socket, without waiting.
fn write_now(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    net::send(stream, bytes, flags).map_err(|error| match error {
        Errno::AGAIN => io::ErrorKind::TimedOut.into(),
        error => error.into(),
    })
}

/// The reason that the peer has sent instead of its part of the exchange, or sends until this deadline; the
/// stream is looked at once if that has passed. If there is none, the exchange can go on.
#[cfg(feature = "rdmacm")]
pub(super) fn refusal(
    mut stream: &TcpStream,
    until: Deadline,
    exchange: &mut Exchange,
) -> Option<ExchangeError> {
    exchange.read_ahead();
    loop {
        let buffer = match exchange.io() {
            Ok(Some(Io::Read(buffer))) => buffer,
            Ok(_) => return None,
            Err(error) => return matches!(error, ExchangeError::Refused { .. }).then_some(error),
        };
        let left = until.left();
        let read = stream
            .set_read_timeout(Some(left.unwrap_or(SHORTEST)))
            .and_then(|()| stream.read(buffer));
        let is_over = read
            .as_ref()
            .is_err_and(|error| left.is_none() && error.kind() == io::ErrorKind::WouldBlock);
        if is_over {
            return None;
        }
        exchange.moved(read);
    }
}

/// The options of a connection that an exchange changes, to restore them.
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

/// The minimum time for an address to answer: a timeout of 0 is an error.
const SHORTEST: Duration = Duration::from_millis(1);

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use super::*;
    #[cfg(feature = "rdmacm")]
    use crate::exchange::Side;
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::mpsc;

    const SECOND: Duration = Duration::from_secs(1);

    pub(in crate::connect) fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll(2)")]
    fn unreachable_address_does_not_prevent_the_others() {
        let (_listener, address) = listener();
        // Connecting to the broadcast address is not allowed. The other is reserved for
        // documentation, so no host has it.
        let not_allowed = SocketAddr::from((Ipv4Addr::BROADCAST, 7));
        let unassigned = SocketAddr::from(([192, 0, 2, 1], 7));
        let addresses = [not_allowed, unassigned, address];
        let stream = connect(&addresses[..].into(), Deadline::after(3 * SECOND)).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        // Alone, it is not tried again.
        let start = Instant::now();
        let failure = connect(&not_allowed.into(), Deadline::after(3 * SECOND)).unwrap_err();
        assert!(
            matches!(failure.error, ExchangeError::Tcp { .. }),
            "{failure:?}"
        );
        assert_eq!(failure.to_string(), "cannot connect to 255.255.255.255:7");
        assert!(start.elapsed() < SECOND);
    }

    #[test]
    fn address_without_a_port_is_named() {
        let failure = connect(&"localhost".into(), Deadline::after(SECOND)).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "the peer's address \"localhost\" is not HOST:PORT"
        );
    }

    fn pair() -> (TcpStream, TcpStream) {
        let (listener, address) = listener();
        let stream = TcpStream::connect(address).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
    fn reason_is_sent_after_the_deadline_as_far_as_there_is_room() {
        let (ours, mut theirs) = pair();
        let over = Deadline::after(Duration::ZERO);
        let mut exchange = Exchange::refusing(&io::Error::other("too late"));
        let ended = run(&ours, over, &mut exchange).unwrap_err();
        assert!(matches!(ended, ExchangeError::Over), "{ended}");
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).unwrap();
        assert!(sent.ends_with(b"too late"), "{sent:?}");

        let (ours, _theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        while (&ours).write(&[0; 1 << 16]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            let mut exchange = Exchange::refusing(&io::Error::other("no room"));
            done.send(run(&ours, over, &mut exchange).is_err()).unwrap();
        });
        assert!(ended.recv_timeout(20 * SECOND).expect("it hangs"));
    }

    /// Both sides of a stream, which have exchanged their first frames.
    #[cfg(feature = "rdmacm")]
    fn met() -> [(TcpStream, Exchange); 2] {
        let (ours, theirs) = pair();
        let sides = [(ours, Side::Connects), (theirs, Side::Accepts)];
        thread::scope(|threads| {
            let met = sides.map(|(stream, side)| {
                threads.spawn(move || {
                    let mut exchange = Exchange::by_manager(b"", side).unwrap();
                    run(&stream, Deadline::after(20 * SECOND), &mut exchange).unwrap();
                    (stream, exchange)
                })
            });
            met.map(|met| met.join().unwrap())
        })
    }

    #[cfg(feature = "rdmacm")]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
    fn reason_of_a_peer_is_read_until_a_deadline_after_which_the_exchange_goes_on() {
        for is_late in [false, true] {
            let [(ours, mut exchange), (theirs, mut other)] = met();
            let none = refusal(&ours, Deadline::after(SECOND / 20), &mut exchange);
            assert!(none.is_none(), "{none:?}");
            other.refuse(&io::Error::other("no route"));
            run(&theirs, Deadline::after(SECOND), &mut other).unwrap_err();
            let until = Deadline::after(if is_late { Duration::ZERO } else { 20 * SECOND });
            match refusal(&ours, until, &mut exchange) {
                Some(ExchangeError::Refused { words, .. }) => assert_eq!(words, "no route"),
                other => panic!("{other:?}"),
            }
        }
        let [(ours, mut exchange), (theirs, mut other)] = met();
        assert!(refusal(&ours, Deadline::after(Duration::ZERO), &mut exchange).is_none());
        exchange.refuse(&io::Error::other("nothing listens"));
        run(&ours, Deadline::after(SECOND), &mut exchange).unwrap_err();
        let reason = refusal(&theirs, Deadline::after(20 * SECOND), &mut other);
        assert!(reason.is_some(), "this side can refuse, too");
    }
}
