//! Errors of connecting, and the peers that they name.

use std::io;
use std::net::SocketAddr;

use verbs_channel::exchange::ExchangeError;

use crate::error::Error;

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

pub(super) fn tcp(what: &'static str, source: io::Error) -> Error {
    exchange_error(ExchangeError::Tcp { what, source })
}
