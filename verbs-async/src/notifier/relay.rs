//! A relay: the one waker that a reactor gets, which wakes the waker of the last caller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::task::sync::Mutex;
use crate::task::wake;

/// Stands between a reactor and the wakers of its callers.
///
/// Reactors clone, drop and (async-io) wake the replaced waker of a call with their locks held, and
/// such a waker may call them again. The relay's waker is always the same, so reactors replace
/// nothing, and no foreign code runs with a lock of a reactor held.
#[derive(Debug)]
pub(super) struct Relay {
    last: Arc<Last>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Last {
    waker: Mutex<Option<Waker>>,
    woken: AtomicBool,
    // A task is not woken, and may sleep on: the notifier has failed.
    has_panicked: AtomicBool,
}

impl Relay {
    pub(super) fn new() -> Self {
        let last = Arc::new(Last::default());
        let waker = Waker::from(Arc::clone(&last));
        Self { last, waker }
    }

    /// Polls `source`, which registers the relay's waker, for the caller with the context `cx`.
    ///
    /// It is an error after a waker has panicked.
    pub(super) fn poll(
        &self,
        cx: &Context<'_>,
        source: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.last.has_panicked.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::other(PANICKED)));
        }
        // First, so that a wake-up during the poll finds the waker.
        self.last.register(cx.waker());
        // The waker stays registered if this is ready: it may be that of a later call by now.
        source(&mut Context::from_waker(&self.waker))
    }

    /// Whether the reactor has woken the relay since the last call. To be called within
    /// [`poll`](Self::poll): a wake-up after this call wakes the caller's waker.
    #[cfg(feature = "async-io")]
    pub(super) fn was_woken(&self) -> bool {
        self.last.woken.swap(false, Ordering::Relaxed)
    }

    /// Wakes the registered waker, if there is one.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

impl Last {
    fn register(&self, waker: &Waker) {
        let same = |last: &Waker| last.will_wake(waker);
        if self.waker.lock().as_ref().is_some_and(same) {
            return;
        }
        let waker = waker.clone();
        let replaced = self.waker.lock().replace(waker);
        drop(replaced);
    }

    fn take(&self) -> Option<Waker> {
        self.waker.lock().take()
    }
}

impl Wake for Last {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the waker is taken: a call that registers later finds the flag set.
        self.woken.store(true, Ordering::Relaxed);
        if let Some(waker) = self.take() {
            // The reactor's thread continues, as it has other wakers to wake.
            if wake::panics(|| waker.wake()) {
                self.has_panicked.store(true, Ordering::Relaxed);
                wake::log_error(format_args!("a notifier has failed: {PANICKED}"));
            }
        }
    }
}

const PANICKED: &str = "the waker of its task panicked, as some do that are woken on another thread than their \
    executor's, see the documentation of verbs_async::notifier";
