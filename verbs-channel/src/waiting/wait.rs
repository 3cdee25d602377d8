//! Waits: poll until a condition holds, read the clock, and probe the device; and the ladder of an abort.
//!
//! ```text
//! wait for the completion ─── in time ─────────────► success, or a work error
//!   │ the deadline passes, or a scope fails
//!   ▼
//! queue pair to ERR, drain ───── in drain_timeout ─► aborted, or a work error
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ─── destroyed ────────────► aborted
//!   │ the driver fails to
//!   ▼
//! owned buffers are leaked, which is logged ───────► stuck
//! borrowed buffers in flight: the process is aborted
//! ```
//!
//! A borrow is released only at the end of the ladder.

use std::thread;
use std::time::{Duration, Instant};

use verbs_core::Context;

use super::Poller;
use super::pause::{Deadline, Pause, Paused, longest_sleep};
use crate::engine::{Engine, Id, abort_with};
use crate::error::{DownReason, Queue, RejectReason};

/// A waiter: a poller, or a scope, which borrows its poller anew for each step.
///
/// Between two steps runs what the engine has left for [afterwards](Engine::next_afterwards): the program's own
/// code, which may use the scope.
pub(crate) trait Steps {
    /// Borrows the poller for one step, in which no code of others runs.
    fn step<R>(&mut self, then: impl FnOnce(&mut Poller) -> R) -> R;

    /// Runs what the engine has left for afterwards.
    #[inline]
    fn run_afterwards(&mut self) {
        self.run_queued();
        let device = |poller: &mut Poller| poller.engine.refusing_device().cloned();
        if let Some(device) = self.step(device) {
            self.check_refused(&device);
        }
    }

    /// Looks whether a device that has refused to destroy queue pairs is removed.
    #[cold]
    #[inline(never)]
    fn check_refused(&mut self, device: &Context) {
        let (is_removed, now) = (device.is_removed(), Instant::now());
        self.step(|poller| poller.engine.check_refused(is_removed, now));
        self.run_queued();
    }

    #[inline]
    fn run_queued(&mut self) {
        while let Some((next, _is_slow)) = self.step(|poller| poller.engine.next_afterwards()) {
            next();
        }
    }

    /// Runs what the engine has left for afterwards, until all queue pairs that were to be destroyed are, or are
    /// stuck: for the drain timeout at most.
    fn finish_destroying(&mut self) {
        self.run_afterwards();
        while self.step(|poller| poller.engine.refusing_device().is_some()) {
            thread::sleep(LOOK);
            self.run_afterwards();
        }
    }

    /// A post was rejected, and perhaps its queue pair destroyed.
    #[cold]
    #[inline(never)]
    fn rejected(&mut self, reason: RejectReason) -> RejectReason {
        let half = self.step(|poller| poller.engine.end_half_posted(reason));
        self.finish_destroying();
        if let Some(half) = half {
            let _aborted = self.step(|poller| poller.engine.flight.release(half.id));
        }
        reason
    }

    /// Waits until `done` returns `true`; `false` if `timeout` passes first, from now on.
    fn wait_until(&mut self, timeout: Option<Duration>, done: impl Fn(&Engine) -> bool) -> bool {
        self.step(|poller| done(&poller.engine)) || self.wait_before(Deadline::after(timeout), done)
    }

    /// Waits until `done` returns `true`; `false` if that is not before the deadline. It ends in bounded
    /// time if the device is gone.
    fn wait_before(&mut self, deadline: Deadline, done: impl Fn(&Engine) -> bool) -> bool {
        let mut pause = self.step(|poller| Pause::new(poller.config.strategy, deadline));
        let is_done = loop {
            let found = self.step(|poller| {
                let engine = &mut poller.engine;
                (!done(engine)).then(|| engine.drive())
            });
            let is_late = match found {
                None => break true,
                Some(0) => !self.pause(&mut pause),
                // The deadline holds even if every poll finds completions.
                Some(found) => {
                    let now = self.step(|poller| poller.count(found));
                    now.is_some_and(|now| deadline.is_over(now))
                }
            };
            if is_late {
                break self.step(|poller| done(&poller.engine));
            }
        };
        self.run_afterwards();
        is_done
    }

