//! A waker that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// Counts how often it is woken.
#[derive(Debug, Default)]
pub struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeCounter {
    /// A counter of zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// How often it was woken.
    #[must_use]
    pub fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts this number of wake-ups no more.
    pub fn forget(&self, wakes: usize) {
        self.0.fetch_sub(wakes, Ordering::Relaxed);
    }
}
