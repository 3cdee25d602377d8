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
        // What counts is that the reactor woke the relay. Its own word is not enough: it takes an
        // event for an old one if it was asleep already when it was asked, which can go on and on.
        self.relay.poll(cx, |cx| {
            if self.relay.was_woken() {
                return Poll::Ready(Ok(()));
            }
            // That of a wake-up is used up, and it is asked anew: what is there is told at once.
            while self.registered.poll_readable(cx)?.is_ready() {}
            Poll::Pending
        })
    }

    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(self.registered.readable())
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        Ok(Box::new(Self::new(descriptor)?))
    }
}
