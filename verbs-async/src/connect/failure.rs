//! Errors of connecting, and the peers that they name.

use std::io;
use std::net::SocketAddr;

use verbs_channel::exchange::ExchangeError;
#[cfg(any(feature = "tokio", feature = "async-io"))]
use verbs_channel::exchange::MAX_PRIVATE_DATA;

use crate::error::Error;
use crate::error::Result;
use crate::group::AsyncGroup;

pub(super) fn exchange_error(error: ExchangeError) -> Error {
    verbs_channel::Error::from(error).into()
}

/// Adds the peer's address to an error of an exchange.
pub(super) fn with_peer(error: Error, peer: Option<SocketAddr>) -> Error {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => {
            Error::Channel(failure.with_peer(peer).into())
        }
        error => error,
    }
}

/// Returns, before a peer is connected to, what would prevent an exchange over TCP: a device of
/// iWARP without `rdma_cm`, or private data that is too long.
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub(super) fn check(group: &AsyncGroup, private_data: &[u8]) -> Result<()> {
    check_device(group)?;
    check_private_data(private_data)
}

/// Whether an exchange can connect queue pairs of the group's device.
#[cfg(not(feature = "rdmacm"))]
pub(super) fn check_device(group: &AsyncGroup) -> Result<()> {
    Ok(group.pd().context().device().check_handshake()?)
}

#[cfg(feature = "rdmacm")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "without `rdma_cm` there is an error"
)]
pub(super) const fn check_device(_: &AsyncGroup) -> Result<()> {
    Ok(())
}

/// Private data that are too long are an error before a peer is connected to.
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub(super) fn check_private_data(private_data: &[u8]) -> Result<()> {
    match private_data.len() {
        ..=MAX_PRIVATE_DATA => Ok(()),
        len => Err(exchange_error(ExchangeError::PrivateData(len))),
    }
}

/// The error of an address that has this text.
#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
pub(super) fn lookup(address: String) -> impl FnOnce(io::Error) -> Error {
    |source| exchange_error(ExchangeError::Lookup { address, source })
}

/// The error of an attempt to connect.
#[cfg(any(feature = "tokio", feature = "async-io"))]
pub(super) fn not_connected(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => {
            let after = None;
            exchange_error(ExchangeError::NotListening { after, source })
        }
        _ => tcp("connect to", source),
    }
}

pub(super) fn tcp(what: &'static str, source: io::Error) -> Error {
    exchange_error(ExchangeError::Tcp { what, source })
}
