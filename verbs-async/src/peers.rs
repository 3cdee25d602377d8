//! Peers that leave: what wakes the driver, so that it takes their channels down.

use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use verbs_channel::verbs_core::ErrorChain;

use crate::notifier::CqNotifier;
use crate::wake::{OnReadable, self_waker};

/// What has peers to look at.
pub(crate) trait Peers: Send + Sync + 'static {
    /// Looks at them: some may have left.
    fn look_at_peers(&self);
}

/// Watches the descriptor that is readable when peers have left.
///
/// It is a notifier of its own beside that of the completion channel, whose waker is always
/// registered: a peer that leaves is noticed whether or not a task waits.
pub(crate) struct PeerEvents<P> {
    notifier: Box<dyn CqNotifier>,
    bell: Waker,
    peers: Weak<P>,
}

impl<P: Peers> PeerEvents<P> {
    pub(crate) fn watch(notifier: Box<dyn CqNotifier>, peers: &Weak<P>) -> Arc<Self> {
        let watching = Arc::new_cyclic(|watching: &Weak<Self>| Self {
            notifier,
            bell: self_waker(watching),
            peers: Weak::clone(peers),
        });
        // Registers the waker; from here on it is registered again whenever it was woken.
        watching.on_readable();
        watching
    }

    fn lose(error: &io::Error) {
        crate::wake::log_error(format_args!(
            "peers that leave are not noticed any more: {}",
            ErrorChain::new(error)
        ));
    }
}

impl<P: Peers> OnReadable for PeerEvents<P> {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.bell);
        loop {
            match self.notifier.poll_readable(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Self::lose(&error),
            }
            // Without it nothing makes the descriptor readable, nor reads from it.
            let Some(peers) = self.peers.upgrade() else {
                return;
            };
            peers.look_at_peers();
        }
    }
}
