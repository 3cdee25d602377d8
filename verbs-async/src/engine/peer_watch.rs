//! Peers that leave: the notifier that makes their channels go down.

use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use verbs_channel::verbs_core::error::ErrorChain;

use crate::notifier::{CqNotifier, copy_of, has_ended};
use crate::task::wake::{OnReadable, self_waker};

/// The channels whose peers are watched.
pub(crate) trait Peers: Send + Sync + 'static {
    /// Checks which peers have left.
    fn check_peers(&self);

    /// Whether there are any.
    fn has_channels(&self) -> bool;
}

/// Watches the descriptor that is readable when peers have left.
///
/// Its notifier is separate from that of the completion channel, and its waker is always
/// registered. So a peer that leaves is noticed whether or not a task waits. Tasks that are always ready check
/// the peers themselves: see `SharedEngine::must_yield`.
pub(crate) struct PeerEvents<P> {
    notifier: Box<dyn CqNotifier>,
    waker: Waker,
    peers: Weak<P>,
    // Why peers that leave are no longer noticed.
    failed: OnceLock<io::Error>,
}

impl<P: Peers> PeerEvents<P> {
    pub(crate) fn watch(notifier: Box<dyn CqNotifier>, peers: &Weak<P>) -> Arc<Self> {
        let watching = Arc::new_cyclic(|watching: &Weak<Self>| Self {
            notifier,
            waker: self_waker(watching),
            peers: Weak::clone(peers),
            failed: OnceLock::new(),
        });
        // Registers the waker. After this it registers itself again whenever it is woken.
        watching.on_readable();
        watching
    }

    /// Whether peers that leave are noticed.
    ///
    /// # Errors
    ///
    /// The notifier has failed.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.failed
            .get()
            .map_or(Ok(()), |error| Err(copy_of(error)))
    }

    fn fail(&self, error: io::Error) {
        let error = self.failed.get_or_init(|| error);
        let peers = self.peers.upgrade();
        if peers.is_some_and(|peers| peers.has_channels()) && !has_ended(error) {
            crate::task::wake::log_error(format_args!(
                "peers that leave are no longer noticed: {}",
                ErrorChain::new(error)
            ));
        }
    }
}

impl<P: Peers> OnReadable for PeerEvents<P> {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.waker);
        loop {
            match self.notifier.poll_readable(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return self.fail(error),
            }
            // The group is gone, and no descriptor is watched any more.
            let Some(peers) = self.peers.upgrade() else {
                return;
            };
            peers.check_peers();
        }
    }
}
