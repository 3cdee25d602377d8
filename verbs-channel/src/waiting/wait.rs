//! Waits: poll until a condition holds, read the clock, and probe the device.

use std::time::{Duration, Instant};

use super::Poller;
use super::pause::{Pause, Paused, longest_sleep};
use crate::engine::{Engine, Id};
use crate::error::DownReason;

impl Poller {
    /// Waits until `done` returns `true`; `false` if `timeout` passes first. It ends in bounded time
    /// if the device is gone.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Engine) -> bool,
    ) -> bool {
        let mut pause = Pause::new(self.config.strategy, timeout);
        let mut polls: u32 = 0;
        while !done(&self.engine) {
            polls = polls.wrapping_add(1);
            // The timeout holds even if every poll finds completions.
            let is_long = polls.is_multiple_of(MAX_BUSY_POLLS);
            if (self.engine.drive() == 0 || is_long) && !self.pause(&mut pause) {
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
        self.check_peers();
        if self.engine.has_deferred() {
            // Nobody else can, before this wait ends.
            self.engine.destroy_deferred();
        }
        // Blocks may come back while no completion does.
        let needs_blocks = self.engine.has_shared() && self.engine.refill();
        let longest = longest_sleep(needs_blocks);
        let channel = self.completion_channel.as_ref();
        match pause.after_empty(self.engine.queue(), channel, &mut self.is_armed, longest) {
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

/// How many polls that find completions a wait makes before it reads the clock.
const MAX_BUSY_POLLS: u32 = 1 << 12;
