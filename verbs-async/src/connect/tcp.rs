//! Connecting over TCP on any runtime: an exchange of endpoints, with the handshake in its middle.
//!
//! Sockets are nonblocking, and the notifier of a group's events watches them.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use verbs_channel::__private::{Attempts, HostAddress};
use verbs_channel::Connect;
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};

use super::deadline::{Deadline, GRACE};
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::{AsyncGroup, Prepared};
use crate::notifier::CqNotifier;
use crate::threads::Source;

/// Returns, before a peer is connected to, what would prevent an exchange over TCP: a device of
/// iWARP without `rdma_cm`, or private data that is too long.
pub(super) fn check(group: &AsyncGroup, options: &Connect) -> Result<()> {
    if !cfg!(feature = "rdmacm") {
        group.pd().context().device().check_handshake()?;
    }
    Ok(options.check()?)
}

/// A stream, how this side came to it, and the peer's address: it is not available after the peer has reset the
/// connection.
pub(super) type End = (TcpStream, Side, Option<SocketAddr>);

impl AsyncGroup {
    /// Connects a channel over a stream, by the deadline. If that fails, or the future is dropped, the stream is shut
    /// down.
    pub(super) async fn exchange_over(
        &self,
        (stream, side, peer): End,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        deadline: &Deadline,
    ) -> Result<Met<AsyncChannel>> {
        let met = async {
            let address = stream.peer_addr().ok().map(PeerAddr::Socket);
            let mut unless_agreed = ShutDown(Some(&stream));
            let socket = Socket::new(&stream, &deadline.events);
            let socket = socket.map_err(ExchangeError::not_watched)?;
            let met = self.meet(&socket, side, options, prepared, deadline).await;
            let (channel, private_data) = met?;
            unless_agreed.0 = None;
            Ok(Met::new(channel, private_data, address))
        };
        // The steps of `rdma_cm` have the deadline themselves, and know what the peer has not done.
        let grace = match self.pd().context().device().needs_rdma_cm() {
            true => GRACE,
            false => Duration::ZERO,
        };
        let met = deadline.bound_with(grace, "write", met).await;
        met.map_err(|error| error.with_peer(peer))
    }

    async fn meet(
        &self,
        socket: &Socket<'_>,
        side: Side,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        deadline: &Deadline,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let begun = prepared.await.and_then(|prepared| {
            let exchange = prepared.exchange_of(side, options)?;
            Ok((prepared, exchange))
        });
        deadline.waits();
        let (prepared, mut exchange) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Best effort: this side's own error is the one to return.
                drop(socket.run(&mut Exchange::refusing(&error)).await);
                return Err(error);
            }
        };
        socket.run(&mut exchange).await?;
        deadline.peer_has_shown();
        let connected = async {
            let channel = self.connect_met(socket, &mut exchange, prepared, deadline);
            let channel = channel.await?;
            if options.watches_peer() {
                let descriptor = socket.stream.try_clone();
                channel.watch_peer(descriptor.map_err(ExchangeError::not_watched)?)?;
            }
            Ok(channel)
        };
        let connected: Result<_> = connected.await;
        match &connected {
            // The channel has joined: the peer is sent the error if the group is full.
            Ok(_) => exchange.ready(),
            Err(error) => exchange.refuse(error),
        }
        deadline.waits();
        let agreed = socket.run(&mut exchange).await;
        // The handshake's own error is more specific than that of the exchange.
        let channel = connected?;
        agreed?;
        Ok((channel, exchange.into_private_data()))
    }

    /// Connects to the peer whose first frame has arrived.
    async fn connect_met(
        &self,
        socket: &Socket<'_>,
        exchange: &mut Exchange,
        prepared: Prepared,
        deadline: &Deadline,
    ) -> Result<AsyncChannel> {
        #[cfg(feature = "rdmacm")]
        if let Some(meeting) = exchange.meeting().cloned() {
            let met = self.meet_by_manager(socket, exchange, meeting, prepared, deadline);
            return met.await;
        }
        let _ = deadline;
        let remote = exchange.peer().map(|peer| peer.endpoint);
        let remote = remote.ok_or(ExchangeError::Over)?;
        let source = socket.stream.peer_addr().ok();
        let source = source.map(|peer| Source::Peer(peer.ip()));
        self.handshake_with(prepared, remote, source).await
    }
}

/// Shuts a connection down when it is dropped, so that the peer does not wait: the caller may have a clone.
struct ShutDown<'a>(Option<&'a TcpStream>);

impl Drop for ShutDown<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.0 {
            // Best effort: the peer may have closed the connection.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// A TCP connection that is watched.
pub(super) struct Socket<'a> {
    pub(super) stream: &'a TcpStream,
    events: &'a CqEvents,
    readable: Box<dyn CqNotifier>,
}

impl<'a> Socket<'a> {
    fn new(stream: &'a TcpStream, events: &'a CqEvents) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Without it the exchange is only slower.
        drop(stream.set_nodelay(true));
        Ok(Self {
            readable: events.another_notifier(stream.try_clone()?.into())?,
            events,
            stream,
        })
    }

    /// Runs an exchange until it is done.
    pub(super) async fn run(&self, exchange: &mut Exchange) -> Result<(), ExchangeError> {
        let mut stream = self.stream;
        while let Some(io) = exchange.io()? {
            let (moved, writes) = match io {
                Io::Write(bytes) => (stream.write(bytes), true),
                Io::Read(buffer) => (stream.read(buffer), false),
            };
            let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            if !moved.as_ref().is_err_and(would_block) {
                exchange.moved(moved);
                continue;
            }
            let waited = match writes {
                true => writable(stream, self.events).await,
                false => self.readable.readable().await,
            };
            if let Err(error) = waited {
                exchange.moved(Err(error));
            }
        }
        Ok(())
    }
}

/// Connects to the first of a peer's addresses that answers.
pub(super) async fn dial(
    address: HostAddress,
    deadline: &Deadline,
) -> Result<(TcpStream, SocketAddr)> {
    let attempt = |address, _time| dial_at(address, &deadline.events);
    let dialled = deadline.first_that_answers(address, attempt, Attempts::dialled);
    dialled.await
}

async fn dial_at(address: SocketAddr, events: &CqEvents) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Err(Errno::INPROGRESS) => {
            writable(&socket, events).await?;
            sockopt::socket_error(&socket)??;
        }
        connected => connected?,
    }
    Ok(socket.into())
}

/// Waits until a socket is connected, or has room. An epoll set that holds it is readable then.
async fn writable(socket: &impl AsFd, events: &CqEvents) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let any = epoll::EventData::new_u64(0);
    epoll::add(&set, socket, any, epoll::EventFlags::OUT)?;
    let notifier = events.another_notifier(set)?;
    // A notifier may report what is not there.
    while poll(
        &mut [PollFd::new(socket, PollFlags::OUT)],
        Some(&Timespec::default()),
    )? == 0
    {
        notifier.readable().await?;
    }
    Ok(())
}
