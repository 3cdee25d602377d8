//! Transfers, carried out: posted, waited for, and quiesced.
//!
//! ```text
//! post what has room, wait ───── all ended before the deadline ──► returns
//!   │ the deadline passes, or a panic
//!   ▼
//! its channels to ERR, drain ─── in drain_timeout ───────────────► aborted, or a work error
//!   │ not flushed
//!   ▼
//! destroy their queue pairs ─────────────────────────────────────► aborted, or stuck
//!
//! Nothing of this is deferred, since the memory is handed back at once.
//! ```

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Aborts, Deadline, Poller, Steps as _};
use crate::engine::{Engine, Transfer, TransferError};
use crate::error::DownReason;

/// A transfer that is being carried out: quiesced when this is dropped, by a panic too.
struct Running<'t> {
    poller: &'t mut Poller,
    transfer: &'t mut Transfer,
    timeout: Option<Duration>,
    deadline: Deadline,
}

impl Poller {
    // `each` is called while the engine is borrowed. It does not lead to it: `self` is borrowed mutably from the caller,
    // of whose data `each` is, and a scope, which is shared, has no transfers.
    /// Carries out a transfer, until `deadline` or for the channel's own timeout. `each` gets the index of each
    /// operation that has ended, and whether it has succeeded.
    pub(crate) fn transfer(
        &mut self,
        transfer: &mut Transfer,
        deadline: Option<Instant>,
        each: &mut dyn FnMut(usize, bool),
    ) -> Result<(), TransferError> {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.or(self.config.timeout);
        let deadline = Deadline::after(timeout);
        transfer.begin();
        let mut running = Running {
            poller: self,
            transfer,
            timeout,
            deadline,
        };
        running.run(each);
        drop(running);
        debug_assert!(transfer.has_ended(), "it is quiesced");
        let result = transfer.result();
        if result.is_err() {
            // Leases that the driver has refused to end, end with their queue pairs.
            self.engine.end_failed_leases();
            self.finish_destroying();
        }
        result
    }
}

impl Running<'_> {
    /// Until all have ended, or the deadline has passed. It reads the clock in each round.
    fn run(&mut self, each: &mut dyn FnMut(usize, bool)) {
        let deadline = self.deadline;
        let mut posts = 0;
        loop {
            let now = Instant::now();
            if deadline.is_over(now) {
                return;
            }
            self.poller.check_peers(now);
            self.poller.run_afterwards();
            self.poller
                .step_transfer(self.transfer, deadline, &mut posts, None, each);
            if self.transfer.has_ended() {
                return;
            }
            let transfer = &*self.transfer;
            let can_step = |engine: &Engine| transfer.can_step(engine);
            if !self.poller.wait_before(deadline, can_step) {
                return;
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.transfer.has_ended() && !thread::panicking() {
            return;
        }
        let after = self.timeout.unwrap_or_default();
        self.poller.shut_down_transfer(self.transfer, after);
        let drained_by = Deadline::after(Some(self.poller.config.drain_timeout));
        self.poller.drain_transfer(self.transfer, after, drained_by);
        self.poller.end_transfer(self.transfer);
        // A panic leaves it to this to end the leases, if an operation has failed.
        let _failed = self.transfer.result();
    }
}

/// A round of a transfer, and the ladder for the channels that have operations of it in flight.
impl Poller {
    /// Takes the outcomes that are there, and posts what there is room for. It reads the clock at some of
    /// the posts, which are slow on some devices: a round ends when it is time to check the peers, or when the channel is
    /// aborted or all of these.
    pub(crate) fn step_transfer(
        &mut self,
        transfer: &mut Transfer,
        deadline: Deadline,
        posts: &mut u16,
        all: Option<&Aborts>,
        each: &mut dyn FnMut(usize, bool),
    ) {
        let round = self.next_check().into_iter().chain(deadline.at()).min();
        let aborts = Arc::clone(&self.aborts);
        let mut may_post = |next: u16| {
            if aborts.are_asked() || all.is_some_and(Aborts::are_asked) {
                return false;
            }
            *posts += next;
            let reads_clock = *posts >= POSTS;
            *posts %= POSTS;
            !reads_clock || round.is_none_or(|end| Instant::now() < end)
        };
        transfer.step(&mut self.engine, each, &mut may_post);
    }

    /// Takes the channels down, and posts nothing more.
    pub(crate) fn shut_down_transfer(&mut self, transfer: &mut Transfer, after: Duration) {
        if !self.engine.is_in_child() {
            // Operations that have completed by now are no reason to take a channel down.
            self.engine.drive();
        }
        transfer.take_all_done(&mut self.engine);
        for (channel, queue) in transfer.in_flight() {
            let reason = DownReason::TimedOut { queue, after };
            // It is one of this engine: an operation is in flight on it.
            let _flushed = self.engine.flush(channel, reason);
        }
        transfer.reject_waiting(&self.engine);
    }

    /// Waits for the flushes, and destroys queue pairs that are not flushed in time.
    pub(crate) fn drain_transfer(
        &mut self,
        transfer: &mut Transfer,
        after: Duration,
        drained_by: Deadline,
    ) {
        self.wait_before(drained_by, |engine| transfer.is_quiesced(engine));
        transfer.take_all_done(&mut self.engine);
        for (channel, queue) in transfer.in_flight() {
            let reason = DownReason::TimedOut { queue, after };
            if let Some(at) = self.engine.place(channel) {
                self.engine.destroy_now(at, reason);
            }
        }
        // From now on, a device has the drain timeout to be removed.
        self.run_afterwards();
    }

    /// All operations have ended after this.
    pub(crate) fn end_transfer(&mut self, transfer: &mut Transfer) {
        self.finish_destroying();
        transfer.take_all_done(&mut self.engine);
        // On queue pairs that the program has taken out to destroy them.
        transfer.end_in_flight();
    }
}

/// How many requests are posted between reads of the clock.
const POSTS: u16 = 8;
