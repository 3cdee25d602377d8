//! Deadlines of waits, and the pauses between their polls: spin, yield or sleep.

use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use verbs_core::CompletionQueue;
use verbs_core::completion::CompletionChannel;

/// How a wait passes the time between polls that find no completion. Default:
/// [`SpinThenYield`](Self::SpinThenYield).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PollStrategy {
    /// Spin: the shortest latency, for a thread with a core of its own.
    Spin,
    /// Spin for some microseconds, then yield the processor between polls. A wait takes a whole core if no other
    /// thread needs it.
    #[default]
    SpinThenYield,
    /// Spin, then yield, for this many polls, then sleep until the completion channel has an event.
    Notify {
        /// Empty polls before the first sleep.
        after: u32,
    },
}

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

/// How often a wait checks whether the device still answers, and the longest sleep.
const PROBE: Duration = Duration::from_millis(100);

/// The longest sleep, the shorter one while receives lack blocks.
///
/// Blocks come back in any thread, and no completion announces them. A wake-up for each would cost that
/// thread a system call for every block that it drops, where receives are posted many at a time.
pub(crate) const fn longest_sleep(needs_blocks: bool) -> Duration {
    if needs_blocks {
        Duration::from_millis(1)
    } else {
        Duration::MAX
    }
}

/// Polls of a pure spin between reads of the clock, which cost as much as several polls.
const SPINS_PER_READ: u32 = 64;

/// The state of one wait.
pub(crate) struct Pause {
    strategy: PollStrategy,
    deadline: Deadline,
    backoff: Backoff,
    empty: u32,
    // `None` before the first read of the clock, and right after a probe, which may take long itself.
    next_probe: Option<Instant>,
}

/// The outcome of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// Poll again.
    Poll,
    /// Check whether the device still answers, then poll again.
    Probe,
    /// The deadline has passed.
    TimedOut,
}

impl Pause {
    #[inline]
    pub(crate) fn new(strategy: PollStrategy, deadline: Deadline) -> Self {
        Self {
            strategy,
            deadline,
            backoff: Backoff::new(),
            empty: 0,
            next_probe: None,
        }
    }

    /// Counts a poll that found nothing. Reads the clock, but in a pure spin only once for many polls.
    pub(crate) fn read_clock(&mut self) -> Option<Instant> {
        // It wraps: a saturated count would keep a spin from reading the clock.
        self.empty = self.empty.wrapping_add(1);
        let spins = matches!(self.strategy, PollStrategy::Spin);
        (!spins || self.empty % SPINS_PER_READ == 1).then(Instant::now)
    }

    /// Pauses after a poll that found nothing, at the time that [`read_clock`](Self::read_clock) returned.
    /// `is_armed` is kept from one wait to the next: an event that a wait did not need is used by the next
    /// one, and the queue is not armed again. It sleeps for `longest` at most.
    pub(crate) fn after_empty(
        &mut self,
        now: Option<Instant>,
        cq: &CompletionQueue,
        channel: Option<&CompletionChannel>,
        is_armed: &mut bool,
        longest: Duration,
    ) -> verbs_core::Result<Paused> {
        let Some(now) = now else {
            std::hint::spin_loop();
            return Ok(Paused::Poll);
        };
        if self.deadline.is_over(now) {
            return Ok(Paused::TimedOut);
        }
        let next_probe = *self.next_probe.get_or_insert(now + PROBE);
        if now >= next_probe {
            self.next_probe = None;
            return Ok(Paused::Probe);
        }
        match (self.strategy, channel) {
            (PollStrategy::Notify { after }, Some(channel)) if self.empty > after => {
                // Arm, poll once more, and sleep only if that poll is empty too.
                if *is_armed {
                    let until = self.deadline.at().unwrap_or(next_probe);
                    let sleep = until.min(next_probe).saturating_duration_since(now);
                    // After a sleep it is armed again: the event may have been taken elsewhere.
                    *is_armed = false;
                    channel.get_cq_event(Some(sleep.min(longest)))?;
                } else {
                    cq.req_notify(false)?;
                    *is_armed = true;
                }
            }
            _ => self.backoff.snooze(),
        }
        Ok(Paused::Poll)
    }
}
