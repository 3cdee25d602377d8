//! Errors of connecting, and the peers that they name.

use std::io;
use std::net::SocketAddr;

use verbs_channel::Connect;
use verbs_channel::exchange::ExchangeError;

use crate::error::{Error, Result};
use crate::group::AsyncGroup;

pub(super) fn exchange_error(error: ExchangeError) -> Error {
    verbs_channel::Error::from(error).into()
}

/// Adds the peer's address to an error of an exchange.
pub(super) fn with_peer(error: Error, peer: Option<SocketAddr>) -> Error {
    match error {
        Error::Channel(error) => error.with_peer(peer).into(),
        error => error,
    }
}

/// Returns, before a peer is connected to, what would prevent an exchange over TCP: a device of
/// iWARP without `rdma_cm`, or private data that is too long.
pub(super) fn check(group: &AsyncGroup, options: &Connect) -> Result<()> {
    if !cfg!(feature = "rdmacm") {
        group.pd().context().device().check_handshake()?;
    }
    options.check().map_err(exchange_error)
}

pub(super) fn tcp(what: &'static str, source: io::Error) -> Error {
    exchange_error(ExchangeError::Tcp { what, source })
}
