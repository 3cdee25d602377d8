//! Where a listener listens, how it makes channels, and what it returns.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbs_channel::__private::HostAddress;
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::{Connect, PreparedChannel};

use super::exchange::Progress;
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
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
    Cm(super::cm::rdmacm::Listener),
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
    pub(super) async fn prepare(
        &self,
        peer: Option<PeerAddr>,
    ) -> Result<OnThread<PreparedChannel<ConnectedMember>>> {
        let Some(prepare) = self.prepare.clone() else {
            return self.group.prepare_elsewhere().await;
        };
        let group = self.group.clone();
        let prepared = threads::run(move || prepare(&group, peer)).await;
        Ok(OnThread::new(prepared.map_err(Error::Thread)??))
    }
}

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handshake: the channel that it connects, and the peer's private data.
pub(super) type Meeting = Boxed<Result<Met<AsyncChannel>>>;

/// Where peers that ask for a channel come from.
pub(super) trait Callers: Send {
    /// Takes the next peer.
    fn poll_caller(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Caller>>;

    /// The step that a late peer has not taken.
    fn late(&self, has_shown: bool) -> &'static str;

    /// Closes what peers come from, and waits for that.
    fn close(self: Box<Self>) -> Boxed<()>;
}

/// A peer that asks for a channel, and how to connect it.
pub(super) struct Caller {
    pub(super) peer: Option<SocketAddr>,
    pub(super) connect: Box<dyn FnOnce(Terms, Arc<Progress>) -> Meeting + Send>,
}

/// The most handshakes in progress.
pub(super) const MAX_HANDSHAKES: usize = 256;
