//! How things end: the ladder, each step bounded.
//!
//! ```text
//! wait for the completion ── in time ──────────────────────────────► success, or a work error
//!   │ deadline, a scope that failed
//!   ▼
//! queue pair to ERROR, drain the flushes ── within drain_timeout ──► aborted, or flushed
//!   │ not flushed, or the queue cannot be polled
//!   ▼
//! destroy the queue pair ── the device touches its buffers no more ──► aborted
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

use verbs_core::{Error, ErrorChain, QueuePair, WorkSuccess};

use super::Engine;
use super::leak::Leak;
use super::member::Member;
use super::slots::Id;
use crate::engine::Kept;
use crate::error::{DownReason, Queue, TransportError};

impl Engine {
    /// Takes the ladder from its second step, foreverything that is in flight on a member.
    pub(crate) fn abort(&mut self, at: u32, reason: DownReason) {
        if self.flush(at, reason) {
            let drain_timeout = Some(self.waits.drain_timeout);
            if self.wait_until(drain_timeout, |engine| engine.is_idle(at)) {
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

    /// [`destroy`](Self::destroy) forevery member.
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

    /// Destroys a queue pair: the device touches its buffers no more. Its work is
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
            self.fail(at, id, unanswered);
            next = self.slots.after(id);
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
            next = self.slots.after(id);
            let kept = self.slots.take_buffer_in_flight(id);
            buffers += kept.map_or(0, Kept::leak);
        }
        let leak = Leak { buffers, error };
        match &mut self.leaks {
            Some(held) => held.push(leak),
            None => log_error(format_args!("{leak}")),
        }
    }

    /// A scope ends well: waits for its operations, up to the channel's timeout. The first failure
    /// among those whose outcome was not taken is the scope's.
    #[inline]
    pub(crate) fn finish_scope(&mut self, at: u32, end: ScopeEnd) -> Result<(), TransportError> {
        if !self.is_well(at) {
            self.drive_discarding();
        }
        if !end.forgot_handles && self.is_well(at) {
            return Ok(());
        }
        self.finish_scope_slowly(at, end)
    }

    /// Nothing is in flight on a member, and nothing has failed.
    #[inline]
    fn is_well(&self, at: u32) -> bool {
        let member = self.members.get(at as usize);
        member.is_some_and(|member| member.is_idle() && member.down().is_none())
    }

    #[inline(never)]
    fn finish_scope_slowly(&mut self, at: u32, end: ScopeEnd) -> Result<(), TransportError> {
        let mut deadline = Deadline::new(self.waits.timeout);
        if end.began_idle && end.receives == Leftover::Awaited {
            // All that is in flight is the scope's.
            let has_ended = |engine: &Self| {
                let member = engine.members.get(at as usize);
                member.is_none_or(|member| member.is_idle() || member.down().is_some())
            };
            self.wait_until(deadline.left(), has_ended);
            if !end.forgot_handles && self.is_well(at) {
                return Ok(());
            }
        }
        let mut next = self.first(at);
        while let Some(id) = next {
            let is_awaited = match self.slots.borrowed_in_flight(id) {
                Some(Queue::Receive) => end.receives == Leftover::Awaited,
                Some(Queue::Send) => true,
                None => false,
            };
            if is_awaited && !self.wait_for(id, deadline.left()) {
                self.abort_borrowed(at, DownReason::TimedOut);
            }
            next = self.slots.after(id);
        }
        // The receives that were left over, if any.
        self.abort_borrowed(at, DownReason::Closed);
        self.end_scope(at, end.receives)
    }

    /// A scope ends whose closure was to take all outcomes: what it left is aborted.
    pub(crate) fn cut_scope(&mut self, at: u32) -> Result<(), TransportError> {
        self.drive();
        self.abort_borrowed(at, DownReason::Abandoned);
        self.end_scope(at, Leftover::Awaited)
    }

    /// A scope ends badly: what is left gets the drain timeout, receives alone get none.
    #[cold]
    pub(crate) fn abandon_scope(&mut self, at: u32) {
        let mut deadline = Deadline::new(Some(self.waits.drain_timeout));
        let mut next = self.first(at);
        while let Some(id) = next {
            let is_outgoing = self.slots.borrowed_in_flight(id) == Some(Queue::Send);
            if is_outgoing && !self.wait_for(id, deadline.left()) {
                break;
            }
            next = self.slots.after(id);
        }
        self.abort_borrowed(at, DownReason::Abandoned);
        // The closure's own failure is reported; the channel itself says that it is down.
        let _reported_by_down_reason = self.end_scope(at, Leftover::Awaited);
    }

    fn first(&self, at: u32) -> Option<Id> {
        let member = self.members.get(at as usize)?;
        self.slots.first(&member.slots)
    }

    /// Waits for one operation.
    #[inline]
    pub(crate) fn wait_for(&mut self, id: Id, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |engine| engine.slots.is_done(id) != Some(false))
    }

