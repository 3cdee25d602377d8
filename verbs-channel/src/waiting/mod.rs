//! Waiting: what a channel or a group adds to its engine.
//!
//! A wait polls until its operation has completed. After a poll that finds nothing, it reads the clock,
//! checks the peers now and then, and spins, yields or sleeps. Polls that find completions are
//! [counted](Poller::count): however busy a channel is, the clock is read and its peers are checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::WorkSuccess;
use verbs_core::completion::CompletionChannel;

use crate::channel_id::ChannelId;
use crate::engine::{Engine, Id};
use crate::error::DownReason;
pub(crate) use abort::Ladder;
pub use aborts::AbortHandle;
pub(crate) use aborts::Aborts;
pub(crate) use deadline::Deadline;
pub(crate) use guard::AbortOnUnwind;
pub(crate) use lease::Lend;
pub use pause::PollStrategy;
pub(crate) use pause::{Pause, Paused, longest_sleep};
pub(crate) use scope::{EndScope, Leftover, ScopeEnd};
pub(crate) use wait::Steps;

mod abort;
mod aborts;
mod blocking;
mod close;
mod deadline;
mod guard;
mod lease;
mod outcome;
mod pause;
mod scope;
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
        let (success, ()) = self.engine.poll_for(at, id, |_| Some(()))?;
        Some(*success)
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
