//! Waits: polls until something is done, looks at the clock, and asks queue pairs whether they live.

use std::time::{Duration, Instant};

use verbs_core::QpState;

use super::pause::{Pause, Paused};
use crate::engine::Engine;
use crate::error::DownReason;

impl Engine {
    /// Waits until `done` says so; `false` if `timeout` passes first. It ends in bounded time if the
    /// device is gone.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        done: impl Fn(&Self) -> bool,
    ) -> bool {
        let mut pause = Pause::new(self.waits.strategy, timeout);
        let mut polls: u32 = 0;
        while !done(self) {
            polls = polls.wrapping_add(1);
            // A driver that never runs out of completions does not stop the clock.
            let is_long = polls.is_multiple_of(LOOK_AFTER);
            if (self.drive() == 0 || is_long) && !self.pause(&mut pause) {
                return done(self);
            }
        }
        true
    }

    #[cold]
    fn pause(&mut self, pause: &mut Pause) -> bool {
        self.glance_at_peers();
        let announcer = self.announcer.as_ref();
        match pause.after_empty(&self.cq, announcer, &mut self.is_armed) {
            Ok(Paused::Poll) => true,
            Ok(Paused::Probe) => {
                self.probe();
                true
            }
            Ok(Paused::TimedOut) => false,
            Err(error) => {
                self.destroy_all(DownReason::Device(error.errno().unwrap_or(0)));
                true
            }
        }
    }

    /// Ends the members whose completions will not come any more: the device does not answer; or the
    /// queue pair is in ERROR, and what is posted on it has not been flushed for the drain timeout.
    ///
    /// A query may be slow, so it asks a few of many members at a time, and the rest only when one got
    /// no answer.
    fn probe(&mut self) {
        let now = Instant::now();
        let count = self.members.len();
        let (mut queries, mut is_gone, mut closed) = (0, false, false);
        for _ in 0..count {
            if queries >= PROBES && !is_gone {
                break;
            }
            self.probed = (self.probed + 1) % count.max(1);
            let Some(member) = self.members.get_mut(self.probed) else {
                continue;
            };
            let answer = match member.qp() {
                Some(qp) if !member.is_idle() => qp.query(),
                _ => {
                    member.in_error_since = None;
                    continue;
                }
            };
            queries += 1;
            let reason = match answer {
                Err(error) => {
                    is_gone = true;
                    DownReason::Device(error.errno().unwrap_or(0))
                }
                Ok(attr) if attr.qp_state() != QpState::ERR => {
                    member.in_error_since = None;
                    continue;
                }
                Ok(_) => {
                    let since = *member.in_error_since.get_or_insert(now);
                    if now.saturating_duration_since(since) < self.waits.drain_timeout {
                        continue;
                    }
                    DownReason::Unflushed
                }
            };
            self.close(u32::try_from(self.probed).unwrap_or(u32::MAX), reason);
            closed = true;
        }
        if closed {
            self.dispatch_left();
            for at in 0..u32::try_from(count).unwrap_or(u32::MAX) {
                self.end_closed(at);
            }
        }
    }
}

/// Members that are asked at a time whether their queue pairs still answer.
const PROBES: u32 = 16;

/// Polls that find something before a wait looks at the clock all the same.
const LOOK_AFTER: u32 = 1 << 12;
