//! Waits: poll until a condition holds, read the clock, and probe the device.

use std::time::{Duration, Instant};

use super::Poller;
use super::deadline::Deadline;
use super::pause::{Pause, Paused, longest_sleep};
use crate::engine::{Engine, Id};
use crate::error::DownReason;

impl Poller {
    /// Waits until `done` returns `true`; `false` if `timeout` passes first, from now on.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Engine) -> bool,
    ) -> bool {
        done(&self.engine) || self.wait_before(Deadline::after(timeout), done)
    }

    /// Waits until `done` returns `true`; `false` if that is not before the deadline. It ends in bounded
    /// time if the device is gone.
    pub(crate) fn wait_before(
        &mut self,
        deadline: Deadline,
        done: impl Fn(&Engine) -> bool,
    ) -> bool {
        let mut pause = Pause::new(self.config.strategy, deadline);
        while !done(&self.engine) {
            let is_late = match self.engine.drive() {
                0 => !self.pause(&mut pause),
                // The deadline holds even if every poll finds completions.
                found => self.count(found).is_some_and(|now| deadline.is_over(now)),
            };
            if is_late {
                return done(&self.engine);
            }
        }
        true
    }

    /// Waits for one operation.
    #[inline]
    pub(crate) fn wait_for(&mut self, id: Id, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |engine| !engine.is_pending(id))
    }

    #[cold]
    fn pause(&mut self, pause: &mut Pause) -> bool {
        let now = pause.read_clock();
        if let Some(now) = now {
            self.check_peers(now);
        }
        if self.engine.has_deferred() {
            // Nobody else can, before this wait ends.
            self.engine.destroy_deferred();
        }
        // Blocks may come back while no completion does.
        let needs_blocks = self.engine.has_shared() && self.engine.refill();
        let longest = longest_sleep(needs_blocks);
        let channel = self.completion_channel.as_ref();
        match pause.after_empty(
            now,
            self.engine.queue(),
            channel,
            &mut self.is_armed,
            longest,
        ) {
            Ok(Paused::Poll) => true,
            Ok(Paused::Probe) => {
                self.engine.probe(Instant::now());
                true
            }
            Ok(Paused::TimedOut) => false,
            Err(error) => {
                let reason = DownReason::Device(error.errno().unwrap_or(0));
                self.engine.destroy_all(reason);
                true
            }
        }
    }
}
