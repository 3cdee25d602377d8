//! Addresses of peers: their names are resolved on a helper thread, and they are tried in turn.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs_channel::__private::{Attempt, Attempts, HostAddress};

use super::deadline::Deadline;
use crate::error::Result;
use crate::threads;

/// The addresses of a name, which is resolved on a helper thread.
pub(super) async fn look_up(address: HostAddress) -> Result<Vec<SocketAddr>> {
    match address.known() {
        Some(addresses) => Ok(addresses),
        None => Ok(threads::look_up(move || address.resolve()).await??),
    }
}

/// The same by the deadline.
pub(super) async fn resolve(deadline: &Deadline, address: HostAddress) -> Result<Vec<SocketAddr>> {
    let late = address.lookup(io::ErrorKind::TimedOut.into());
    let found = deadline.within(deadline.left(), look_up(address)).await?;
    found.unwrap_or_else(|| Err(late.into()))
}

/// Tries the addresses of a peer in turn, and again while it does not listen yet. Each attempt has the time that it is
/// given, and `answer` returns what is made of it, or records its failure. Returns the address, too.
pub(super) async fn first_that_answers<F: Future, T>(
    deadline: &Deadline,
    address: HostAddress,
    mut attempt: impl FnMut(SocketAddr, Duration) -> F,
    answer: impl Fn(&mut Attempts, F::Output) -> Option<T>,
) -> Result<(T, SocketAddr)> {
    let addresses = resolve(deadline, address).await?;
    let mut attempts = Attempts::new(addresses, deadline.begun, deadline.timeout);
    loop {
        match attempts.step().map_err(verbs_channel::Error::from)? {
            Attempt::Pause(until) => deadline.sleep_until(until).await?,
            Attempt::Try(address, until) => {
                let time = until.saturating_duration_since(Instant::now());
                match deadline.within(time, attempt(address, time)).await? {
                    None => attempts.timed_out(),
                    Some(ended) => {
                        if let Some(answered) = answer(&mut attempts, ended) {
                            return Ok((answered, address));
                        }
                    }
                }
            }
        }
    }
}
