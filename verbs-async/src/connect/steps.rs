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
use crate::blocking;
use crate::channel::AsyncChannel;
use crate::error::{Error, Result};
use crate::events::CqEvents;

/// A value that is dropped on a helper thread.
// `None` once it was taken out.
#[derive(Debug)]
pub(super) struct Elsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Elsewhere<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(super) const fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Makes a call with the value on a helper thread. If the future is dropped, the value, or what the call
    /// returns, is dropped there.
    pub(super) async fn call<R: Send + 'static>(
        mut self,
        call: impl FnOnce(T) -> R + Send + 'static,
    ) -> Result<R> {
        let Some(value) = self.0.take() else {
            return Err(Error::Thread(io::ErrorKind::NotFound.into()));
        };
        let called = blocking::run(move || call(value)).await;
        called.map_err(Error::Thread)
    }

    /// The value, for an owner that drops it on a helper thread.
    pub(super) fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send + 'static> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop(blocking::run(move || drop(value)));
        }
    }
}

/// Has a channel watch its peer through a connection, which is ended on a helper thread.
pub(super) fn watch(channel: &AsyncChannel, connection: Elsewhere<Connection>) -> Result<()> {
    match connection.into_inner() {
        Some(connection) => channel.watch_connection(connection, end_elsewhere),
        None => Ok(()),
    }
}

/// Ends a connection on a helper thread.
pub(super) fn end_elsewhere(connection: Connection) {
    drop(Elsewhere::new(connection));
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
