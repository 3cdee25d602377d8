//! Where a listener listens, the peers that come there, and how a channel is connected to each.

use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{self, Context, Poll};

use verbs_channel::__private::{HostAddress, is_of_one_connection};
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::exchange::{ExchangeError, Side};
#[cfg(feature = "rdmacm")]
use verbs_channel::verbs_core::rdmacm;
use verbs_channel::{Connect, PreparedChannel};

use super::deadline::{Boxed, Deadline};
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::events::CqEvents;
use crate::group::{AsyncGroup, Prepared};
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
    Cm(rdmacm::Listener),
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
impl From<rdmacm::Listener> for Bind {
    fn from(listener: rdmacm::Listener) -> Self {
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
pub(super) trait Entrance: Send + 'static {
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// Takes what has come for handshakes, if that comes here. It yields to other tasks.
    fn poll_messages(&mut self, _cx: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    /// Takes the next peer; over datagrams only one that has a place.
    fn poll_caller(&mut self, has_place: bool, cx: &mut Context<'_>) -> Poll<Result<Caller>>;

    /// Sends what handshakes have left to be sent.
    fn poll_sends(&mut self, _cx: &mut Context<'_>) {}

    /// Closes it, and waits for that.
    fn close(self: Box<Self>) -> Boxed<()> {
        drop(self);
        Box::pin(ready(()))
    }
}

pub(super) type Connecting = Boxed<Result<Met<AsyncChannel>>>;

/// A peer that asks for a channel.
pub(super) struct Caller {
    pub(super) peer: Option<PeerAddr>,
    /// The step that it has not taken if it is late; `None` if its handshake ends by itself then.
    pub(super) late: Option<&'static str>,
    /// Connects a channel to it.
    pub(super) connect: Box<dyn FnOnce(Terms, Arc<Deadline>) -> Connecting + Send>,
}

impl Caller {
    pub(super) fn new<F>(
        peer: Option<PeerAddr>,
        late: Option<&'static str>,
        connect: impl FnOnce(Terms, Arc<Deadline>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Met<AsyncChannel>>> + Send + 'static,
    {
        Self {
            peer,
            late,
            connect: Box::new(move |terms, deadline| Box::pin(connect(terms, deadline))),
        }
    }
}

/// Peers that connect over TCP.
pub(super) struct TcpEntrance {
    listener: TcpListener,
    notifier: Box<dyn CqNotifier>,
}

impl TcpEntrance {
    pub(super) fn new(listener: TcpListener, events: &CqEvents) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let notifier = events.another_notifier(listener.try_clone()?.into())?;
        Ok(Self { listener, notifier })
    }
}

impl Entrance for TcpEntrance {
    fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    fn poll_caller(&mut self, _has_place: bool, cx: &mut Context<'_>) -> Poll<Result<Caller>> {
        loop {
            match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    task::ready!(self.notifier.poll_readable(cx)).map_err(not_accepted)?;
                }
                Err(error) if is_of_one_connection(&error) => {}
                accepted => {
                    let (stream, peer) = accepted.map_err(not_accepted)?;
                    let end = (stream, Side::Accepts, Some(peer));
                    let peer = Some(PeerAddr::Socket(peer));
                    let connect = async move |terms: Terms, deadline: Arc<Deadline>| {
                        let prepared = terms.prepare(peer);
                        let options = &terms.options;
                        let met = (terms.group).exchange_over(end, options, prepared, &deadline);
                        met.await
                    };
                    return Poll::Ready(Ok(Caller::new(peer, Some("write"), connect)));
                }
            }
        }
    }
}

/// The error of a listener that cannot accept.
pub(super) const fn not_accepted(source: io::Error) -> ExchangeError {
    let what = "accept";
    ExchangeError::Tcp { what, source }
}

/// The most handshakes in progress.
pub(super) const MAX_HANDSHAKES: usize = 256;
