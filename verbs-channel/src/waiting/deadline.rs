//! One deadline for several waits.

use std::time::{Duration, Instant};

/// A deadline for several waits. Without a timeout it does not read the clock.
pub(super) struct Deadline {
    timeout: Option<Duration>,
    at: Option<Instant>,
}

impl Deadline {
    pub(super) const fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, at: None }
    }

    /// The time that is left; `None` forever.
    #[inline]
    pub(super) fn left(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = Instant::now();
        let at = match self.at {
            Some(at) => at,
            // A deadline beyond the range of the clock is never reached.
            None => *self.at.insert(now.checked_add(timeout)?),
        };
        Some(at.saturating_duration_since(now))
    }
}
