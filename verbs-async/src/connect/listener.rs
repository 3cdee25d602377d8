//! Listeners: many peers connect concurrently, and a slow peer does not delay the others.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::awaited::Awaited;
use super::failure::tcp;
use super::time::{Deadline, Start};
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::task::sync::Mutex;

/// Accepts peers over TCP or by `rdma_cm`, and connects a channel of a group to each.
///
/// Created by [`AsyncGroup::listen_tokio`], [`AsyncGroup::listen_async_io`] and, with the feature `rdmacm`,
/// `AsyncGroup::listen_cm`. Many exchanges and handshakes run concurrently, each with its own timeout. So a slow or
/// silent peer delays no other, until [`max_handshakes`](Self::max_handshakes) are in progress. Further peers wait in
/// the backlog of the underlying listener.
///
/// This makes progress only while a task waits in [`accept`](Self::accept). So spawn a task for
/// each channel, and call `accept` again.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn example(group: verbs_async::AsyncGroup) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_async::ErrorChain;
///
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:7471").await?;
/// let mut listener = group.listen_tokio(listener).handshake_timeout(Duration::from_secs(2));
/// loop {
///     let arrival = listener.accept().await?;
///     match arrival.outcome {
///         Ok((channel, private_data)) => {
///             tokio::spawn(async move { drop((channel, private_data)) });
///         }
///         Err(error) => eprintln!("{}: {}", arrival.peer, ErrorChain::new(&error)),
///     }
/// }
/// # }
/// ```
pub struct Listener {
    timeout: Duration,
    max_handshakes: usize,
    state: Mutex<ListenerState>,
}

/// A peer that connected to a [`Listener`], and the outcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct Arrival {
    /// The peer's address.
    pub peer: SocketAddr,
    /// The channel and the peer's private data, or the error. The error concerns this peer only.
    pub outcome: Result<(AsyncChannel, Vec<u8>)>,
}

/// Runs the exchange with a peer.
pub(super) type Meet = Box<dyn FnOnce(AsyncGroup, Arc<[u8]>, Awaited) -> Meeting + Send>;

/// An accepted connection: the function that runs its exchange, and the peer's address.
pub(super) type Connection = (Meet, SocketAddr);

/// The future of the next connection.
pub(super) type Accepting = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

/// The exchange with one peer.
pub(super) type Meeting = Pin<Box<dyn Future<Output = Result<(AsyncChannel, Vec<u8>)>> + Send>>;

// Only `poll_accept` uses it, by `&mut`. The lock is there to make it `Sync`.
struct ListenerState {
    group: AsyncGroup,
    // Polled only while the group has not failed.
    failed: Pin<Box<dyn Future<Output = Error> + Send>>,
    private_data: Arc<[u8]>,
    accept: Box<dyn Fn() -> Accepting + Send>,
    start: Start,
    // The step that a late peer has not taken.
    late: &'static str,
    // A listener of `rdma_cm` only: closes it, and waits until its port is free.
    #[cfg(feature = "rdmacm")]
    close: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    accepting: Option<Accepting>,
    handshakes: Vec<Pin<Box<dyn Future<Output = Arrival> + Send>>>,
}

impl Listener {
    pub(super) fn new(
        group: AsyncGroup,
        start: Start,
        accept: impl Fn() -> Accepting + Send + 'static,
    ) -> Self {
        let state = ListenerState {
            failed: Box::pin(Arc::clone(group.shared()).failed()),
            group,
            private_data: Arc::default(),
            accept: Box::new(accept),
            start,
            late: "write",
            #[cfg(feature = "rdmacm")]
            close: None,
            accepting: None,
            handshakes: Vec::new(),
        };
        Self {
            timeout: TIMEOUT,
            max_handshakes: MAX_HANDSHAKES,
            state: Mutex::new(state),
        }
    }

    /// A listener whose peers are connected by `rdma_cm` as soon as they are known.
    #[cfg(feature = "rdmacm")]
    pub(super) fn of_manager(
        group: AsyncGroup,
        start: Start,
        accept: impl Fn() -> Accepting + Send + 'static,
        close: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let mut this = Self::new(group, start, accept);
        let state = this.state.get_mut();
        state.late = "confirm";
        state.close = Some(Box::pin(close));
        this
    }

