//! The one waker that a reactor sees, which passes on to the one that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::Mutex;

/// Stands between a reactor and the wakers of its callers.
///
/// Reactors clone, drop and (async-io) wake the waker that a call replaces with their locks held,
/// and such a waker may call them again. This one is always the same, so they replace nothing, and
/// it runs nobody's code with a lock held.
#[derive(Debug)]
pub(super) struct Relay {
    last: Arc<Last>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Last {
    waker: Mutex<Option<Waker>>,
    woken: AtomicBool,
}

impl Relay {
    pub(super) fn new() -> Self {
        let last = Arc::new(Last::default());
        let waker = Waker::from(Arc::clone(&last));
        Self { last, waker }
    }

    /// Polls `source`, which is to wake this relay, for the caller whose context `cx` is.
    pub(super) fn poll<T>(
        &self,
        cx: &Context<'_>,
        source: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // First, so that a wake-up between the two finds it.
        self.last.register(cx.waker());
        // It stays if this is ready: by now it may be that of a call on another thread.
        source(&mut Context::from_waker(&self.waker))
    }

    /// Whether the reactor has woken it since this was last asked. To be asked within
    /// [`poll`](Self::poll): whoever does not learn it here is woken.
    #[cfg(feature = "async-io")]
    pub(super) fn was_woken(&self) -> bool {
        self.last.woken.swap(false, Ordering::Relaxed)
    }

    /// Wakes who waits, if anybody does.
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
        // Before the lock is taken: a call that registers after that finds it.
        self.woken.store(true, Ordering::Relaxed);
        if let Some(waker) = self.take() {
            // A waker that panics has said so by now, and the reactor's thread goes on: it has
            // others to wake.
            let _panicked = crate::wake::panics(|| waker.wake());
        }
    }
}
