//! Where a listener listens, how it makes channels, and what it returns.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use verbs_channel::connect::{HostAddress, PeerAddr};
#[cfg(feature = "rdmacm")]
use verbs_channel::verbs_core::rdmacm;
use verbs_channel::{Connect, ConnectedMember, Met, PreparedChannel};

use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;
use crate::threads;
use crate::threads::drop_on_thread::Elsewhere;

/// Where a [`Listener`](crate::Listener) listens.
///
/// A name, an address, or a [`TcpListener`] of the user's own, which is set to non-blocking mode; a
/// listener of `rdma_cm`; or a datagram endpoint, whose
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
    /// Over datagrams, without TCP. The channels do not watch their peers.
    Datagrams(AsyncDatagrams),
}

impl From<&str> for Bind {
    fn from(name: &str) -> Self {
        Self::Address(name.into())
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address.into())
    }
}

impl From<TcpListener> for Bind {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(feature = "rdmacm")]
impl From<rdmacm::Listener> for Bind {
    fn from(listener: rdmacm::Listener) -> Self {
        Self::Cm(listener)
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
pub struct Arrival {
    /// The peer's address.
    pub peer: PeerAddr,
    /// The channel and the peer's private data, or the error. The error concerns this peer only.
    pub outcome: Result<Met<AsyncChannel>>,
}

/// Prepares the channel for a peer, or says why the peer is refused.
pub(super) type Prepare =
    Arc<dyn Fn(&AsyncGroup, PeerAddr) -> Result<PreparedChannel<ConnectedMember>> + Send + Sync>;

/// How channels are made and connected.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) group: AsyncGroup,
    pub(super) options: Connect,
    pub(super) prepare: Option<Prepare>,
}

impl Terms {
    /// A channel for this peer.
    pub(super) async fn prepare(
        &self,
        peer: PeerAddr,
    ) -> Result<Elsewhere<PreparedChannel<ConnectedMember>>> {
        let Some(prepare) = self.prepare.clone() else {
            return self.group.prepare_elsewhere().await;
        };
        let group = self.group.clone();
        let prepared = threads::run(move || prepare(&group, peer)).await;
        Ok(Elsewhere::new(prepared.map_err(Error::Thread)??))
    }
}

/// The most handshakes in progress.
pub(super) const MAX_HANDSHAKES: usize = 256;

/// The shortest timer: so that a timer that is early does not spin.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);
