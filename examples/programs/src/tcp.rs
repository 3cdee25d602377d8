//! TCP to the peer: every wait is bounded.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Context as _, Failure};

/// How often a listener checks for a client.
const LOOK: Duration = Duration::from_millis(5);

/// A TCP port that clients connect to.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    port: u16,
}

/// The other end of a TCP connection.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    limit: Duration,
}

impl Listener {
    /// Listens on every address of this machine.
    ///
    /// # Errors
    ///
    /// The port is taken, or may not be used.
    pub fn bind(port: u16) -> Result<Self, Failure> {
        // One socket for both families, where there is IPv6.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| {
            if error.kind() == ErrorKind::AddrInUse {
                return Err(error);
            }
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        });
        let listener = listener.context(|| format!("cannot listen on TCP port {port}"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// The port, which the system chose if 0 was asked for.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket, for code that accepts itself; it does not block.
    #[must_use]
    pub const fn socket(&self) -> &TcpListener {
        &self.listener
    }

    /// The socket, for a runtime; it does not block.
    #[must_use]
    pub fn into_socket(self) -> TcpListener {
        self.listener
    }

    /// Waits for a client, at most for `wait`. The client may be silent for `limit`.
    ///
    /// # Errors
    ///
    /// No client connected.
    pub fn accept(&self, wait: Duration, limit: Duration) -> Result<Peer, Failure> {
        let deadline = Instant::now() + wait;
        loop {
            match self.listener.accept() {
                Ok((stream, _from)) => {
                    stream.set_nonblocking(false)?;
                    return Peer::new(stream, limit);
                }
                Err(error) if is_for_later(&error) => {}
                Err(error) => return Err(error).context(|| "cannot accept a client"),
            }
            if Instant::now() >= deadline {
                let (port, seconds) = (self.port, wait.as_secs());
                return Err(Failure::new(format!(
                    "no client came to TCP port {port} in {seconds} s (--wait waits longer)"
                )));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Peer {
    /// Connects to a server, which may be silent for `limit`.
    ///
    /// # Errors
    ///
    /// The host is unknown, or no socket listens there.
    pub fn connect(host: &str, port: u16, limit: Duration) -> Result<Self, Failure> {
        let doing = || cannot_connect(host, port);
        let mut refused = io::Error::new(ErrorKind::NotFound, "it has no address");
        for address in (host, port).to_socket_addrs().context(doing)? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => return Self::new(stream, limit),
                Err(error) => refused = error,
            }
        }
        Err(refused).context(doing)
    }

    fn new(stream: TcpStream, limit: Duration) -> Result<Self, Failure> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, limit })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    ///
    /// The peer is gone, or takes nothing.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = (&self.stream).write_all(bytes);
        sent.context(|| "cannot send to the peer over TCP")
    }

    /// Fills `into`, within the limit.
    ///
    /// # Errors
    ///
    /// The peer is gone, or too slow.
    pub fn receive(&self, into: &mut [u8]) -> Result<(), Failure> {
        self.receive_within(into, self.limit)
    }

    /// As [`receive`](Self::receive), with another limit.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    pub fn receive_within(&self, into: &mut [u8], limit: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        let (mut got, wanted) = (0, into.len());
        while let Some(rest) = into.get_mut(got..).filter(|rest| !rest.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let limit = limit.as_secs();
                return Err(Failure::new(format!(
                    "the peer sent {got} of {wanted} bytes over TCP in {limit} s (--timeout waits longer)"
                )));
            }
            self.stream.set_read_timeout(Some(left))?;
            match (&self.stream).read(rest) {
                Ok(0) => {
                    return Err(Failure::new(format!(
                        "the peer closed the TCP connection after {got} of {wanted} bytes"
                    )));
                }
                Ok(more) => got += more,
                Err(error) if is_for_later(&error) => {}
                Err(error) => {
                    return Err(error).context(|| "cannot receive from the peer over TCP");
                }
            }
        }
        Ok(())
    }

    /// The connection, for code that uses it directly.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// How long the peer may be silent.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Checks that the connection is open, without reading from it.
    ///
    /// # Errors
    ///
    /// The peer has closed it, or died.
    pub fn still_there(&self) -> Result<(), Failure> {
        self.has_sent().map(drop)
    }

    /// Whether bytes have arrived that were not received yet.
    ///
    /// # Errors
    ///
    /// As [`still_there`](Self::still_there).
    pub fn has_sent(&self) -> Result<bool, Failure> {
        self.stream.set_nonblocking(true)?;
        let looked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match looked {
            Ok(0) => Err(Failure::new(
                "the peer is gone: it closed the TCP connection",
            )),
            Ok(_) => Ok(true),
            Err(error) if is_for_later(&error) => Ok(false),
            Err(error) => Err(error).context(|| "the peer is gone"),
        }
    }
}

