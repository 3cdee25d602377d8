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
//! owned buffers are leaked, and the log says so ───────────────────► stuck
//! with borrowed buffers in flight the process is aborted
//! ```
//!
//! A borrow is released only at the end of the ladder.

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use verbs_core::{Error, ErrorChain, QueuePair};

use crate::engine::Engine;
use crate::error::{DownReason, Queue, TransportError};
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
        self.dispatch_left();
        self.end_closed(at);
    }

    /// [`destroy`](Self::destroy) for every member.
    pub(crate) fn destroy_all(&mut self, reason: DownReason) {
        let all = 0..u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        for at in all.clone() {
            self.close(at, reason);
        }
        self.dispatch_left();
        for at in all {
            self.end_closed(at);
        }
    }

    /// Destroys a queue pair: the card touches its buffers no more. Its work is
    /// [ended](Self::end_closed) after that.
    pub(crate) fn close(&mut self, at: u32, reason: DownReason) {
        if let Some(qp) = self.take_qp(at, reason) {
            let destroyed = qp.close();
            self.closed(at, destroyed);
        }
    }

    /// The first half of [`close`](Self::close): the queue pair, to be destroyed.
    pub(crate) fn take_qp(&mut self, at: u32, reason: DownReason) -> Option<QueuePair> {
        let member = self.members.get_mut(at as usize)?;
        member.take_qp(reason)
    }

    /// The second half: a member's queue pair has been destroyed, or not.
    pub(crate) fn closed(&mut self, at: u32, destroyed: verbs_core::Result<()>) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        // After the queue pair: by then it has acknowledged what it received.
        member.peer.let_go();
        if member.is_closing() {
            self.open -= 1;
            self.stuck += u32::from(destroyed.is_err());
            member.closed(destroyed);
        }
    }

    /// Dispatches what is in the completion queue.
    ///
    /// Some drivers leave completions of a queue pair that is gone: they say how work really ended,
    /// and take up room that the next one counts on.
    pub(crate) fn dispatch_left(&mut self) {
        let room = self.cq().min_capacity();
        for _ in 0..=room {
            if !matches!(self.poll(true), Ok(1..)) {
                break;
            }
        }
    }

    /// Ends all work that is in flight on a member, if its queue pair is gone.
    pub(crate) fn end_closed(&mut self, at: u32) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        if member.qp().is_some() || member.is_closing() {
            return;
        }
        if let Some(error) = member.stuck_because() {
            self.leak(at, error);
        }
        let Some(member) = self.members.get(at as usize) else {
            return;
        };
        let unanswered = member.unanswered();
        let mut next = self.slots.first(&member.slots);
        while let Some(id) = next {
            let member = self.members.get(at as usize);
            next = member.and_then(|member| self.slots.after(&member.slots, id));
            if let Some(claim) = self.slots.fail(id.wr_id(), unanswered) {
                self.ended(claim);
            }
        }
    }

    /// The last step: the driver will not let go of a queue pair.
    fn leak(&mut self, at: u32, error: Error) {
        let Some(member) = self.members.get(at as usize) else {
            return;
        };
        if self.slots.has_borrowed_in_flight(&member.slots) {
            let error = ErrorChain::new(&error);
            let what = format!("cannot take borrowed buffers back from the card ({error})");
            // First, and past the lock of `std`: the log may go nowhere, or wait.
            abort_line(format_args!(
                "{what}: aborting the process, since the card may still write to them"
            ));
            log_error(format_args!(
                "{what}: aborting, since it may still write to them"
            ));
            std::process::abort();
        }
        let mut buffers = 0;
        let mut next = self.slots.first(&member.slots);
        while let Some(id) = next {
            next = self.slots.after(&member.slots, id);
            let kept = self.slots.take_buffer_in_flight(id);
            buffers += kept.map_or(0, Kept::leak);
        }
        let leak = Leak { buffers, error };
        match &mut self.leaks {
            Some(held) => held.push(leak),
            None => log_error(format_args!("{leak}")),
        }
    }

    /// A scope ends well: waits for all of its work, up to the channel's timeout. The first failure
    /// among the results that nobody took is the scope's.
    #[inline]
    pub(crate) fn finish_scope(
        &mut self,
        at: u32,
        since: Mark,
        leftover: Leftover,
    ) -> Result<(), TransportError> {
        // Nothing is in flight, and nothing has failed.
        let is_well = |engine: &Self| {
            let member = engine.members.get(at as usize);
            member.is_some_and(|member| member.is_idle() && member.down().is_none())
        };
        if !is_well(self) {
            self.drive_unheard();
        }
        if is_well(self)
            && let Some(member) = self.members.get_mut(at as usize)
        {
            self.slots.release_since(&mut member.slots, since);
            return Ok(());
        }
        self.finish_scope_slowly(at, since, leftover)
    }

    #[inline(never)]
    fn finish_scope_slowly(
        &mut self,
        at: u32,
        since: Mark,
        leftover: Leftover,
    ) -> Result<(), TransportError> {
        let mut deadline = Deadline::new(self.patience.timeout);
        let mut next = self.first_since(at, since);
        while let Some(id) = next {
            let is_left = leftover == Leftover::Closed
                && self.slots.queue_in_flight(id) == Some(Queue::Receive);
            if !is_left && !self.wait_for(id, deadline.left()) {
                self.abort_borrowed(at, DownReason::TimedOut);
            }
            next = self.after(at, id);
        }
        // The receives that were left over, if any.
        self.abort_borrowed(at, DownReason::Closed);
        self.take_scoped(at, since, leftover)
    }

    /// A scope ends whose closure was to take all results: what it left is aborted.
    pub(crate) fn cut_scope(&mut self, at: u32, since: Mark) -> Result<(), TransportError> {
        self.drive();
        self.abort_borrowed(at, DownReason::Abandoned);
        self.take_scoped(at, since, Leftover::Awaited)
    }

    /// A scope ends badly: what is left gets the drain timeout, receives alone get none.
    #[cold]
    pub(crate) fn abandon_scope(&mut self, at: u32, since: Mark) {
        let mut deadline = Deadline::new(Some(self.patience.drain_timeout));
        let mut next = self.first_since(at, since);
        while let Some(id) = next {
            let is_outgoing = self.slots.queue_in_flight(id) == Some(Queue::Send);
            if is_outgoing && !self.wait_for(id, deadline.left()) {
                break;
            }
            next = self.after(at, id);
        }
        self.abort_borrowed(at, DownReason::Abandoned);
        // The closure's own failure is reported; the channel itself says that it is down.
        let _reported_by_down_reason = self.take_scoped(at, since, Leftover::Awaited);
    }

    fn first_since(&self, at: u32, since: Mark) -> Option<Id> {
        let member = self.members.get(at as usize)?;
        self.slots.first_since(&member.slots, since)
    }

    fn after(&self, at: u32, id: Id) -> Option<Id> {
        let member = self.members.get(at as usize)?;
        self.slots.after(&member.slots, id)
    }

    /// Waits for one operation.
    #[inline]
    pub(crate) fn wait_for(&mut self, id: Id, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |engine| engine.slots.is_done(id) != Some(false))
    }

    /// Aborts a member if it has borrowed buffers in flight.
    pub(crate) fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        let member = self.members.get(at as usize);
        if member.is_some_and(|member| self.slots.has_borrowed_in_flight(&member.slots)) {
            self.abort(at, reason);
        }
    }

    /// Takes the results that nobody took, all of which are there; the first failure among them.
    fn take_scoped(
        &mut self,
        at: u32,
        since: Mark,
        leftover: Leftover,
    ) -> Result<(), TransportError> {
        self.slots.end_detached();
        let mut failure = None;
        while let Some(id) = self.first_since(at, since) {
            let ended = self.slots.failure(id);
            // A receive that ends with its connection has not failed, if that is what was asked for.
            let is_left = leftover == Leftover::Closed
                && matches!(ended, Some(TransportError::Aborted(_)))
                && matches!(self.slots.owner(id.wr_id()), Some((_, Queue::Receive)));
            if !is_left {
                failure = failure.or(ended);
            }
            if self.release(at, id).is_none() {
                break;
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// What becomes of receives that are in flight when a scope ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// They are waited for.
    Awaited,
    /// The connection is closed.
    Closed,
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
        let error = ErrorChain::new(error);
        write!(
            f,
            "leaked {buffers} buffers that the card may still touch: {error}"
        )
    }
}

/// Says on stderr why the process is about to be aborted.
fn abort_line(why: fmt::Arguments<'_>) {
    let line = format!("verbs-channel: {why}\n");
    // There is nothing left to do if that fails.
    let _written = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// Runs what ends operations on borrowed buffers. No code here panics; if it did, to unwind would
/// give the buffers back while the card has them, so the process is aborted.
#[inline(always)]
pub(crate) fn unwinding_aborts<T>(ends: impl FnOnce() -> T) -> T {
    let guard = AbortOnDrop;
    let ended = ends();
    let _finished = ManuallyDrop::new(guard);
    ended
}

struct AbortOnDrop;

impl Drop for AbortOnDrop {
    #[cold]
    fn drop(&mut self) {
        abort_line(format_args!(
            "a panic while borrowed buffers were in flight: aborting the process"
        ));
        std::process::abort();
    }
}

/// Writes to the log. A logger that panics ends no borrow: the panic stops here.
fn log_error(line: fmt::Arguments<'_>) {
    let logged = catch_unwind(AssertUnwindSafe(|| log::error!("{line}")));
    if let Err(panic) = logged {
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
        for at in 0..u32::try_from(self.members.len()).unwrap_or(u32::MAX) {
            // What was to be destroyed elsewhere, and was not before the group went: nothing tells
            // when the card is done with its buffers.
            let object = "the queue pair";
            self.closed(at, Err(Error::InUse { object }));
        }
        self.destroy_all(DownReason::Closed);
        for leak in self.leaks.iter_mut().flatten() {
            log_error(format_args!("{leak}"));
        }
    }
}
