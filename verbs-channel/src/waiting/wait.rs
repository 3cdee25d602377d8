//! Waits: polls until something is done, looks at the clock, and asks queue pairs whether they live.

use std::time::{Duration, Instant};

use super::Poller;
use super::pause::{Pause, Paused};
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
            // A driver that never runs out of completions does not stop the clock.
            let is_long = polls.is_multiple_of(LOOK_AFTER);
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
        let channel = self.completion_channel.as_ref();
        match pause.after_empty(self.engine.queue(), channel, &mut self.is_armed) {
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

/// Polls that find something before a wait looks at the clock all the same.
const LOOK_AFTER: u32 = 1 << 12;
