//! Waiting: what a channel or a group adds to its engine.
//!
//! A wait polls until its operation has completed. After a poll that finds nothing, it checks the
//! peers now and then, reads the clock, and spins, yields or sleeps.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use verbs_core::CompletionChannel;

use crate::config::WaitConfig;
use crate::engine::Engine;
use crate::error::TransportError;
pub(crate) use guard::AbortOnUnwind;
pub(crate) use pause::{Pause, Paused, longest_sleep};
pub(crate) use scope::{Leftover, ScopeEnd};

mod abort;
mod blocking;
mod close;
mod deadline;
mod guard;
mod outcome;
mod pause;
mod scope;
mod transfer;
mod wait;

/// An engine, and how its operations are waited for.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Poller {
    pub(crate) engine: Engine,
    pub(crate) config: WaitConfig,
    // For the events of the completion queue, to sleep until one arrives.
    completion_channel: Option<CompletionChannel>,
    // The next completion raises an event, or has raised one that no wait has taken.
    is_armed: bool,
    next_check: NextCheck,
    // The last that a handle has taken.
    failure: Option<TransportError>,
}

/// When the peers are checked next, by the coarse clock.
#[derive(Debug, Default)]
struct NextCheck(Duration);

/// How often waits, and polls that find nothing, check the peers: that takes a system call.
const CHECK: Duration = Duration::from_millis(10);

impl Poller {
    pub(crate) fn new(
        engine: Engine,
        config: WaitConfig,
        completion_channel: Option<CompletionChannel>,
    ) -> Self {
        Self {
            engine,
            config,
            completion_channel,
            is_armed: false,
            next_check: NextCheck::default(),
            failure: None,
        }
    }

    pub(crate) const fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.completion_channel.as_ref()
    }

    /// After a poll that found nothing: checks the peers if it is time.
    #[inline]
    pub(crate) fn check_peers(&mut self) {
        if self.engine.awaits_check()
            && (self.engine.has_leaving_peers() || self.next_check.is_due())
        {
            self.engine.check_peers(Instant::now());
        }
    }
}

impl NextCheck {
    /// Whether it is time. If so, the next one is due later.
    fn is_due(&mut self) -> bool {
        // This clock is some milliseconds behind, and costs a fraction of a poll.
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now = Duration::try_from(now).unwrap_or_default();
        let is_due = now >= self.0;
        if is_due {
            self.0 = now + CHECK;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_check_is_due_at_once_and_the_next_after_its_interval() {
        let mut next = NextCheck::default();
        assert!(next.is_due());
        // Far in the future, so that the test does not wait for the clock.
        next.0 += Duration::from_secs(1000);
        assert!(!next.is_due(), "it is too soon");
        next.0 = Duration::ZERO;
        assert!(next.is_due());
    }
}