    /// Waits for one operation.
    #[inline]
    fn wait_for(&mut self, id: Id, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |engine| !engine.flight.is_pending(id))
    }

    /// Waits for an operation on borrowed buffers, up to `timeout` or the channel's own, and aborts it after that.
    fn wait_or_abort(&mut self, at: u32, id: Id, timeout: Option<Duration>) {
        let timeout = timeout.or_else(|| self.step(|poller| poller.config.timeout));
        if !self.wait_for(id, timeout) {
            self.abort_late(at, id, timeout);
        }
        // The poll before the wait may have ended it.
        self.run_afterwards();
    }

    /// Takes the ladder from its second step, for all operations in flight on a member.
    fn abort(&mut self, at: u32, reason: DownReason) {
        let drain_timeout = self.step(|poller| {
            let flushes = poller.engine.flush_at(at, reason);
            flushes.then_some(poller.config.drain_timeout)
        });
        let is_flushed = drain_timeout.is_some()
            && self.wait_until(drain_timeout, |engine| engine.is_idle_at(at));
        if !is_flushed {
            self.step(|poller| poller.engine.destroy_now(at, reason));
        }
        self.finish_destroying();
    }

    /// Aborts a member if it has borrowed buffers in flight. Operations that have completed by now
    /// are no reason to.
    fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        let has_borrowed = self.step(|poller| {
            if poller.engine.flight.has_borrowed_in_flight(at) {
                poller.engine.dispatch_all();
            }
            poller.engine.flight.has_borrowed_in_flight(at)
        });
        if has_borrowed {
            self.abort(at, reason);
            if self.step(|poller| poller.engine.flight.has_borrowed_in_flight(at)) {
                abort_with(format_args!(
                    "borrowed buffers are in flight on a queue pair that is gone: aborting the process"
                ));
            }
        }
    }

    /// The same after an operation on borrowed buffers did not complete within its timeout.
    fn abort_late(&mut self, at: u32, id: Id, timeout: Option<Duration>) {
        let queue = self.step(|poller| poller.engine.flight.borrowed_in_flight(id));
        let reason = DownReason::TimedOut {
            // It is in flight: nothing was polled since.
            queue: queue.unwrap_or(Queue::Send),
            after: timeout.unwrap_or_default(),
        };
        self.abort_borrowed(at, reason);
    }

    #[cold]
    fn pause(&mut self, pause: &mut Pause) -> bool {
        let now = pause.read_clock();
        if let Some(now) = now {
            self.step(|poller| poller.check_peers(now));
        }
        self.finish_closing();
        self.step(|poller| poller.sleep(now, pause, Duration::MAX))
    }

    /// Destroys the queue pairs that are to be destroyed: nobody else can, before this wait ends.
    fn finish_closing(&mut self) {
        while let Some(closing) = self.step(|poller| poller.engine.next_closing()) {
            let closed = closing.destroy();
            // It belongs to this engine, so this does not fail.
            let _finished = self.step(|poller| poller.engine.finish_close(closed));
        }
        self.run_afterwards();
    }
}

impl Steps for Poller {
    #[inline(always)]
    fn step<R>(&mut self, then: impl FnOnce(&mut Self) -> R) -> R {
        then(self)
    }
}

impl Poller {
    /// A pause in a wait, for `longest` at most if it sleeps. Returns whether the wait goes on.
    pub(crate) fn sleep(
        &mut self,
        now: Option<Instant>,
        pause: &mut Pause,
        longest: Duration,
    ) -> bool {
        // Blocks may come back while no completion does.
        let needs_blocks = self.engine.has_shared() && self.engine.refill();
        let longest = longest.min(longest_sleep(needs_blocks));
        let channel = self.completion_channel.as_ref();
        let sleeps = self.is_armed && channel.is_some();
        let paused = pause.after_empty(
            now,
            self.engine.queue(),
            channel,
            &mut self.is_armed,
            longest,
        );
        // It has slept, if it was armed before and is not any more.
        if let Some(begun) = now.filter(|_| sleeps && !self.is_armed) {
            self.engine.counters.sleep(begun.elapsed());
        }
        match paused {
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

/// How often it is looked whether a device is removed.
const LOOK: Duration = Duration::from_millis(1);
