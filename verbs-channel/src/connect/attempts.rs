//! Attempts to reach the first of a peer's addresses that answers.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::deadline::Deadline;
use crate::exchange::{ExchangeError, ExchangeFailure};

/// The addresses of a peer, tried one after another until one answers, without I/O.
///
/// While one of them refuses because the peer does not listen yet, all are tried again until the deadline.
#[derive(Debug)]
pub struct Attempts {
    addresses: Vec<SocketAddr>,
    deadline: Deadline,
    // The address that is tried, or is next.
    at: usize,
    is_refused: bool,
    was_refused: bool,
    retries: bool,
    last: Option<ExchangeFailure>,
}

/// The next step of [`Attempts`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is no other step")]
pub enum Attempt {
    /// Try this address until then, and call [`Attempts::failed`] if that fails.
    Try(SocketAddr, Instant),
    /// Wait until then.
    Pause(Instant),
}

impl Attempts {
    /// For the addresses of a peer, which has this time from `begun` on.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>, begun: Instant, timeout: Duration) -> Self {
        Self::until(addresses, Deadline::since(begun, timeout))
    }

    pub(super) const fn until(addresses: Vec<SocketAddr>, deadline: Deadline) -> Self {
        Self {
            addresses,
            deadline,
            at: 0,
            is_refused: false,
            was_refused: false,
            retries: true,
            last: None,
        }
    }

    /// For one address that is tried once, before this deadline.
    #[cfg(feature = "rdmacm")]
    pub(super) fn once(address: Option<SocketAddr>, deadline: Deadline) -> Self {
        let retries = false;
        let addresses = address.into_iter().collect();
        Self {
            retries,
            ..Self::until(addresses, deadline)
        }
    }

    /// The address that is tried, or is next.
    #[cfg(feature = "rdmacm")]
    pub(super) fn current(&self) -> Option<SocketAddr> {
        self.addresses.get(self.at).copied()
    }

    /// The next step.
    ///
    /// # Errors
    ///
    /// No address has answered, with the last address's error; or there is no address.
    pub fn step(&mut self) -> Result<Attempt, ExchangeFailure> {
        let Some(address) = self.addresses.get(self.at).copied() else {
            self.at = 0;
            return match (self.last.is_some(), self.is_refused) {
                (false, false) => Err(ExchangeError::NoAddress.into()),
                (true, false) => Err(self.late()),
                (_, true) => {
                    self.is_refused = false;
                    let left = self.deadline.left().unwrap_or_default();
                    Ok(Attempt::Pause(Instant::now() + RETRY.min(left)))
                }
            };
        };
        let Some(left) = self.deadline.left() else {
            return Err(self.late());
        };
        // An address that does not answer leaves time for the others.
        let untried = u32::try_from(self.addresses.len() - self.at).unwrap_or(u32::MAX);
        Ok(Attempt::Try(address, Instant::now() + left / untried))
    }

    /// The TCP connection to the address that is tried; `None` if that has failed.
    pub fn dialled(&mut self, dialled: io::Result<TcpStream>) -> Option<TcpStream> {
        let source = match dialled {
            Ok(stream) if is_to_itself(&stream) => io::ErrorKind::ConnectionRefused.into(),
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        let (after, what) = (None, "connect to");
        self.failed(match source.kind() {
            io::ErrorKind::ConnectionRefused => ExchangeError::NotListening { after, source },
            _ => ExchangeError::Tcp { what, source },
        });
        None
    }

    /// The address that is tried has failed.
    pub fn failed(&mut self, error: ExchangeError) {
        let address = self.addresses.get(self.at).copied();
        let error = match error {
            ExchangeError::NotListening { source, .. } if self.retries => {
                (self.is_refused, self.was_refused) = (true, true);
                let after = Some(self.deadline.timeout());
                ExchangeError::NotListening { after, source }
            }
            error => self.deadline.explain(error),
        };
        match error {
            // The refusal is more specific than the timeout of a retry.
            ExchangeError::TimedOut { .. } if self.was_refused => self.is_refused = true,
            error => self.last = Some(ExchangeFailure::new(address, error)),
        }
        self.at += 1;
    }

    /// The address that is tried has not answered in time.
    pub fn timed_out(&mut self) {
        let (what, after) = ("answer", Some(self.deadline.timeout()));
        self.failed(ExchangeError::TimedOut { what, after });
    }

    /// The error of the last address, or of one that there is no time to try.
    fn late(&mut self) -> ExchangeFailure {
        let untried = || {
            let (what, after) = ("answer", Some(self.deadline.timeout()));
            let error = ExchangeError::TimedOut { what, after };
            ExchangeFailure::new(self.addresses.get(self.at).copied(), error)
        };
        self.last.take().unwrap_or_else(untried)
    }
}

/// Whether the socket is connected to itself. That happens after many attempts to connect to a local
/// port on which no socket listens: once, the system chooses that port for the connecting end, too.
fn is_to_itself(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local == peer,
        _ => false,
    }
}

/// The pause between two attempts.
pub(super) const RETRY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "connects up to 100,000 times")]
    fn connection_to_itself_is_detected() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!is_to_itself(&stream));
        drop(listener);
        // A port of the range from which Linux chooses for connecting sockets.
        let free = (40_000..50_000_u16).step_by(2).find(|port| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port));
            listener.is_ok()
        });
        let there = (Ipv4Addr::LOCALHOST, free.unwrap());
        match (0..100_000).find_map(|_| TcpStream::connect(there).ok()) {
            Some(stream) => {
                assert!(is_to_itself(&stream));
                // It is tried again, as where no socket listens.
                let mut attempts =
                    Attempts::new(vec![there.into()], Instant::now(), Duration::from_secs(1));
                assert!(matches!(attempts.step(), Ok(Attempt::Try(..))));
                assert!(attempts.dialled(Ok(stream)).is_none());
                assert!(matches!(attempts.step(), Ok(Attempt::Pause(_))));
            }
            None => println!("SKIPPED: this system connects no socket to itself"),
        }
    }
}
