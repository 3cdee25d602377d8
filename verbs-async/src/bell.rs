//! The waker that a notifier gets: always the same, and of what owns the notifier.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// What looks when its notifier says so.
pub(crate) trait Look: Send + Sync + 'static {
    /// Takes what is there, until the notifier has the waker.
    fn on_readable(&self);
}

/// A waker at which this looks, while it is there.
pub(crate) fn bell<L: Look>(looks: &Weak<L>) -> Waker {
    Waker::from(Arc::new(Bell(Weak::clone(looks))))
}

struct Bell<L>(Weak<L>);

impl<L: Look> Wake for Bell<L> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(looks) = self.0.upgrade() {
            looks.look();
        }
    }
}
