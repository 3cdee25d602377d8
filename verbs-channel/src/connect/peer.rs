//! Peers: where they are, and how they are found.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use verbs_core::path::DatagramEndpoint;

use crate::exchange::ExchangeError;

/// The peer to connect to: its address, and the way to it.
///
/// An address alone is one for TCP: `"server:7471"`, or a [`SocketAddr`]. `D` is the datagram endpoint of this side,
/// [`&mut Datagrams`](crate::Datagrams) in this crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Peer<D> {
    /// A peer that accepts a TCP connection, over which the two exchange their endpoints.
    Tcp(HostAddress),
    /// A peer that accepts by `rdma_cm`, at an address of its RDMA device. Needs the feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    Cm(HostAddress),
    /// A peer that accepts over datagrams, from this endpoint to that one, without TCP.
    Datagrams(D, DatagramEndpoint),
}

impl<D> Peer<D> {
    /// A peer that accepts by `rdma_cm`, at an address of its RDMA device, such as its IP address on RoCE. Needs the
    /// feature `rdmacm`.
    #[cfg(feature = "rdmacm")]
    #[doc(alias = "rdma_connect")]
    pub fn cm(address: impl Into<HostAddress>) -> Self {
        Self::Cm(address.into())
    }
}

impl<D, A: Into<HostAddress>> From<A> for Peer<D> {
    fn from(address: A) -> Self {
        Self::Tcp(address.into())
    }
}

/// A name and a port, or addresses that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress(Host);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Known(Vec<SocketAddr>),
}

impl HostAddress {
    /// Looks the name up with the resolver of the system, which has timeouts of its own.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Lookup`].
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, ExchangeError> {
        match &self.0 {
            Host::Known(addresses) => Ok(addresses.clone()),
            Host::Name(name) => {
                let addresses = name.to_socket_addrs().map(Iterator::collect);
                addresses.map_err(|source| self.lookup(source))
            }
        }
    }

    /// The addresses, if no name has to be looked up.
    #[must_use]
    pub fn known(&self) -> Option<Vec<SocketAddr>> {
        match &self.0 {
            Host::Known(addresses) => Some(addresses.clone()),
            Host::Name(name) => name.parse().ok().map(|address| vec![address]),
        }
    }

    /// Why the name could not be looked up.
    #[must_use]
    pub fn lookup(&self, source: io::Error) -> ExchangeError {
        let address = match &self.0 {
            Host::Name(name) => format!("{name:?}"),
            Host::Known(addresses) => format!("{addresses:?}"),
        };
        ExchangeError::Lookup { address, source }
    }
}

/// `HOST:PORT`.
impl From<&str> for HostAddress {
    fn from(name: &str) -> Self {
        Self(Host::Name(name.to_owned()))
    }
}

impl From<&String> for HostAddress {
    fn from(name: &String) -> Self {
        Self(Host::Name(name.clone()))
    }
}

impl From<String> for HostAddress {
    fn from(name: String) -> Self {
        Self(Host::Name(name))
    }
}

impl From<(&str, u16)> for HostAddress {
    fn from((host, port): (&str, u16)) -> Self {
        match host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::from((ip, port)).into(),
            Err(_) => Self(Host::Name(format!("{host}:{port}"))),
        }
    }
}

impl From<(Ipv4Addr, u16)> for HostAddress {
    fn from(address: (Ipv4Addr, u16)) -> Self {
        SocketAddr::from(address).into()
    }
}

impl From<(Ipv6Addr, u16)> for HostAddress {
    fn from(address: (Ipv6Addr, u16)) -> Self {
        SocketAddr::from(address).into()
    }
}

impl From<(IpAddr, u16)> for HostAddress {
    fn from(address: (IpAddr, u16)) -> Self {
        SocketAddr::from(address).into()
    }
}

impl From<SocketAddr> for HostAddress {
    fn from(address: SocketAddr) -> Self {
        Self(Host::Known(vec![address]))
    }
}

impl From<&[SocketAddr]> for HostAddress {
    fn from(addresses: &[SocketAddr]) -> Self {
        Self(Host::Known(addresses.to_vec()))
    }
}

/// A channel that was connected, and its peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Met<T> {
    /// The channel.
    pub channel: T,
    /// The peer's [private data](crate::Connect::private_data): do not trust what the peer sent.
    pub private_data: Vec<u8>,
    /// The peer's address, if it is known.
    pub peer: Option<PeerAddr>,
}

impl<T> Met<T> {
    /// For a layer that connects in its own way.
    #[must_use]
    #[doc(hidden)]
    pub const fn new(channel: T, private_data: Vec<u8>, peer: Option<PeerAddr>) -> Self {
        Self {
            channel,
            private_data,
            peer,
        }
    }
}

/// The address of a peer that was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAddr {
    /// Its address over TCP, or by `rdma_cm`.
    Socket(SocketAddr),
    /// Its datagram endpoint.
    Datagram(DatagramEndpoint),
}

impl From<SocketAddr> for PeerAddr {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => fmt::Display::fmt(address, f),
            Self::Datagram(endpoint) => fmt::Debug::fmt(endpoint, f),
        }
    }
}
