//! Names of peers, resolved on a helper thread.

use std::io;
use std::net::SocketAddr;

use verbs_channel::__private::HostAddress;

use super::deadline::Deadline;
use super::errors::exchange_error;
use crate::error::{Error, Result};
use crate::threads;

/// The addresses of a name, which is resolved on a helper thread by the deadline.
pub(super) async fn resolve(deadline: &Deadline, address: HostAddress) -> Result<Vec<SocketAddr>> {
    if let Some(addresses) = address.known() {
        return Ok(addresses);
    }
    let late = address.lookup(io::ErrorKind::TimedOut.into());
    let resolved = threads::look_up(move || address.resolve());
    match deadline.within(deadline.left(), resolved).await? {
        Some(resolved) => resolved.map_err(Error::Thread)?.map_err(exchange_error),
        None => Err(exchange_error(late)),
    }
}
