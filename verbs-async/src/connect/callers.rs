//! Where a listener listens, the peers that come there, and how a channel is connected to each.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use verbs_channel::__private::{HostAddress, is_of_one_connection};
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::{ExchangeError, Side};
use verbs_channel::{Connect, PreparedChannel};

use super::Prepared;
use super::address::look_up;
use super::clients::{Client, Clients};
#[cfg(feature = "rdmacm")]
use super::cm;
use super::deadline::Deadline;
use super::tcp::check;
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::AsyncGroup;
use crate::notifier::CqNotifier;
use crate::threads;
use crate::threads::on_thread::OnThread;

/// Where a [`Listener`](crate::Listener) listens.
///
/// A name, an address, or a [`TcpListener`] of the user's own, which is set to non-blocking mode; an address
/// ([`cm`](Self::cm)) or a listener of `rdma_cm`; or a datagram endpoint, whose
/// [`endpoint`](AsyncDatagrams::endpoint) clients need by any means, and which is for nothing else then.
#[derive(Debug)]
#[non_exhaustive]
pub enum Bind {
    /// Over TCP, at this address.
    Address(HostAddress),
    /// Over TCP.
    Tcp(TcpListener),
    /// With `rdma_cm`. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    Cm(cm::rdmacm::Listener),
    /// With `rdma_cm`, at this address. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    CmAddress(HostAddress),
    /// Over datagrams, without TCP. The channels do not watch their peers.
    Datagrams(AsyncDatagrams),
}

macro_rules! from_address {
    ($($address:ty),*) => {$(
        impl From<$address> for Bind {
            fn from(address: $address) -> Self {
                Self::Address(address.into())
            }
        }
    )*};
}

// Everything that a `HostAddress` is made from, as for `Peer`. A blanket impl would overlap the ones below.
from_address!(
    HostAddress,
    &str,
    &String,
    String,
    (&str, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    (IpAddr, u16),
    SocketAddr,
    &[SocketAddr]
);

#[cfg(feature = "rdmacm")]
impl Bind {
    /// An address of an RDMA device at which to listen with `rdma_cm`; the unspecified one for all devices. Needs the
    /// feature `rdmacm`.
    #[doc(alias = "rdma_listen")]
    pub fn cm(address: impl Into<HostAddress>) -> Self {
        Self::CmAddress(address.into())
    }
}

#[cfg(feature = "rdmacm")]
impl From<cm::rdmacm::Listener> for Bind {
    fn from(listener: cm::rdmacm::Listener) -> Self {
        Self::Cm(listener)
    }
}

impl From<TcpListener> for Bind {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<AsyncDatagrams> for Bind {
    fn from(datagrams: AsyncDatagrams) -> Self {
        Self::Datagrams(datagrams)
    }
}

/// A peer that connected to a [`Listener`](crate::Listener), and the outcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct HandshakeResult {
    /// The peer's address, if it is known.
    pub peer: Option<PeerAddr>,
    /// The channel and the peer's private data, or the error. The error concerns this peer only.
    pub outcome: Result<Met<AsyncChannel>>,
}

/// Prepares the channel for a peer, or says why the peer is refused.
pub(super) type Prepare =
    dyn Fn(&AsyncGroup, Option<PeerAddr>) -> Result<PreparedChannel<ConnectedMember>> + Send + Sync;

/// How channels are made and connected.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) group: AsyncGroup,
    pub(super) options: Connect,
    pub(super) prepare: Option<Arc<Prepare>>,
}

impl Terms {
    /// A channel for this peer.
    pub(super) async fn prepare(&self, peer: Option<PeerAddr>) -> Result<Prepared> {
        let Some(prepare) = self.prepare.clone() else {
            return self.group.prepare_elsewhere().await;
        };
        let group = self.group.clone();
        let prepared = threads::run(move || prepare(&group, peer)).await??;
        Ok(OnThread::new(prepared))
    }
}

/// Where peers that ask for a channel come from.
pub(super) enum Entrance {
    Tcp(TcpListener, Box<dyn CqNotifier>),
    #[cfg(feature = "rdmacm")]
    Cm(cm::Requests<cm::rdmacm::Listener, cm::rdmacm::ConnectRequest>),
    Datagrams(Box<Clients>),
}

/// A peer that asks for a channel.
pub(super) enum Caller {
    Tcp(TcpStream, SocketAddr),
    #[cfg(feature = "rdmacm")]
    Cm(Box<OnThread<cm::rdmacm::ConnectRequest>>),
    Client(Client),
}