    /// Sets the private data that each peer is sent. The default is none.
    #[must_use]
    pub fn private_data(mut self, private_data: &[u8]) -> Self {
        self.state.get_mut().private_data = private_data.into();
        self
    }

    /// Sets the timeout of each peer: from its connection or request until it has a channel. The
    /// default is 10 seconds.
    #[must_use]
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many handshakes can be in progress. The default is 256 and the minimum 1.
    ///
    /// Each handshake takes a queue pair.
    #[must_use]
    pub fn max_handshakes(mut self, peers: usize) -> Self {
        self.max_handshakes = peers.max(1);
        self
    }

    /// Ends the handshakes in progress, and closes what it listens with: its port is free when this returns.
    ///
    /// Dropping the listener does the same, but with `rdma_cm` on a helper thread, without waiting for it.
    pub async fn close(self) {
        #[cfg(feature = "rdmacm")]
        {
            let mut state = self.state.into_inner();
            let close = state.close.take();
            // It has what `close` closes.
            drop(state);
            if let Some(close) = close {
                close.await;
            }
        }
    }

    /// Waits for the next peer whose handshake has completed or failed.
    ///
    /// Dropping the future loses no peer.
    ///
    /// # Errors
    ///
    /// This side cannot accept, for example because no descriptors are left (`EMFILE`). The call
    /// can be repeated. The error of a single peer is in its [`Arrival`]. After [`Error::Channel`] with
    /// [`GroupFailed`](verbs_channel::Error::GroupFailed) no peer can be accepted any more: the device, the completion
    /// queue or the notifier of the group has failed.
    pub async fn accept(&mut self) -> Result<Arrival> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`accept`](Self::accept) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arrival>> {
        let (timeout, max_handshakes) = (self.timeout, self.max_handshakes);
        let state = self.state.get_mut();
        let failed = state.group.poll_failed(state.failed.as_mut(), cx);
        if let Poll::Ready(error) = failed {
            return Poll::Ready(Err(error));
        }
        if let Some(arrival) = state.poll_handshakes(cx, 0) {
            return Poll::Ready(Ok(arrival));
        }
        while state.handshakes.len() < max_handshakes {
            let accepting = state.accepting.get_or_insert_with(|| (state.accept)());
            let Poll::Ready(accepted) = accepting.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            state.accepting = None;
            match accepted {
                Ok(connection) => state.meet(connection, timeout),
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => return Poll::Ready(Err(tcp("accept", error))),
            }
            if let Some(arrival) = state.poll_handshakes(cx, state.handshakes.len() - 1) {
                return Poll::Ready(Ok(arrival));
            }
        }
        Poll::Pending
    }
}

impl ListenerState {
    fn meet(&mut self, (meet, peer): Connection, timeout: Duration) {
        let deadline = Deadline::after(timeout, &self.start);
        let awaited = Awaited::new(peer, self.late);
        let private_data = Arc::clone(&self.private_data);
        let met = meet(self.group.clone(), private_data, awaited.clone());
        self.handshakes.push(Box::pin(async move {
            let outcome = deadline.bound(&awaited, met).await;
            Arrival { peer, outcome }
        }));
    }

    /// The first handshake, from this index on, that has completed.
    fn poll_handshakes(&mut self, cx: &mut Context<'_>, from: usize) -> Option<Arrival> {
        for at in from..self.handshakes.len() {
            if let Poll::Ready(arrival) = self.handshakes[at].as_mut().poll(cx) {
                drop(self.handshakes.swap_remove(at));
                return Some(arrival);
            }
        }
        None
    }
}

/// Whether the error concerns one connection only, and accepting can continue.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// The default timeout of a handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The default number of handshakes in progress.
const MAX_HANDSHAKES: usize = 256;

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("timeout", &self.timeout)
            .field("max_handshakes", &self.max_handshakes)
            .finish_non_exhaustive()
    }
}
