//! Names of peers, resolved on a helper thread.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use super::failure::lookup;
use crate::blocking;
use crate::error::{Error, Result};

/// The addresses of a name.
pub(super) async fn resolve(
    peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
) -> Result<Vec<SocketAddr>> {
    let text = format!("{peer:?}");
    let resolved = blocking::run(move || peer.to_socket_addrs().map(Iterator::collect)).await;
    let resolved = resolved.map_err(Error::Thread)?;
    resolved.map_err(lookup(text))
}
