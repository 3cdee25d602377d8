//! Waiting: what a channel or a group adds to its engine.
//!
//! A wait polls until its operation has completed. After a poll that finds nothing, it reads the clock,
//! checks the peers now and then, and spins, yields or sleeps. Polls that find completions are
//! [counted](Poller::count): however busy a channel is, the clock is read and its peers are checked.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::WorkSuccess;
use verbs_core::completion::CompletionChannel;

use crate::channel_id::ChannelId;
use crate::engine::{Engine, Id, Ticket, abort_with};
use crate::error::{DownReason, RejectReason, TransportError};
pub use aborts::AbortHandle;
pub(crate) use aborts::Aborts;
pub use pause::PollStrategy;
pub(crate) use pause::{Deadline, Pause, Paused, longest_sleep};
pub(crate) use wait::Steps;

mod aborts;
mod outcome;
mod pause;
mod transfer;
mod wait;

/// How operations wait, and how long. Can be changed at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitConfig {
    pub(crate) strategy: PollStrategy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
}

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
    // When the peers are checked next; `None` for at once.
    next_check: Option<Instant>,
    // Completions that may be found before the clock is read.
    uncounted: usize,
    aborts: Arc<Aborts>,
}

/// How often waits and polls check the peers: that takes a system call.
const CHECK: Duration = Duration::from_millis(10);

/// How many completions are found between reads of the clock, which cost as much as several of them. Few
/// enough for a device that takes a millisecond for each.
const BUSY: usize = 32;

impl Poller {
    pub(crate) fn new(
        engine: Engine,
        config: WaitConfig,
        completion_channel: Option<CompletionChannel>,
    ) -> Self {
        let aborts = Arc::<Aborts>::default();
        let asks = Arc::clone(&aborts);
        engine.lender().on_failed(move || asks.ask());
        Self {
            engine,
            config,
            completion_channel,
            is_armed: false,
            next_check: None,
            uncounted: BUSY,
            aborts,
        }
    }

    /// The next wait arms the queue.
    pub(crate) const fn disarm(&mut self) {
        self.is_armed = false;
    }

    pub(crate) const fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.completion_channel.as_ref()
    }

    /// Polls for an operation on borrowed buffers: its success, if it is the first that completed.
    #[inline(always)]
    pub(crate) fn poll_borrowed(&mut self, at: u32, id: Id) -> Option<WorkSuccess> {
        self.count(1);
        let (success, ()) = self.engine.poll_for(at, id, |_| true, |_| ())?;
        Some(*success)
    }

    /// Waits for an operation on borrowed buffers that `guard` was made for, and aborts it after `timeout`, or after the
    /// channel's own timeout. When this returns, the device is done with them, also if the post was rejected.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        guard: AbortOnUnwind,
        at: u32,
        posted: Result<Ticket, RejectReason>,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        let ended = match posted {
            // Most operations complete within a poll or two.
            Ok(posted) => match self.poll_borrowed(at, posted.id) {
                Some(success) => Ok(success),
                None => self.finish_slowly(at, posted.id, timeout),
            },
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        ended
    }

    #[inline(never)]
    fn finish_slowly(
        &mut self,
        at: u32,
        id: Id,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        self.wait_or_abort(at, id, timeout);
        let outcome = self.engine.flight.release(id);
        outcome.map_or(Err(TransportError::CLOSED), |outcome| outcome.result)
    }

    /// Counts the completions that a poll has found. After [`BUSY`] of them it reads the clock, checks the
    /// peers if it is time, and returns the time.
    #[inline(always)]
    pub(crate) fn count(&mut self, found: usize) -> Option<Instant> {
        let (left, is_due) = self.uncounted.overflowing_sub(found);
        self.uncounted = left;
        is_due.then(|| self.read_clock())
    }

    #[cold]
    #[inline(never)]
    fn read_clock(&mut self) -> Instant {
        self.uncounted = BUSY;
        let now = Instant::now();
        self.check_peers(now);
        now
    }

    /// After a poll that found nothing: checks the peers if it is time.
    #[inline]
    pub(crate) fn check_peers_now(&mut self) {
        if self.engine.awaits_check() || self.aborts.are_asked() {
            self.check_peers(Instant::now());
        }
    }

    /// The same, and runs what the engine has left for afterwards.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        self.check_peers_now();
        self.run_afterwards();
    }

    /// When the peers are to be checked next; `None` if none is watched.
    fn next_check(&self) -> Option<Instant> {
        self.next_check.filter(|_| self.engine.awaits_check())
    }

    /// A handle that aborts this channel.
    pub(crate) fn abort_handle(&self, channel: ChannelId) -> AbortHandle {
        AbortHandle::new(Arc::clone(&self.aborts), channel)
    }

    /// Takes channels down that another thread aborts, or whose leases could not be ended.
    fn check_aborts(&mut self) {
        for channel in self.aborts.take() {
            // One that is gone needs no end.
            let _flushed = self.engine.flush(channel, DownReason::Closed);
        }
        self.engine.end_failed_leases();
    }

    /// Takes channels down that are to be, and checks the peers if it is time.
    pub(crate) fn check_peers(&mut self, now: Instant) {
        if self.aborts.are_asked() {
            self.check_aborts();
        }
        let is_due = self.engine.awaits_check()
            && (self.engine.has_leaving_peers() || self.next_check.is_none_or(|next| now >= next));
        if is_due {
            self.next_check = now.checked_add(CHECK);
            self.engine.check_watched(now);
        }
    }
}

/// Exists while operations on borrowed buffers are being ended. No code there panics. If it did,
/// unwinding would end the borrows while the device uses the buffers, so the process is aborted.
pub(crate) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// Call this when all of them have ended.
    #[inline(always)]
    pub(crate) const fn defuse(self) {
        let _finished = ManuallyDrop::new(self);
    }
}

impl Drop for AbortOnUnwind {
    #[cold]
    fn drop(&mut self) {
        abort_with(format_args!(
            "a panic while borrowed buffers were in flight: aborting the process"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::panic::catch_unwind;
    use std::process::Command;
    use std::{env, process};

    use super::*;

    const ROLE: &str = "VERBS_TEST_ROLE";

    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no other process")]
    fn a_panic_before_borrowed_operations_have_ended_aborts_the_process() {
        if env::var(ROLE).is_ok() {
            let unwound = catch_unwind(|| {
                let _ends = AbortOnUnwind;
                panic!("on purpose");
            });
            // Not reached: the borrows would have ended here.
            process::exit(if unwound.is_ok() { 2 } else { 3 });
        }
        AbortOnUnwind.defuse();
        let (_crate, module) = module_path!().split_once("::").unwrap();
        let name = "a_panic_before_borrowed_operations_have_ended_aborts_the_process";
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::{name}")])
            .args(["--nocapture", "--test-threads=1"])
            .env(ROLE, "unwinds")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        let signal = output.status.signal();
        assert_eq!(signal, Some(libc::SIGABRT), "{:?}: {words}", output.status);
        let line = "verbs-channel: a panic while borrowed buffers were in flight: aborting";
        assert!(words.contains(line), "{words}");
    }
}
