//! Connecting over a TCP connection: an exchange of endpoints, with the handshake in its middle.

use std::future::Future;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::{Exchange, ExchangeError, Side};
use verbs_channel::{Connect, PreparedChannel};

use super::deadline::Deadline;
use super::errors::{exchange_error, tcp};
use super::tcp::Socket;
use crate::channel::AsyncChannel;
use crate::error::Result;
use crate::group::AsyncGroup;
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

#[derive(Clone, Copy)]
struct State {
    has_shown: bool,
    // `None` while this side works: it prepares, or connects its queue pair.
    waits_since: Option<Instant>,
}

impl Progress {
    pub(super) const fn new(deadline: Deadline) -> Self {
        let state = State {
            has_shown: false,
            waits_since: None,
        };
        Self {
            deadline,
            state: Mutex::new(state),
        }
    }

    /// From now on this side waits for the peer, if it did not before.
    pub(super) fn waits(&self) {
        self.state
            .lock()
            .waits_since
            .get_or_insert_with(Instant::now);
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

    /// The output of an exchange, or an error at the deadline.
    pub(super) async fn bound<T>(
        &self,
        group: &AsyncGroup,
        met: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // The steps of `rdma_cm` have the deadline themselves, and know what the peer has not done.
        let grace = match group.pd().context().device().needs_rdma_cm() {
            true => GRACE,
            false => Duration::ZERO,
        };
        self.deadline.bound_with(grace, "write", met).await
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

/// How long the helper threads may take to end an exchange whose deadline has passed.
pub(super) const GRACE: Duration = Duration::from_millis(250);

impl AsyncGroup {
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
        let socket = Socket::new(stream, &self.shared().events);
        let socket = socket.map_err(|error| tcp("watch the connection to", error))?;
        let mut unless_agreed = ShutDown(Some(&socket.stream));
        let met = self.meet(&socket, side, options, prepared, progress).await;
        let (channel, private_data) = met?;
        unless_agreed.0 = None;
        let peer = peer.map(PeerAddr::Socket);
        Ok(Met::new(channel, private_data, peer))
    }

    async fn meet(
        &self,
        socket: &Socket,
        side: Side,
        options: &Connect,
        prepared: impl Future<Output = Result<Prepared>>,
        progress: &Progress,
    ) -> Result<(AsyncChannel, Vec<u8>)> {
        let begun = prepared.await.and_then(|prepared| {
            let exchange = prepared.exchange_of(side, options)?;
            Ok((prepared, exchange))
        });
        let (prepared, mut exchange) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                progress.waits();
                // Best effort: this side's own error is the one to return.
                drop(socket.run(&mut Exchange::refusing(&error)).await);
                return Err(error);
            }
        };
        progress.waits();
        socket.run(&mut exchange).await.map_err(exchange_error)?;
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
        agreed.map_err(exchange_error)?;
        Ok((channel, exchange.into_private_data()))
    }

    /// Connects to the peer whose first frame has arrived.
    async fn connect_met(
        &self,
        socket: &Socket,
        exchange: &mut Exchange,
        options: &Connect,
        prepared: Prepared,
        progress: &Progress,
    ) -> Result<AsyncChannel> {
        let watches = options.watches_peer();
        let descriptor = watches.then(|| socket.stream.try_clone()).transpose();
        let descriptor = descriptor.map_err(|error| tcp("watch the connection to", error))?;
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
        let remote = remote.ok_or_else(|| exchange_error(ExchangeError::Over))?;
        let source = socket.stream.peer_addr().ok();
        let source = source.map(|peer| Source::Peer(peer.ip()));
        self.handshake_watched(prepared, remote, descriptor, source)
            .await
    }
}
