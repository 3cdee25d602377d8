//! The deadline of a wait, or of several.

use std::time::{Duration, Instant};

/// When a wait ends; `None` if never. Without a timeout it reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline of a call that begins now. One beyond the range of the clock is never reached.
    #[inline]
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(super) const fn at(self) -> Option<Instant> {
        self.0
    }

    pub(crate) fn is_over(self, now: Instant) -> bool {
        self.0.is_some_and(|at| now >= at)
    }
}
