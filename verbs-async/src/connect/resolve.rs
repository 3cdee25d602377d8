//! Names of peers, resolved on a helper thread.

use std::net::{SocketAddr, ToSocketAddrs};
use std::{fmt, io};

use super::failure::lookup;
use super::time::Deadline;
use crate::error::{Error, Result};
use crate::threads;

/// The addresses of a name.
pub(super) async fn resolve(
    peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
) -> Result<Vec<SocketAddr>> {
    let text = format!("{peer:?}");
    let resolved = threads::look_up(move || peer.to_socket_addrs().map(Iterator::collect)).await;
    let resolved = resolved.map_err(Error::Thread)?;
    resolved.map_err(lookup(text))
}

/// The addresses of a name, by the deadline.
pub(super) async fn resolve_by(
    deadline: &Deadline,
    peer: impl ToSocketAddrs + fmt::Debug + Send + 'static,
) -> Result<Vec<SocketAddr>> {
    let text = format!("{peer:?}");
    let resolved = deadline.share(1, resolve(peer)).await?;
    resolved.unwrap_or_else(|| Err(lookup(text)(io::ErrorKind::TimedOut.into())))
}
