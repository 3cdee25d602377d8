//! How things end: the ladder, each step bounded.
//!
//! ```text
//! wait for the completion ── in time ──────────────────────────────► success, or a work error
//!   │ deadline, a scope that failed
//!   ▼
//! queue pair to ERROR, drain the flushes ── within drain_timeout ──► aborted, or flushed
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ── the card touches its buffers no more ──► aborted
//!   │ even that is refused
//!   ▼
//! buffers that are owned are leaked, and the log says so;
//! with buffers that are borrowed in the card's hands the process aborts
//! ```
//!
//! A borrow is released only at the end of the ladder.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use verbs_core::Error;

use crate::engine::Engine;
use crate::error::{DownReason, TransportError};
use crate::member::Member;
use crate::owned::Kept;
use crate::slots::{Id, Mark};

impl Engine {
    /// Takes the ladder from its second step, for everything that is in flight on a member.
    pub(crate) fn abort(&mut self, at: u32, reason: DownReason) {
        if self.flush(at, reason) {
            let is_idle = |engine: &Self| {
                let member = engine.members.get(at as usize);
                member.is_none_or(Member::is_idle)
            };
            if self.wait_until(Some(self.patience.drain_timeout), is_idle) {
                return;
            }
        }
        self.destroy(at, reason);
    }

    /// The second step alone, without the wait: what is in flight comes back flushed. If it cannot,
    /// the third step is taken.
    pub(crate) fn shut_down(&mut self, at: u32, reason: DownReason) {
        if !self.flush(at, reason) {
            self.destroy(at, reason);
        }
    }

    /// Moves a queue pair to ERROR; whether it flushes what is in flight.
    fn flush(&mut self, at: u32, reason: DownReason) -> bool {
        let Some(member) = self.members.get_mut(at as usize) else {
            return false;
        };
        member.go_down(reason);
        let flushes = member.qp().is_some_and(|qp| qp.to_error().is_ok());
        member.peer.let_go();
        flushes
    }

    /// Takes the ladder from its third step.
    pub(crate) fn destroy(&mut self, at: u32, reason: DownReason) {
        self.close(at, reason);
        self.end_what_is_closed();
    }

    /// [`destroy`](Self::destroy) for every member.
    pub(crate) fn destroy_all(&mut self, reason: DownReason) {
        for at in 0..self.members.len() {
            self.close(u32::try_from(at).unwrap_or(u32::MAX), reason);
        }
        self.end_what_is_closed();
    }

