//! Deadlines of connecting.

use std::time::{Duration, Instant};

use crate::exchange::{self, ExchangeError};

/// A deadline, and the timeout that it was computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Deadline of an exchange that begins now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self::since(Instant::now(), timeout)
    }

    /// Deadline of an exchange that began then.
    pub(super) fn since(begun: Instant, timeout: Duration) -> Self {
        let at = exchange::deadline(begun, timeout);
        Self { at, timeout }
    }

    /// When it passes.
    #[cfg(feature = "rdmacm")]
    pub(super) const fn at(self) -> Instant {
        self.at
    }

    /// The timeout that it was computed from.
    pub(super) const fn timeout(self) -> Duration {
        self.timeout
    }

    /// An error before this deadline or after it: one that is due to it has the timeout.
    pub(super) fn explain(self, error: ExchangeError) -> ExchangeError {
        match error {
            ExchangeError::TimedOut { what, after: None } if self.left().is_none() => {
                let after = Some(self.timeout);
                ExchangeError::TimedOut { what, after }
            }
            error => error,
        }
    }

    /// The time that is left; `None` if there is none.
    pub(super) fn left(self) -> Option<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_after_the_deadline_has_its_timeout() {
        let late = || ExchangeError::TimedOut {
            what: "answer",
            after: None,
        };
        let timeout = Duration::from_secs(1000);
        let text = Deadline::after(timeout).explain(late()).to_string();
        assert_eq!(text, "the peer did not answer in time");
        let at = Instant::now();
        let text = Deadline { at, timeout }.explain(late()).to_string();
        assert_eq!(text, "the peer did not answer within 1000 s");
    }
}
