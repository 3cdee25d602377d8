//! Listeners for peers that connect by `rdma_cm`, and the requests of these.

use std::fmt;
use std::future::poll_fn;
use std::net::{Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use verbs_channel::verbs_core::rdmacm::{ConnectRequest, Listener, Message, PrivateData};

use super::cm_requests::Requests;
use super::message::OwnedMessage;
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::threads::drop_on_thread::Elsewhere;

/// Listens for peers that connect by `rdma_cm`, in async code. Needs the feature `rdmacm`.
///
/// It replaces a runtime's `TcpListener`: for [`AsyncGroup::listen_cm`], [`AsyncGroup::accept_cm`] and
/// [`AsyncChannel::accept_cm`]. A server for programs that do not use this crate takes each
/// [`request`](Self::request), and accepts it with [`AsyncGroup::accept_cm_raw`].
///
/// Dropping it rejects the peers that wait. To bind its port again, [`close`](Self::close) it first.
///
/// ```no_run
/// # async fn example(
/// #     pd: verbs_async::verbs_core::ProtectionDomain,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_async::verbs_core::rdmacm;
/// use verbs_async::{AsyncChannel, CmListener, CqEvents};
///
/// // or create_tokio, create_async_io
/// let events = CqEvents::create_thread(pd.context())?;
/// let listener = rdmacm::Listener::bind("0.0.0.0:7471".parse()?, 128)?;
/// let mut listener = CmListener::new(listener, &events)?;
/// let channel = AsyncChannel::accept_cm(&pd, &mut listener, Duration::from_secs(60)).await?;
/// # Ok(())
/// # }
/// ```
///
/// [`AsyncChannel::accept_cm`]: crate::AsyncChannel::accept_cm
/// [`AsyncGroup::accept_cm`]: crate::AsyncGroup::accept_cm
/// [`AsyncGroup::accept_cm_raw`]: crate::AsyncGroup::accept_cm_raw
/// [`AsyncGroup::listen_cm`]: crate::AsyncGroup::listen_cm
#[doc(alias = "rdma_listen")]
pub struct CmListener {
    requests: Requests<Listener>,
    events: CqEvents,
}

/// A peer that asks for a connection by `rdma_cm`. Dropping it rejects the peer. Needs the feature `rdmacm`.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct CmRequest {
    pub(super) request: Elsewhere<ConnectRequest>,
    peer: SocketAddr,
    device_name: String,
    private_data: PrivateData,
    depths: (u8, u8),
}

impl CmListener {
    /// Watches a listener with a notifier of the same kind as that of these events.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: its descriptor cannot be watched.
    pub fn new(listener: Listener, events: &CqEvents) -> Result<Self> {
        Ok(Self {
            requests: Requests::new(listener, events)?,
            events: events.clone(),
        })
    }

    /// Waits for the next request.
    ///
    /// Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::poll_request`], and [`Error::Thread`]. The call can be repeated, unless the
    /// device was removed.
    pub async fn request(&mut self) -> Result<CmRequest> {
        poll_fn(|cx| self.poll_request(cx)).await
    }

    /// [`request`](Self::request) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<CmRequest>> {
        let polled = self.requests.poll_request(cx);
        polled.map_ok(CmRequest::new)
    }

    /// Closes the listener, and waits until a helper thread has done that: its port is free then. Peers that wait
    /// are rejected.
    ///
    /// Dropping the listener does the same without waiting, so a listener that is bound next may find the port in
    /// use (`EADDRINUSE`). Dropping the future has the same effect.
    pub async fn close(self) {
        self.requests.close().await;
    }

    pub(super) const fn events(&self) -> &CqEvents {
        &self.events
    }

    /// The address that it listens at.
    #[must_use]
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.requests.local_addr()
    }
}

impl CmRequest {
    fn new(request: ConnectRequest) -> Self {
        let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        Self {
            peer: request.peer_addr().unwrap_or(unknown),
            device_name: request.device_name(),
            private_data: *request.private_data(),
            depths: (request.responder_resources(), request.initiator_depth()),
            request: Elsewhere::new(request),
        }
    }

    /// The address of the peer.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The name of the device to which the peer connects: its channel must be of this device.
    #[must_use]
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// The bytes that the peer sent with its request. On RoCE zeros may follow them.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// How many reads and atomics the peer wants to have in flight at once.
    #[must_use]
    pub const fn responder_resources(&self) -> u8 {
        self.depths.0
    }

    /// How many reads and atomics of this side the peer serves at once.
    #[must_use]
    pub const fn initiator_depth(&self) -> u8 {
        self.depths.1
    }

    /// Rejects the peer, with a message of at most 147 bytes (250 on iWARP), or one [raw](Message::raw) byte
    /// more. Without any, drop the request.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectRequest::reject`], and [`Error::Thread`].
    #[doc(alias = "rdma_reject")]
    pub async fn reject<'m>(self, message: impl Into<Message<'m>>) -> Result<()> {
        let message = OwnedMessage::of(message.into());
        let rejected = self
            .request
            .call(move |request| request.reject(message.get()));
        Ok(rejected.await?.map_err(verbs_channel::Error::from)?)
    }
}

impl fmt::Debug for CmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmListener")
            .field(&self.local_addr())
            .finish()
    }
}
