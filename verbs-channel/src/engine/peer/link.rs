//! Descriptors that show the end of a peer, and how TCP finds out that a host has died.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketType, sockopt};
use verbs_core::__private::Process;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use crate::error::DownReason;

/// Descriptors that show the end of a peer: a socket, or another descriptor; a connection of the connection manager; or the
/// connection, and beside it the socket over which the peers agreed on it, which finds out if the peer's host dies.
///
/// Closing it shows the peer the end of this side. Then there is none, and the address stays.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Option<OwnedFd>,
    // In a box: a channel without one is as small as without the feature `rdmacm`. Without that there is none.
    connection: Option<Box<Connection>>,
    has_disconnected: bool,
    address: Option<SocketAddr>,
    is_watched: bool,
    // The set that its descriptors are in.
    set: Option<Arc<OwnedFd>>,
    process: Process,
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
        let mut link = Self::without_descriptor(address, timeout.is_some());
        link.socket = Some(descriptor);
        Ok(link)
    }

    /// Takes a connection. If it is not watched, it is kept, and no more.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn of_manager(connection: Connection, is_watched: bool) -> Self {
        let address = connection.peer_addr();
        let mut link = Self::without_descriptor(address, is_watched);
        link.connection = Some(Box::new(connection));
        link
    }

    /// Takes another link instead, or only its socket, which is beside the connection then, if this has one and the
    /// other has none. Returns the one that was replaced.
    pub(crate) fn replace(&mut self, mut other: Self) -> Self {
        if self.is_of_manager() && !other.is_of_manager() {
            mem::swap(&mut self.socket, &mut other.socket);
            self.address = other.address.or(self.address);
            other
        } else {
            mem::replace(self, other)
        }
    }

    /// Whether it has a connection of the connection manager, whose end may block.
    pub(crate) const fn is_of_manager(&self) -> bool {
        self.connection.is_some()
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Takes out its descriptors, if there are some.
    #[must_use]
    pub(super) fn close(&mut self) -> Option<Self> {
        let closed = Self::without_descriptor(self.address, self.is_watched);
        self.is_open().then(|| mem::replace(self, closed))
    }

    /// Whether it has a descriptor.
    pub(super) const fn is_open(&self) -> bool {
        self.socket.is_some() || self.is_of_manager()
    }

    pub(super) const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Adds its descriptors to a set, with this token.
    pub(super) fn add_to(&mut self, set: &Arc<OwnedFd>, token: u64) -> io::Result<()> {
        self.set = Some(Arc::clone(set));
        let added = self.descriptors().try_for_each(|(fd, events, mark)| {
            epoll::add(set, fd, EventData::new_u64(token | mark), events)
        });
        if added.is_err() {
            self.leave_set();
        }
        Ok(added?)
    }

    fn leave_set(&mut self) {
        if let Some(set) = self.set.take() {
            for (fd, ..) in self.descriptors() {
                // If it is not in there, there is nothing to do.
                let _not_in_it = epoll::delete(&set, fd);
            }
        }
    }

    /// How the peer has ended, after the descriptor with this mark had an event; `None` if it has not. Then the descriptor
    /// is watched on, with this token.
    pub(super) fn reason(&mut self, token: u64, mark: u64) -> Option<DownReason> {
        if mark == 0 {
            return self.socket.as_ref().map(end_of);
        }
        let connection = self.connection.as_mut();
        let reason = match connection.map_or(Ok(false), |connection| connection.poll_disconnected())
        {
            Ok(true) => Some(DownReason::PeerClosed),
            Ok(false) => None,
            // Its events cannot be read any more.
            Err(_) => Some(DownReason::PeerLost),
        };
        self.has_disconnected |= reason.is_some();
        if let (None, Some(set)) = (reason, &self.set) {
            for (fd, events, _) in self.descriptors().filter(|(.., its)| *its == mark) {
                // It is in the set, so this does not fail.
                let _in_it = epoll::modify(set, fd, EventData::new_u64(token | mark), events);
            }
        }
        reason
    }

    /// Whether its connection has not ended: what the peer has sent arrives before that, but perhaps after the
    /// end of the socket beside it.
    pub(super) const fn is_connected(&self) -> bool {
        self.is_of_manager() && self.socket.is_some() && !self.has_disconnected
    }

    /// Its descriptors, with the events that each is watched for, once, and the mark of its token.
    fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, EventFlags, u64)> {
        let socket = self.socket.as_ref().map(|socket| {
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            (socket.as_fd(), end | EventFlags::ONESHOT, 0)
        });
        let once = EventFlags::IN | EventFlags::ONESHOT;
        let connection = self.connection.as_ref();
        let connection = connection.map(|connection| (connection.as_fd(), once, CONNECTION));
        socket.into_iter().chain(connection)
    }

    pub(super) fn without_descriptor(address: Option<SocketAddr>, is_watched: bool) -> Self {
        Self {
            socket: None,
            connection: None,
            has_disconnected: false,
            address,
            is_watched,
            set: None,
            process: Process::current(),
        }
    }
}

#[cfg(not(feature = "rdmacm"))]
#[derive(Debug)]
enum Connection {}

#[cfg(not(feature = "rdmacm"))]
impl Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    fn poll_disconnected(&mut self) -> verbs_core::Result<bool> {
        match *self {}
    }
}

impl Drop for Link {
    /// The user may have a duplicate: then closing this one would leave it in the set. The set of the child of a fork is
    /// its parent's, too.
    fn drop(&mut self) {
        if self.process.is_current() {
            self.leave_set();
        }
    }
}

/// With the token of a link, that of its connection.
pub(super) const CONNECTION: u64 = 1 << 63;

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

/// The reason why a descriptor ended.
fn end_of(descriptor: &OwnedFd) -> DownReason {
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
            let socket = link.socket.as_ref().unwrap();
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