impl Entrance {
    /// Checks the options first: otherwise each peer would be refused for this side's mistake.
    pub(super) async fn new(
        on: OnThread<Bind>,
        group: &AsyncGroup,
        options: &Connect,
    ) -> Result<Self> {
        let events = &group.shared().events;
        let tcp = |listener: TcpListener| {
            listener.set_nonblocking(true)?;
            let notifier = events.another_notifier(listener.try_clone()?.into())?;
            Ok(Self::Tcp(listener, notifier))
        };
        match on.into_inner() {
            Bind::Address(address) => {
                check(group, options)?;
                tcp(TcpListener::bind(&look_up(address).await?[..])?)
            }
            Bind::Tcp(listener) => {
                check(group, options)?;
                tcp(listener)
            }
            #[cfg(feature = "rdmacm")]
            Bind::CmAddress(address) => {
                options.check_cm()?;
                let listener = cm::bind(address).await?;
                Ok(Self::Cm(cm::Requests::of(listener, events)?))
            }
            #[cfg(feature = "rdmacm")]
            Bind::Cm(listener) => {
                let listener = OnThread::new(listener);
                options.check_cm()?;
                Ok(Self::Cm(cm::Requests::of(listener, events)?))
            }
            Bind::Datagrams(datagrams) => {
                options.check()?;
                Ok(Self::Datagrams(Box::new(Clients::new(datagrams).await?)))
            }
        }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener, _) => listener.local_addr().ok(),
            #[cfg(feature = "rdmacm")]
            Self::Cm(requests) => requests.local_addr(),
            Self::Datagrams(_) => None,
        }
    }

    /// Takes the next peer; over datagrams only one that has a place. `None` if handshakes may have gone on.
    pub(super) fn poll_caller(
        &mut self,
        has_place: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Caller>>> {
        let what = "accept";
        let failed = |source| ExchangeError::Tcp { what, source };
        match self {
            Self::Tcp(listener, notifier) => loop {
                match listener.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(notifier.poll_readable(cx)).map_err(failed)?;
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    accepted => {
                        let (stream, peer) = accepted.map_err(failed)?;
                        return Poll::Ready(Ok(Some(Caller::Tcp(stream, peer))));
                    }
                }
            },
            #[cfg(feature = "rdmacm")]
            Self::Cm(requests) => {
                let request = ready!(requests.poll_request(cx));
                let request = request.map_err(|error| failed(error.into()))?;
                let request = Box::new(OnThread::new(request));
                Poll::Ready(Ok(Some(Caller::Cm(request))))
            }
            Self::Datagrams(clients) => {
                let client = ready!(clients.poll_client(has_place, cx))?;
                Poll::Ready(Ok(client.map(Caller::Client)))
            }
        }
    }

    /// The step that a late peer has not taken.
    pub(super) fn late(&self, has_shown: bool, group: &AsyncGroup) -> &'static str {
        match self {
            Self::Tcp(..) if has_shown && group.pd().context().device().needs_rdma_cm() => {
                "connect"
            }
            Self::Tcp(..) => "write",
            #[cfg(feature = "rdmacm")]
            Self::Cm(_) => "confirm",
            Self::Datagrams(_) => "answer",
        }
    }

    /// Closes what peers come from, and waits for that.
    pub(super) async fn close(self) {
        match self {
            #[cfg(feature = "rdmacm")]
            Self::Cm(requests) => requests.close().await,
            Self::Tcp(..) | Self::Datagrams(_) => {}
        }
    }
}

impl Caller {
    pub(super) fn peer(&self) -> Option<PeerAddr> {
        match self {
            Self::Tcp(_, peer) => Some(PeerAddr::Socket(*peer)),
            #[cfg(feature = "rdmacm")]
            Self::Cm(request) => request.peer_addr().map(PeerAddr::Socket),
            Self::Client(client) => Some(client.peer()),
        }
    }

    /// The deadline of its handshake: over datagrams it has an answer to give then.
    pub(super) fn deadline(&self, timeout: Duration, events: &CqEvents) -> Deadline {
        match self {
            Self::Client(_) => Deadline::after(timeout, events),
            _ => Deadline::of_listener(timeout, events),
        }
    }

    /// Connects a channel to the peer.
    pub(super) async fn connect(
        self,
        terms: Terms,
        deadline: Arc<Deadline>,
    ) -> Result<Met<AsyncChannel>> {
        let prepared = terms.prepare(self.peer());
        let (group, options) = (&terms.group, &terms.options);
        match self {
            Self::Tcp(stream, peer) => {
                let end = (stream, Side::Accepts, Some(peer));
                group.exchange_over(end, options, prepared, &deadline).await
            }
            #[cfg(feature = "rdmacm")]
            Self::Cm(request) => {
                group
                    .accept_cm(*request, options, prepared, &deadline)
                    .await
            }
            Self::Client(client) => client.connect(group, options, prepared, &deadline).await,
        }
    }
}
