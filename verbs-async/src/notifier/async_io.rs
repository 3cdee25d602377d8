//! Readiness by async-io.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_io::Async;

use super::CqNotifier;
use super::relay::Relay;

/// Tells by async-io's reactor, whatever the executor: smol, another, or none (feature
/// `async-io`).
#[derive(Debug)]
pub struct AsyncIoNotifier {
    // Goes before the relay that it wakes.
    registered: Async<OwnedFd>,
    relay: Relay,
}

impl AsyncIoNotifier {
    /// Watches a duplicate of `descriptor`.
    ///
    /// # Errors
    ///
    /// `EMFILE` and the like.
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        let descriptor = descriptor.as_fd().try_clone_to_owned()?;
        Ok(Self {
            // It is only waited for here: whether reading blocks is the reader's business.
            registered: Async::new_nonblocking(descriptor)?,
            relay: Relay::new(),
        })
    }
}

impl CqNotifier for AsyncIoNotifier {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let registered = &self.registered;
        self.relay.poll(cx, |cx| registered.poll_readable(cx))
    }

    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(self.registered.readable())
    }
}
