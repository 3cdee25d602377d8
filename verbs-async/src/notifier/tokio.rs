//! A notifier of tokio.
#![expect(unsafe_code, reason = "registers a descriptor with tokio")]

use std::future::{self, Future};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};
use tokio::task::coop;

use super::own_process::OwnProcess;
use super::relay::Relay;
use super::{CqNotifier, RuntimeEnded};

/// Needs the feature `tokio`. A notifier that uses the tokio runtime in which it was
/// created.
///
/// Any task on any executor may wait on it. It reports readiness as long as that runtime runs. A
/// current-thread runtime only does so while a thread is in its `block_on`.
#[derive(Debug)]
pub struct TokioNotifier {
    // Dropped before the relay that it wakes.
    registered: OwnProcess<AsyncFd<OwnedFd>>,
    relay: Relay,
    runtime: Handle,
}

impl TokioNotifier {
    /// Watches a duplicate of `descriptor` with the current tokio runtime.
    ///
    /// # Errors
    ///
    /// There is no current runtime, its I/O is not enabled (`Builder::enable_io`), or it is being
    /// shut down. The descriptor cannot be duplicated or registered, for example for lack of
    /// descriptors (`EMFILE`).
    ///
    /// If the runtime's I/O is not enabled, tokio panics inside. The panic is caught, but the panic
    /// hook has printed its message by then.
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        Self::within(runtime, &descriptor)
    }

    fn within(runtime: Handle, descriptor: &impl AsFd) -> io::Result<Self> {
        let descriptor = descriptor.as_fd().try_clone_to_owned()?;
        let entered = runtime.enter();
        // There is no way to query whether I/O is enabled, and tokio panics if it is not.
        let registered = panic::catch_unwind(move || {
            // SAFETY: an `OwnedFd` is open and always the same until it is dropped, which here the
            // `AsyncFd` alone can do.
            unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
        });
        drop(entered);
        let registered = registered.map_err(|_panic| {
            io::Error::other("I/O is not enabled in this tokio runtime, see Builder::enable_io")
        })?;
        Ok(Self {
            registered: OwnProcess::new(registered.map_err(|error| explained(error.into()))?),
            relay: Relay::new(),
            runtime,
        })
    }
}

impl CqNotifier for TokioNotifier {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Unconstrained: tokio would wake a task whose budget is spent from in here. The task could call
        // this again from within that wake-up, and so on without end.
        self.relay.poll(cx, |cx| {
            let readable = future::poll_fn(|cx| {
                let readable = ready!(self.registered.poll_read_ready(cx));
                let mut readable = readable.map_err(explained)?;
                readable.clear_ready();
                Poll::Ready(Ok(()))
            });
            pin!(coop::unconstrained(readable)).poll(cx)
        })
    }

    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async {
            let own = Self::within(self.runtime.clone(), self.registered.get_ref())?;
            future::poll_fn(|cx| own.poll_readable(cx)).await
        })
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        Ok(Box::new(Self::within(self.runtime.clone(), &descriptor)?))
    }
}

/// In words of this crate, if the runtime has ended: tokio's are about a context that was found.
fn explained(error: io::Error) -> io::Error {
    match runtime::is_rt_shutdown_err(&error) {
        true => io::Error::other(RuntimeEnded),
        false => error,
    }
}
