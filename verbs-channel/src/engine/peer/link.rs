//! Descriptors that show the end of a peer, and how TCP finds out that a host has died.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, SocketType, sockopt};
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use crate::error::DownReason;

/// A descriptor that shows the end of a peer, before it belongs to a channel.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) end: LinkEnd,
    pub(super) address: Option<SocketAddr>,
    is_watched: bool,
}

/// This side's end of a link. Closing it shows the peer the end of this side.
#[derive(Debug)]
pub(super) enum LinkEnd {
    /// A socket, or another descriptor: its end is that of the peer.
    Socket(OwnedFd),
    /// A connection of the connection manager, which has an event when the peer has disconnected.
    #[cfg(feature = "rdmacm")]
    // In a box: a channel without one is as small as without this feature.
    Manager(Box<Managed>),
}

/// A connection of the connection manager.
#[cfg(feature = "rdmacm")]
#[derive(Debug)]
pub(super) struct Managed {
    connection: Connection,
    has_ended: bool,
    // The socket over which the peers agreed on the connection: it finds out if the peer's host dies.
    beside: Option<OwnedFd>,
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
            end: LinkEnd::Socket(descriptor),
            address,
            is_watched: timeout.is_some(),
        })
    }

    /// Takes a connection. If it is not watched, it is kept, and no more.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn of_manager(connection: Connection, is_watched: bool) -> Self {
        Self {
            address: connection.peer_addr(),
            end: LinkEnd::Manager(Box::new(Managed {
                connection,
                has_ended: false,
                beside: None,
            })),
            is_watched,
        }
    }

    /// The link that replaces this one: that socket, and the connection if this is one.
    pub(crate) fn replaced_by(mut self, socket: Self) -> Self {
        let address = socket.address.or(self.address);
        match self.end.take_beside(socket) {
            Ok(()) => Self { address, ..self },
            Err(socket) => socket,
        }
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.is_watched
    }
}

impl LinkEnd {
    /// Events that sockets are watched for.
    pub(super) const OF_SOCKETS: EventFlags = EventFlags::RDHUP
        .union(EventFlags::HUP)
        .union(EventFlags::ERR);

    pub(super) const fn is_of_manager(&self) -> bool {
        !matches!(self, Self::Socket(_))
    }

    /// Events that its descriptor is watched for.
    pub(super) const fn events(&self) -> EventFlags {
        match self {
            Self::Socket(_) => Self::OF_SOCKETS,
            #[cfg(feature = "rdmacm")]
            Self::Manager(_) => EventFlags::IN,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(descriptor) => descriptor.as_fd(),
            #[cfg(feature = "rdmacm")]
            Self::Manager(managed) => managed.connection.as_fd(),
        }
    }

    /// A socket beside its connection, which is watched as any socket.
    pub(super) fn beside(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(_) => None,
            #[cfg(feature = "rdmacm")]
            Self::Manager(managed) => Some(managed.beside.as_ref()?.as_fd()),
        }
    }

    /// Takes a socket beside its connection; gives it back if there is none.
    pub(super) fn take_beside(&mut self, socket: Link) -> Result<(), Link> {
        match (self, socket.end) {
            #[cfg(feature = "rdmacm")]
            (Self::Manager(managed), Self::Socket(descriptor)) => {
                managed.beside = Some(descriptor);
                Ok(())
            }
            (_, end) => Err(Link { end, ..socket }),
        }
    }

    /// How the peer has ended, after its descriptor, or that of the socket beside it, had an event; `None` if
    /// it has not.
    #[cfg_attr(
        not(feature = "rdmacm"),
        expect(unused_variables, reason = "no socket is beside a connection then")
    )]
    pub(super) fn reason(&mut self, is_beside: bool) -> Option<DownReason> {
        match self {
            Self::Socket(descriptor) => Some(end_of(descriptor)),
            #[cfg(feature = "rdmacm")]
            Self::Manager(managed) if is_beside => Some(end_of(managed.beside.as_ref()?)),
            #[cfg(feature = "rdmacm")]
            Self::Manager(managed) => {
                let reason = match managed.connection.poll_disconnected() {
                    Ok(true) => Some(DownReason::PeerClosed),
                    Ok(false) => None,
                    // Its events cannot be read any more.
                    Err(_) => Some(DownReason::PeerLost),
                };
                managed.has_ended |= reason.is_some();
                reason
            }
        }
    }

    /// Whether its connection has not ended: what the peer has sent arrives before that, but perhaps after the
    /// end of the socket beside it.
    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            #[cfg(feature = "rdmacm")]
            Self::Manager(managed) => !managed.has_ended && managed.beside.is_some(),
        }
    }
}

impl super::Watched {
    pub(crate) const fn is_of_manager(&self) -> bool {
        self.end.is_of_manager()
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
            #[cfg_attr(
                not(feature = "rdmacm"),
                expect(irrefutable_let_patterns, reason = "there is no other end then")
            )]
            let LinkEnd::Socket(socket) = &link.end else {
                panic!("{link:?}");
            };
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