/// The failure of a client that cannot connect to its server.
pub(crate) fn cannot_connect(host: &str, port: u16) -> String {
    format!("cannot connect to {host:?} on TCP port {port} (is the server started?)")
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    /// The two ends of a connection.
    fn ends() -> (Peer, Peer) {
        let listener = Listener::bind(0).unwrap();
        let port = listener.port();
        let client = Peer::connect("127.0.0.1", port, SHORT).unwrap();
        (listener.accept(SHORT, SHORT).unwrap(), client)
    }

    #[test]
    fn bytes_arrive_whole_though_sent_in_parts() {
        let (server, client) = ends();
        client.send(b"abc").unwrap();
        let sender = thread::spawn(move || {
            thread::sleep(SHORT / 4);
            client.send(b"def").map(|()| client)
        });
        let mut bytes = [0; 6];
        server.receive(&mut bytes).unwrap();
        assert_eq!(&bytes, b"abcdef");
        server.still_there().unwrap();
        assert!(!server.has_sent().unwrap());
        let client = sender.join().unwrap().unwrap();
        client.send(b"g").unwrap();
        let start = Instant::now();
        while !server.has_sent().unwrap() {
            assert!(start.elapsed() < SHORT * 20);
        }
        server.receive(&mut [0]).unwrap();
        drop(client);
        let gone = server.still_there().unwrap_err().to_string();
        assert!(gone.contains("the peer is gone"), "{gone}");
    }

    #[test]
    fn silence_ends_even_if_a_byte_comes_now_and_then() {
        let (server, client) = ends();
        let start = Instant::now();
        let dripping = thread::spawn(move || {
            // Until the other end closes the connection.
            while start.elapsed() < SHORT * 20 && client.send(b"x").is_ok() {
                thread::sleep(SHORT / 4);
            }
        });
        let error = server.receive(&mut [0; 1000]).unwrap_err().to_string();
        assert!(error.contains("of 1000 bytes"), "{error}");
        assert!(start.elapsed() < SHORT * 5);
        drop(server);
        dripping.join().unwrap();
    }

    #[test]
    fn early_end_is_an_error() {
        let (server, client) = ends();
        client.send(b"ab").unwrap();
        drop(client);
        let error = server.receive(&mut [0; 4]).unwrap_err().to_string();
        assert!(error.contains("after 2 of 4 bytes"), "{error}");
    }

    #[test]
    fn missing_peer_is_an_error_on_both_sides() {
        let listener = Listener::bind(0).unwrap();
        let port = listener.port();
        let error = listener.accept(SHORT, SHORT).unwrap_err().to_string();
        assert!(error.starts_with("no client came"), "{error}");
        let taken = Listener::bind(port).unwrap_err().to_string();
        assert!(taken.contains("cannot listen on TCP port"), "{taken}");
        drop(listener);
        let error = Peer::connect("127.0.0.1", port, SHORT).unwrap_err();
        assert!(error.to_string().contains("Connection refused"), "{error}");
    }
}
