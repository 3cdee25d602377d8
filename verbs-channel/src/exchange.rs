//! Connecting over TCP: how two channels that never met exchange their endpoints.
//!
//! Both sides do the same, at the same time. A frame is `VRBC`, a version, a kind, a length, and at
//! most 1060 bytes of payload:
//!
//! ```text
//! ENDPOINT: the endpoint, then private data   ──►   ◄── the same
//! (handshake)
//! READY: empty                                ──►   ◄── the same
//! ```
//!
//! When a side has read the other's `READY`, both queue pairs are connected, so whatever it sends
//! arrives. Every wait ends at one deadline.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::{EndpointError, QueuePairEndpoint};

use crate::error::Result;

/// The most private data that a peer can give with its endpoint, in bytes.
pub const MAX_PRIVATE_DATA: usize = 1024;

/// The longest payload of a frame, in bytes.
const MAX_PAYLOAD: usize = QueuePairEndpoint::BYTES + MAX_PRIVATE_DATA;

const MAGIC: [u8; 4] = *b"VRBC";
const VERSION: u16 = 1;
const ENDPOINT: u16 = 1;
const READY: u16 = 2;
const HEADER: usize = 12;

/// Why two peers could not agree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// TCP failed.
    #[error("cannot {what} the peer")]
    Tcp {
        /// What was tried.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The address stands for no host.
    #[error("the peer's address stands for no host")]
    NoAddress,
    /// The deadline passed.
    #[error("the peer did not {what} in time")]
    TimedOut {
        /// What it did not do.
        what: &'static str,
    },
    /// The peer closed the connection.
    #[error("the peer hung up after {got} of {expected} bytes of a frame: it failed, or went away")]
    HungUp {
        /// Bytes that came.
        got: usize,
        /// Bytes that were to come.
        expected: usize,
    },
    /// What the peer sent is no frame of this protocol.
    #[error("the peer speaks another protocol (it began with {0:02x?})")]
    NotOurs([u8; 4]),
    /// The peer speaks another version of this protocol.
    #[error("the peer speaks version {0} of this protocol, this side {VERSION}")]
    Version(u16),
    /// A frame came that has no business here.
    #[error("the peer sent a frame of kind {got} where {expected} was due")]
    Kind {
        /// What came.
        got: u16,
        /// What was due.
        expected: u16,
    },
    /// A frame is longer than any can be.
    #[error("the peer sent a frame of {0} bytes; at most {MAX_PAYLOAD} are possible")]
    TooLong(usize),
    /// This side's private data is too long.
    #[error("{0} bytes of private data; at most {MAX_PRIVATE_DATA} are possible")]
    PrivateData(usize),
    /// The peer's endpoint is impossible.
    #[error("the peer's endpoint is not usable: {0}")]
    Endpoint(#[from] EndpointError),
}

impl ExchangeError {
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Tcp { source, .. } => source.kind(),
            Self::NoAddress | Self::PrivateData(_) => io::ErrorKind::InvalidInput,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::HungUp { .. } => io::ErrorKind::UnexpectedEof,
            Self::NotOurs(_)
            | Self::Version(_)
            | Self::Kind { .. }
            | Self::TooLong(_)
            | Self::Endpoint(_) => io::ErrorKind::InvalidData,
        }
    }
}

/// A TCP connection to a peer, with a deadline for everything on it.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: TcpStream,
    deadline: Instant,
}