    /// Destroys a queue pair: the card touches its buffers no more. Its work is
    /// [ended](Self::end_what_is_closed) after that.
    pub(crate) fn close(&mut self, at: u32, reason: DownReason) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        let destroyed = member
            .give_up(reason)
            .map_or(Ok(()), verbs_core::QueuePair::close);
        member.peer.let_go();
        if let Err(error) = destroyed {
            self.stuck(at, error);
        }
    }

    /// Ends all work whose queue pair is gone, in one go however many they are.
    pub(crate) fn end_what_is_closed(&mut self) {
        // Some drivers leave completions of a queue pair that is gone: they say how work really
        // ended, and take up room that the next one counts on.
        let room = self.cq().min_capacity();
        for _ in 0..=room {
            if !matches!(self.poll(true), Ok(1..)) {
                break;
            }
        }
        let mut next = self.slots.first();
        while let Some(id) = next {
            next = self.slots.after(id);
            let member = self.slots.member(id.wr_id());
            let member = member.and_then(|at| self.members.get(at as usize));
            let Some(member) = member.filter(|member| member.qp().is_none()) else {
                continue;
            };
            let aborted = member
                .down()
                .map_or(TransportError::CLOSED, TransportError::Aborted);
            if let Some(claim) = self.slots.fail(id.wr_id(), aborted) {
                self.ended(claim);
            }
        }
    }

    /// The last step: the driver will not let go of a queue pair.
    fn stuck(&mut self, at: u32, error: Error) {
        if self.slots.borrowed_in_flight(at).is_some() {
            say(format_args!(
                "cannot take borrowed buffers back from the card ({error}): aborting, since it may \
                 still write to them"
            ));
            std::process::abort();
        }
        self.stuck += 1;
        let buffers = self.slots.buffers_in_flight(at).map(Kept::leak).sum();
        let leak = Leak { buffers, error };
        match &mut self.leaks {
            Some(held) => held.push(leak),
            None => say(format_args!("{leak}")),
        }
    }

    /// A scope ends well: waits for all of its work, up to the channel's timeout. The first failure
    /// among the results that nobody took is the scope's.
    #[inline]
    pub(crate) fn finish_scope(&mut self, at: u32, since: Mark) -> Result<(), TransportError> {
        // Nothing is in flight, and nothing has failed.
        let is_well = |engine: &Self| {
            let member = engine.members.get(at as usize);
            member.is_some_and(|member| member.is_idle() && member.down().is_none())
        };
        if !is_well(self) {
            self.drive_unheard();
        }
        if is_well(self) {
            self.slots.release_since(since);
            return Ok(());
        }
        self.finish_scope_slowly(since)
    }

    #[inline(never)]
    fn finish_scope_slowly(&mut self, since: Mark) -> Result<(), TransportError> {
        let mut deadline = Deadline::new(self.patience.timeout);
        let mut next = self.slots.first_since(since);
        while let Some(id) = next {
            if !self.wait_for(id, deadline.left()) {
                self.abort_scoped(DownReason::TimedOut);
            }
            next = self.slots.after(id);
        }
        self.take_scoped(since)
    }

    /// A scope ends whose closure was to take all results: what it left is aborted.
    pub(crate) fn cut_scope(&mut self, since: Mark) -> Result<(), TransportError> {
        self.drive();
        self.abort_scoped(DownReason::Abandoned);
        self.take_scoped(since)
    }

    /// A scope ends badly: what is left gets the drain timeout, receives alone get none.
    #[cold]
    pub(crate) fn abandon_scope(&mut self, since: Mark) {
        let mut deadline = Deadline::new(Some(self.patience.drain_timeout));
        let mut next = self.slots.first_since(since);
        while let Some(id) = next {
            if self.slots.is_outgoing(id) && !self.wait_for(id, deadline.left()) {
                break;
            }
            next = self.slots.after(id);
        }
        self.abort_scoped(DownReason::Abandoned);
        // Nobody is left to hear of failures; the channel itself says that it is down.
        let _nobody_listens = self.take_scoped(since);
    }

    /// Waits for one operation.
    #[inline]
    pub(crate) fn wait_for(&mut self, id: Id, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |engine| engine.slots.is_done(id) != Some(false))
    }

    /// Aborts every member that has borrowed buffers in flight.
    pub(crate) fn abort_scoped(&mut self, reason: DownReason) {
        while let Some(at) = self.slots.borrower() {
            self.abort(at, reason);
        }
    }

    /// Takes the results that nobody took, all of which are there; the first failure among them.
    fn take_scoped(&mut self, since: Mark) -> Result<(), TransportError> {
        let mut failure = None;
        while let Some(id) = self.slots.first_since(since) {
            failure = failure.or_else(|| self.slots.failure(id));
            if self.slots.release(id).is_none() {
                break;
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Buffers that had to be leaked, since the driver did not let go of their queue pair.
#[derive(Debug)]
pub struct Leak {
    buffers: usize,
    error: Error,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, error } = self;
        write!(
            f,
            "leaked {buffers} buffers that the card may still touch: {error}"
        )
    }
}

/// Says it to the log. A logger that panics ends no borrow: the panic stops here.
fn say(words: fmt::Arguments<'_>) {
    let said = catch_unwind(AssertUnwindSafe(|| log::error!("{words}")));
    if let Err(panic) = said {
        #[expect(clippy::mem_forget, reason = "dropping it may panic once more")]
        std::mem::forget(panic);
    }
}

/// A deadline for several waits; without a timeout it looks at no clock.
struct Deadline {
    timeout: Option<Duration>,
    at: Option<Instant>,
}

impl Deadline {
    const fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, at: None }
    }

    /// The time that is left; `None` for ever.
    #[inline]
    fn left(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = Instant::now();
        let at = match self.at {
            Some(at) => at,
            // Beyond the clock is for ever.
            None => *self.at.insert(now.checked_add(timeout)?),
        };
        Some(at.saturating_duration_since(now))
    }
}

impl Drop for Engine {
    /// Destroys the queue pairs, and then releases the buffers. Nothing waits for a peer.
    fn drop(&mut self) {
        self.destroy_all(DownReason::Closed);
        for leak in self.leaks.iter_mut().flatten() {
            say(format_args!("{leak}"));
        }
    }
}
