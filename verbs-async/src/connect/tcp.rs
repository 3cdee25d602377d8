//! Connecting over TCP on any runtime: an exchange of endpoints, with the handshake in its middle.
//!
//! Sockets are nonblocking, and the notifier of a group's events watches them.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use verbs_channel::__private::{Attempts, HostAddress};
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};
use verbs_channel::{Connect, PreparedChannel};

use super::address::first_that_answers;
use super::deadline::Deadline;
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::AsyncGroup;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads::Source;
use crate::threads::on_thread::OnThread;

/// A channel to connect.
pub(super) type Prepared = OnThread<PreparedChannel<ConnectedMember>>;

/// The time of an exchange, and whether this side waits for the peer.
pub(super) struct Progress {
    pub(super) deadline: Deadline,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    has_shown: bool,
    // `None` while this side works: it prepares, or connects its queue pair.
    waits_since: Option<Instant>,
}

impl Progress {
    pub(super) fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            state: Mutex::default(),
        }
    }

    /// From now on this side waits for the peer, if it did not before.
    pub(super) fn waits(&self) {
        let mut state = self.state.lock();
        state.waits_since.get_or_insert_with(Instant::now);
    }

    /// The peer has sent its first message, and this side works.
    pub(super) fn peer_has_shown(&self) {
        *self.state.lock() = State {
            has_shown: true,
            waits_since: None,
        };
    }

    /// Whether the peer has sent its first message.
    pub(super) fn has_shown(&self) -> bool {
        self.state.lock().has_shown
    }

    /// Since when this side waits for the peer; `None` while it does not.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.state.lock().waits_since
    }
}

/// Returns, before a peer is connected to, what would prevent an exchange over TCP: a device of
/// iWARP without `rdma_cm`, or private data that is too long.
pub(super) fn check(group: &AsyncGroup, options: &Connect) -> Result<()> {
    if !cfg!(feature = "rdmacm") {
        group.pd().context().device().check_handshake()?;
    }
    Ok(options.check()?)
}

/// How long the helper threads may take to end an exchange whose deadline has passed.
pub(super) const GRACE: Duration = Duration::from_millis(250);

impl AsyncGroup {
    /// Connects a channel over a stream to this peer, by the deadline.
    pub(super) async fn exchange_by(
        &self,
        deadline: Deadline,
        (stream, side, peer): (TcpStream, Side, Option<SocketAddr>),
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
    ) -> Result<Met<AsyncChannel>> {
        // The steps of `rdma_cm` have the deadline themselves, and know what the peer has not done.
        let grace = match self.pd().context().device().needs_rdma_cm() {
            true => GRACE,
            false => Duration::ZERO,
        };
        let progress = Progress::new(deadline);
        let met = self.exchange_over((stream, side), options, prepared, &progress);
        let met = progress.deadline.bound_with(grace, "write", met).await;
        met.map_err(|error| error.with_peer(peer))
    }

    /// Connects a channel over a stream that this side came to in this way. If that fails, or the future is dropped,
    /// the stream is shut down.
    pub(super) async fn exchange_over(
        &self,
        (stream, side): (TcpStream, Side),
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        progress: &Progress,
    ) -> Result<Met<AsyncChannel>> {
        let peer = stream.peer_addr().ok();
        let mut unless_agreed = ShutDown(Some(&stream));
        let socket = Socket::new(&stream, &self.shared().events);
        let socket = socket.map_err(not_watched)?;
        let met = self.meet(&socket, side, options, prepared, progress).await;
        let (channel, private_data) = met?;
        unless_agreed.0 = None;
        let peer = peer.map(PeerAddr::Socket);
        Ok(Met::new(channel, private_data, peer))
    }

    async fn meet(
        &self,
        socket: &Socket<'_>,
        side: Side,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        progress: &Progress,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let begun = prepared.await.and_then(|prepared| {
            let exchange = prepared.exchange_of(side, options)?;
            Ok((prepared, exchange))
        });
        progress.waits();
        let (prepared, mut exchange) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Best effort: this side's own error is the one to return.
                drop(socket.run(&mut Exchange::refusing(&error)).await);
                return Err(error);
            }
        };
        socket.run(&mut exchange).await?;
        progress.peer_has_shown();
        let connected = self
            .connect_met(socket, &mut exchange, options, prepared, progress)
            .await;
        match &connected {
            // The channel has joined: the peer is sent the error if the group is full.
            Ok(_) => exchange.ready(),
            Err(error) => exchange.refuse(error),
        }
        progress.waits();
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
        options: &Connect,
        prepared: Prepared,
        progress: &Progress,
    ) -> Result<AsyncChannel> {
        let watches = options.watches_peer();
        let descriptor = watches.then(|| socket.stream.try_clone()).transpose();
        let descriptor = descriptor.map_err(not_watched)?;
        let descriptor = descriptor.map(OwnedFd::from);
        #[cfg(feature = "rdmacm")]
        if exchange.meeting().is_some() {
            let met = self
                .meet_by_manager(socket, exchange, prepared, progress)
                .await;
            let channel = met?;
            if let Some(descriptor) = descriptor {
                channel.watch_peer(descriptor)?;
            }
            return Ok(channel);
        }
        let _ = progress;
        let remote = exchange.peer().map(|peer| peer.endpoint);
        let remote = remote.ok_or(ExchangeError::Over)?;
        let source = socket.stream.peer_addr().ok();
        let source = source.map(|peer| Source::Peer(peer.ip()));
        self.handshake_watched(prepared, remote, descriptor, source)
            .await
    }
}

fn not_watched(source: io::Error) -> ExchangeError {
    let what = "watch the connection to";
    ExchangeError::Tcp { what, source }
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
    let attempt = |address, _time| dial_at(address, deadline.events());
    first_that_answers(deadline, address, attempt, Attempts::dialled).await
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