impl Exchange {
    pub(crate) fn over(stream: TcpStream, timeout: Duration) -> Result<Self, ExchangeError> {
        let blocking = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true));
        blocking.map_err(|source| ExchangeError::Tcp {
            what: "set up the connection to",
            source,
        })?;
        let deadline = deadline(timeout);
        Ok(Self { stream, deadline })
    }

    /// Connects; a peer that does not listen yet is tried again until the deadline.
    pub(crate) fn connect(
        peer: impl ToSocketAddrs,
        timeout: Duration,
    ) -> Result<Self, ExchangeError> {
        let what = "connect to";
        let deadline = deadline(timeout);
        let tcp = |source| ExchangeError::Tcp { what, source };
        let addresses: Vec<_> = peer.to_socket_addrs().map_err(tcp)?.collect();
        let mut last = None;
        loop {
            for address in &addresses {
                let Some(left) = left(deadline) else {
                    return Err(last.map_or(ExchangeError::TimedOut { what: "answer" }, tcp));
                };
                match TcpStream::connect_timeout(address, left) {
                    Ok(stream) => return Self::over(stream, left),
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
    pub(crate) fn accept(listener: &TcpListener, timeout: Duration) -> Result<Self, ExchangeError> {
        let what = "accept";
        let deadline = deadline(timeout);
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
        Self::over(accepted?, left(deadline).unwrap_or_default())
    }

    /// Sends this side's endpoint and private data, and reads the peer's.
    pub(crate) fn endpoints(
        &mut self,
        endpoint: &QueuePairEndpoint,
        private_data: &[u8],
    ) -> Result<(QueuePairEndpoint, Vec<u8>), ExchangeError> {
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(ExchangeError::PrivateData(private_data.len()));
        }
        self.put(ENDPOINT, &[&endpoint.to_bytes()[..], private_data].concat())?;
        let payload = self.get(ENDPOINT)?;
        let split = QueuePairEndpoint::BYTES.min(payload.len());
        let (endpoint, private_data) = payload.split_at(split);
        let endpoint = QueuePairEndpoint::from_bytes(endpoint)?;
        Ok((endpoint, private_data.to_vec()))
    }

    /// Tells the peer that this side is connected, and waits for the same.
    pub(crate) fn ready(&mut self) -> Result<(), ExchangeError> {
        self.put(READY, &[])?;
        self.get(READY).map(drop)
    }

    fn put(&mut self, kind: u16, payload: &[u8]) -> Result<(), ExchangeError> {
        let what = "read";
        let Some(left) = left(self.deadline) else {
            return Err(ExchangeError::TimedOut { what });
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut frame = Vec::with_capacity(HEADER + payload.len());
        frame.extend(MAGIC);
        frame.extend(VERSION.to_be_bytes());
        frame.extend(kind.to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend(payload);
        let timeout = self.stream.set_write_timeout(Some(left));
        let written = timeout.and_then(|()| self.stream.write_all(&frame));
        written.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ExchangeError::TimedOut { what },
            _ => ExchangeError::Tcp {
                what: "write to",
                source,
            },
        })
    }

    fn get(&mut self, expected: u16) -> Result<Vec<u8>, ExchangeError> {
        let mut header = [0; HEADER];
        self.fill(&mut header)?;
        let [a, b, c, d, v0, v1, k0, k1, l0, l1, l2, l3] = header;
        let magic = [a, b, c, d];
        if magic != MAGIC {
            return Err(ExchangeError::NotOurs(magic));
        }
        let version = u16::from_be_bytes([v0, v1]);
        if version != VERSION {
            return Err(ExchangeError::Version(version));
        }
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(ExchangeError::TooLong(length));
        }
        let got = u16::from_be_bytes([k0, k1]);
        if got != expected {
            return Err(ExchangeError::Kind { got, expected });
        }
        let mut payload = vec![0; length];
        self.fill(&mut payload)?;
        Ok(payload)
    }

    /// Reads until the buffer is full. A peer that speaks another protocol may stop short of a
    /// header: it is told by its first bytes.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ExchangeError> {
        let expected = buffer.len();
        let mut got = 0;
        while got < expected {
            let Some(left) = left(self.deadline) else {
                return Err(ExchangeError::TimedOut { what: "write" });
            };
            let timeout = self.stream.set_read_timeout(Some(left));
            let rest = buffer.get_mut(got..).unwrap_or_default();
            match timeout.and_then(|()| self.stream.read(rest)) {
                Ok(0) => return Err(ExchangeError::HungUp { got, expected }),
                Ok(count) => got += count,
                Err(error) => match error.kind() {
                    // The loop looks at the clock.
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => {
                        return Err(ExchangeError::HungUp { got, expected });
                    }
                    _ => {
                        return Err(ExchangeError::Tcp {
                            what: "read from",
                            source: error,
                        });
                    }
                },
            }
        }
        Ok(())
    }
}

/// Between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// The longest that anything is waited for: what a deadline that cannot be computed stands for.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LONGEST)
}

