//! Steps of `rdma_cm` in async code.
//!
//! A call that has an identifier of `rdma_cm` may block, and so may dropping it. So all of these run on the
//! helper threads. A task waits only for their results, and for the descriptor of a step.

use std::io;
use std::time::Duration;

use verbs_channel::exchange::rdmacm::explain;
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::rdmacm::{Connection, Pending, Step};

use super::failure::exchange_error;
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::threads;
use crate::threads::drop_on_thread::Elsewhere;

/// Has a channel watch its peer through a connection, which is ended on a helper thread.
pub(super) fn watch(channel: &AsyncChannel, connection: Elsewhere<Connection>) -> Result<()> {
    channel.watch_connection(connection.into_inner(), end_elsewhere)
}

/// Ends a connection on a helper thread. The driver's lock may be held, as a channel goes down.
pub(crate) fn end_elsewhere(connection: Connection) {
    threads::detach_under_lock(move || drop(connection));
}

/// Waits until a step has ended. `timeout` is that of the whole exchange, for its errors.
pub(super) async fn ended<S>(
    events: &CqEvents,
    pending: Pending<S>,
    timeout: Duration,
) -> Result<Elsewhere<S>>
where
    S: Step + Send + 'static,
    Pending<S>: Send,
{
    let descriptor = pending.poll_fd().map(|fd| fd.try_clone_to_owned());
    let mut pending = Elsewhere::new(pending);
    let descriptor = descriptor.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?;
    let notifier = events.another_notifier(descriptor)?;
    loop {
        notifier.readable().await?;
        let polled = pending.call(|mut pending| {
            let ended = pending.poll()?;
            Ok::<_, verbs_core::Error>((ended, pending))
        });
        let (ended, rest) = polled.await?.map_err(explained(timeout))?;
        let rest = Elsewhere::new(rest);
        if let Some(ended) = ended {
            return Ok(Elsewhere::new(ended));
        }
        pending = rest;
    }
}

/// The error of a step.
pub(super) fn explained(timeout: Duration) -> impl Fn(verbs_core::Error) -> Error {
    move |error| exchange_error(explain(error, timeout))
}
