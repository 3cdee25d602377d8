//! What shows the end of a peer: a descriptor, and how TCP finds out that a host has died.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, SocketType, sockopt};

use crate::error::DownReason;

/// What shows the end of a peer, before it belongs to a channel.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) descriptor: OwnedFd,
    pub(super) address: Option<SocketAddr>,
    is_watched: bool,
}

impl Link {
    /// Takes a descriptor, and has TCP find out within `timeout` if the peer's host dies. Without
    /// one it is kept open, and no more.
    pub(crate) fn new(descriptor: OwnedFd, timeout: Option<Duration>) -> io::Result<Self> {
        let address = net::getpeername(&descriptor).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        let is_stream = sockopt::socket_type(&descriptor) == Ok(SocketType::STREAM);
        if let Some(timeout) = timeout
            && address.is_some()
            && is_stream
        {
            keep_alive(&descriptor, timeout)?;
        }
        Ok(Self {
            descriptor,
            address,
            is_watched: timeout.is_some(),
        })
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// Has TCP probe a silent peer, and give up on it within `timeout`, as far as whole seconds allow.
fn keep_alive(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let probes = Probes::within(timeout);
    sockopt::set_tcp_keepidle(socket, probes.interval)?;
    sockopt::set_tcp_keepintvl(socket, probes.interval)?;
    sockopt::set_tcp_keepcnt(socket, probes.count)?;
    sockopt::set_tcp_user_timeout(socket, probes.user_timeout)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// When TCP probes and gives up.
#[derive(Debug, PartialEq, Eq)]
struct Probes {
    /// Between probes, and before the first.
    interval: Duration,
    count: u32,
    /// Milliseconds of silence after which the next probe is not sent, or unacknowledged bytes are
    /// not sent again.
    user_timeout: u32,
}

impl Probes {
    fn within(timeout: Duration) -> Self {
        // The silence is noticed when the next probe is due: one interval before the end. TCP takes
        // whole seconds, and at most 32767.
        let interval = (timeout.as_secs() / 5).clamp(1, 32767);
        let silence = timeout.saturating_sub(Duration::from_secs(interval));
        let silence = silence.clamp(Duration::from_secs(1), Duration::from_secs(1 << 20));
        let count = silence.as_secs().div_ceil(interval);
        Self {
            interval: Duration::from_secs(interval),
            count: u32::try_from(count).unwrap_or(u32::MAX).clamp(1, 127),
            user_timeout: u32::try_from(silence.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

/// What ended a descriptor.
pub(super) fn end_of(descriptor: &OwnedFd) -> DownReason {
    match sockopt::socket_error(descriptor) {
        Ok(Err(Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED)) => DownReason::PeerClosed,
        // ETIMEDOUT, EHOSTUNREACH and others of the network's.
        Ok(Err(_)) => DownReason::PeerLost,
        // An end in order; or no socket, which has no errors.
        Ok(Ok(())) | Err(_) => DownReason::PeerClosed,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_host_that_dies_is_noticed_within_the_timeout() {
        for (timeout, interval, silence, count) in [
            (0, 1, 1000, 1),
            (1, 1, 1000, 1),
            (2, 1, 1000, 1),
            (3, 1, 2000, 2),
            (10, 2, 8000, 4),
            (60, 12, 48_000, 4),
            (86_400, 17_280, 69_120_000, 4),
        ] {
            let probes = Probes::within(Duration::from_secs(timeout));
            let expected = Probes {
                interval: Duration::from_secs(interval),
                count,
                user_timeout: silence,
            };
            assert_eq!(probes, expected, "{timeout} s");
        }
        let probes = Probes::within(Duration::MAX);
        assert_eq!(probes.interval.as_secs(), 32767);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no options of sockets")]
    fn keepalive_is_enabled_on_tcp_only_with_a_timeout() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        for (timeout, is_set) in [(None, false), (Some(Duration::from_secs(10)), true)] {
            let stream = TcpStream::connect(address).unwrap();
            let link = Link::new(stream.into(), timeout).unwrap();
            assert_eq!(link.address, Some(address));
            let socket = &link.descriptor;
            assert_eq!(sockopt::socket_keepalive(socket), Ok(is_set));
            if is_set {
                let interval = Duration::from_secs(2);
                assert_eq!(sockopt::tcp_keepidle(socket), Ok(interval));
                assert_eq!(sockopt::tcp_keepintvl(socket), Ok(interval));
                assert_eq!(sockopt::tcp_keepcnt(socket), Ok(4));
                assert_eq!(sockopt::tcp_user_timeout(socket), Ok(8000));
            }
        }
    }
}