    /// Waits for an operation of a scope, up to the channel's timeout, and takes its outcome.
    #[inline(never)]
    pub(crate) fn wait_borrowed(&mut self, at: u32, id: Id) -> Result<WorkSuccess, TransportError> {
        if !self.wait_for(id, self.waits.timeout) {
            self.abort_borrowed(at, DownReason::TimedOut);
        }
        let taken = self.take_borrowed(at, id);
        taken.unwrap_or(Err(TransportError::Taken))
    }

    /// Whether nothing is in flight on a member.
    #[inline]
    pub(crate) fn is_idle(&self, at: u32) -> bool {
        let member = self.members.get(at as usize);
        member.is_none_or(Member::is_idle)
    }

    /// Aborts a member if it has borrowed buffers in flight.
    pub(crate) fn abort_borrowed(&mut self, at: u32, reason: DownReason) {
        let member = self.members.get(at as usize);
        if member.is_some_and(|member| self.slots.has_borrowed_in_flight(&member.slots)) {
            self.abort(at, reason);
        }
    }

    /// Takes the outcomes that were not taken, all of which are there; the first failure among them.
    fn end_scope(&mut self, at: u32, receives: Leftover) -> Result<(), TransportError> {
        let mut first: Option<(TransportError, u32)> = None;
        let mut next = self.first(at);
        while let Some(id) = next {
            next = self.slots.after(id);
            let Some(queue) = self.slots.borrowed(id) else {
                continue;
            };
            // A receive that ends with its connection has not failed, if that is what was asked for.
            let is_left = |error| {
                receives == Leftover::Closed
                    && queue == Queue::Receive
                    && matches!(error, TransportError::Aborted(_))
            };
            if let Some((error, when)) = self.slots.failure(id)
                && !is_left(error)
                && first.is_none_or(|(_, earliest)| when < earliest)
            {
                first = Some((error, when));
            }
            let _taken = self.release(at, id);
        }
        first.map_or(Ok(()), |(error, _)| Err(error))
    }
}

/// How a scope ends well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScopeEnd {
    /// Nothing was in flight when it began.
    pub(crate) began_idle: bool,
    /// Handles were forgotten, so that completed operations may have their slots still.
    pub(crate) forgot_handles: bool,
    /// What becomes of its receives.
    pub(crate) receives: Leftover,
}

/// What becomes of receives that are in flight when a scope ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// They are waited for.
    Awaited,
    /// The connection is closed.
    Closed,
}

/// Says on stderr why the process is about to be aborted.
fn abort_line(why: fmt::Arguments<'_>) {
    let line = format!("verbs-channel: {why}\n");
    // There is nothing left to do if that fails.
    let _written = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// Alive while operations on borrowed buffers are ended. No code there panics; if it did, to unwind
/// would give the buffers back while the device has them, so the process is aborted.
pub(crate) struct AbortOnUnwind;

impl AbortOnUnwind {
    /// All of them have ended.
    #[inline(always)]
    pub(crate) const fn defuse(self) {
        let _finished = ManuallyDrop::new(self);
    }
}

impl Drop for AbortOnUnwind {
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

    /// The time that is left; `None` forever.
    #[inline]
    fn left(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = Instant::now();
        let at = match self.at {
            Some(at) => at,
            // Beyond the clock is forever.
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
            // when the device is done with its buffers.
            let object = "the queue pair";
            self.closed(at, Err(Error::InUse { object }));
        }
        self.destroy_all(DownReason::Closed);
        for leak in self.leaks.iter_mut().flatten() {
            log_error(format_args!("{leak}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::{env, process};

    use super::*;

    const ROLE: &str = "VERBS_TEST_ROLE";

    #[test]
    fn a_panic_before_borrowed_operations_have_ended_aborts_the_process() {
        if env::var(ROLE).is_ok() {
            let unwound = catch_unwind(|| {
                let _ends = AbortOnUnwind;
                panic!("on purpose");
            });
            // Nobody may come here: whoever does has the buffers back.
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