/// The time that is left, if there is some.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_core::PacketSequenceNumber;

    const SECOND: Duration = Duration::from_secs(1);

    fn endpoint(qp_num: u32) -> QueuePairEndpoint {
        let psn = PacketSequenceNumber::new(7).unwrap();
        QueuePairEndpoint::builder(qp_num, psn)
            .lid(1)
            .build()
            .unwrap()
    }

    /// What our side says when the peer does this.
    fn against(peer: impl FnOnce(TcpStream) + Send + 'static, timeout: Duration) -> ExchangeError {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || peer(TcpStream::connect(address).unwrap()));
        let mut ours = Exchange::accept(&listener, SECOND).unwrap();
        ours.deadline = deadline(timeout);
        let error = ours.endpoints(&endpoint(2), b"").unwrap_err();
        drop(ours);
        peer.join().unwrap();
        error
    }

    fn frame(version: u16, kind: u16, length: u32, payload: &[u8]) -> Vec<u8> {
        let version = version.to_be_bytes();
        let (kind, length) = (kind.to_be_bytes(), length.to_be_bytes());
        [&MAGIC[..], &version, &kind, &length, payload].concat()
    }

    #[test]
    fn both_sides_learn_of_each_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let mut exchange = Exchange::connect(address, SECOND).unwrap();
            let theirs = exchange.endpoints(&endpoint(3), b"from three").unwrap();
            exchange.ready().unwrap();
            theirs
        });
        let mut exchange = Exchange::accept(&listener, SECOND).unwrap();
        let (theirs, data) = exchange.endpoints(&endpoint(2), b"from two").unwrap();
        exchange.ready().unwrap();
        assert_eq!((theirs, &data[..]), (endpoint(3), &b"from three"[..]));
        assert_eq!(peer.join().unwrap(), (endpoint(2), b"from two".to_vec()));
    }

    #[test]
    fn another_protocol_is_recognised() {
        let error = against(
            |mut peer| peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            SECOND,
        );
        assert!(matches!(error, ExchangeError::NotOurs(magic) if magic == *b"GET "));
    }

    #[test]
    fn another_version_is_named() {
        let error = against(
            |mut peer| peer.write_all(&frame(9, ENDPOINT, 0, b"")).unwrap(),
            SECOND,
        );
        assert!(matches!(error, ExchangeError::Version(9)));
    }

    #[test]
    fn a_truncated_frame_is_a_peer_that_hung_up() {
        let error = against(
            |mut peer| peer.write_all(&frame(1, ENDPOINT, 36, &[0; 5])).unwrap(),
            SECOND,
        );
        let ExchangeError::HungUp { got, expected } = error else {
            panic!("{error}");
        };
        assert_eq!((got, expected), (5, 36));
    }

    #[test]
    fn an_endless_frame_is_refused_before_it_is_read() {
        let error = against(
            |mut peer| {
                let frame = frame(1, ENDPOINT, u32::MAX, b"");
                peer.write_all(&frame).unwrap();
                // Ours hangs up; nothing is written for ever.
                drop(peer.read(&mut [0; 64]));
            },
            SECOND,
        );
        assert!(matches!(error, ExchangeError::TooLong(_)));
    }

    #[test]
    fn an_impossible_endpoint_is_refused() {
        let error = against(
            |mut peer| {
                let frame = frame(1, ENDPOINT, 36, &[0xff; 36]);
                peer.write_all(&frame).unwrap();
            },
            SECOND,
        );
        assert!(matches!(error, ExchangeError::Endpoint(_)));
    }

    #[test]
    fn a_silent_peer_is_not_waited_for_longer_than_asked() {
        let timeout = Duration::from_millis(50);
        let start = Instant::now();
        let error = against(
            |mut peer| drop(io::copy(&mut peer, &mut io::sink())),
            timeout,
        );
        assert!(
            matches!(error, ExchangeError::TimedOut { what: "write" }),
            "{error}"
        );
        assert!(start.elapsed() < SECOND);
    }

    #[test]
    fn nobody_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = Exchange::accept(&listener, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ExchangeError::TimedOut { what: "connect" }));
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = Exchange::connect(address, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ExchangeError::Tcp { .. }), "{error}");
    }

    #[test]
    fn private_data_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut exchange = Exchange::connect(address, SECOND).unwrap();
        let error = exchange.endpoints(&endpoint(2), &[0; MAX_PRIVATE_DATA + 1]);
        assert!(matches!(error, Err(ExchangeError::PrivateData(1025))));
    }
}
