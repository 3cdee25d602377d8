//! A notifier of async-io.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_io::Async;

use super::CqNotifier;
use super::own_process::OwnProcess;
use super::relay::Relay;

/// Needs the feature `async-io`. A notifier that uses async-io's reactor, with any executor: smol,
/// another, or none.
#[derive(Debug)]
pub struct AsyncIoNotifier {
    // Dropped before the relay that it wakes.
    registered: OwnProcess<Async<OwnedFd>>,
    relay: Relay,
}

impl AsyncIoNotifier {
    /// Watches a duplicate of `descriptor`.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be duplicated or registered, for example for lack of descriptors
    /// (`EMFILE`).
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        let descriptor = descriptor.as_fd().try_clone_to_owned()?;
        Ok(Self {
            // This only waits for readiness. Whether reads block does not matter.
            registered: OwnProcess::new(Async::new_nonblocking(descriptor)?),
            relay: Relay::new(),
        })
    }
}

impl CqNotifier for AsyncIoNotifier {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only a wake-up of the relay counts. The result of the reactor's `poll_readable` alone is not
        // enough: it ignores an event of a sleep that had begun before the call, possibly every time.
        self.relay.poll(cx, |cx| {
            if self.relay.was_woken() {
                return Poll::Ready(Ok(()));
            }
            // This consumes old readiness and registers again: present readiness wakes at once.
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
