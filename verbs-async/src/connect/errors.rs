//! Errors of connecting, and the peers that they name.

use std::io;
use std::net::SocketAddr;

use verbs_channel::Connect;
use verbs_channel::exchange::{ExchangeError, MAX_PRIVATE_DATA};

use crate::error::{Error, Result};
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
pub(super) fn check(group: &AsyncGroup, options: &Connect) -> Result<()> {
    check_device(group)?;
    check_private_data(options)
}

/// Whether an exchange can connect queue pairs of the group's device.
pub(super) fn check_device(group: &AsyncGroup) -> Result<()> {
    if cfg!(feature = "rdmacm") {
        return Ok(());
    }
    Ok(group.pd().context().device().check_handshake()?)
}

/// Private data that are too long are an error before a peer is connected to.
pub(super) fn check_private_data(options: &Connect) -> Result<()> {
    match options.data().len() {
        ..=MAX_PRIVATE_DATA => Ok(()),
        len => Err(exchange_error(ExchangeError::PrivateData(len))),
    }
}

pub(super) fn tcp(what: &'static str, source: io::Error) -> Error {
    exchange_error(ExchangeError::Tcp { what, source })
}
