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

use verbs_core::Error;

use crate::engine::Engine;
use crate::error::{DownReason, TransportError};
use crate::wait::Pause;

impl Engine {
    /// Takes the ladder from its second step, for everything that is in flight on a member.
    pub(crate) fn abort(&mut self, at: u32, reason: DownReason) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        member.down.get_or_insert(reason);
        let flushes = member.qp.as_ref().is_some_and(|qp| qp.to_error().is_ok());
        if flushes {
            let mut pause = self.patience(Some(self.patience.drain_timeout));
            let is_empty = |engine: &Self| {
                let member = engine.members.get(at as usize);
                member.is_none_or(|member| member.posted == 0)
            };
            if self.wait_until(&mut pause, is_empty) {
                return;
            }
        }
        self.destroy(at, reason);
    }

    /// Takes the ladder from its third step.
    pub(crate) fn destroy(&mut self, at: u32, reason: DownReason) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        let reason = *member.down.get_or_insert(reason);
        let destroyed = member
            .qp
            .take()
            .map_or(Ok(()), verbs_core::QueuePair::close);
        if let Err(error) = destroyed {
            self.stuck(at, &error);
        }
        let mut ended = Vec::new();
        let aborted = TransportError::Aborted(reason);
        self.slots.abort(at, aborted, |claim| ended.push(claim));
        for claim in ended {
            self.uncount(claim);
        }
    }

    /// [`destroy`](Self::destroy) for every member.
    pub(crate) fn destroy_all(&mut self, reason: DownReason) {
        for at in 0..self.members.len() {
            self.destroy(u32::try_from(at).unwrap_or(u32::MAX), reason);
        }
    }

    /// The last step: the driver will not let go of a queue pair.
    fn stuck(&mut self, at: u32, error: &Error) {
        let borrowed = self
            .members
            .get(at as usize)
            .map_or(0, |member| member.scoped);
        if borrowed > 0 {
            log::error!(
                "cannot take {borrowed} borrowed buffers back from the card ({error}): aborting, \
                 since it may still write to them"
            );
            std::process::abort();
        }
        let leaked = self
            .slots
            .buffers_in_flight(at)
            .map(std::mem::forget)
            .count();
        log::error!("leaked {leaked} buffers that the card may still touch: {error}");
    }

    /// A scope ends well: waits for all of its work, up to the channel's deadline, and takes what
    /// is left of its results. The first failure among them is the scope's.
    pub(crate) fn finish_scope(&mut self) -> Result<(), TransportError> {
        let mut pause = self.patience(self.patience.timeout);
        if !self.wait_until(&mut pause, |engine| engine.scoped == 0) {
            self.abort_scoped(DownReason::TimedOut);
        }
        self.take_scoped()
    }

    /// A scope ends whose closure was to take all results: what it left is aborted.
    pub(crate) fn cut_scope(&mut self) -> Result<(), TransportError> {
        self.drive();
        self.abort_scoped(DownReason::Abandoned);
        self.take_scoped()
    }

    /// A scope ends badly: what is left gets the drain timeout, receives alone get none.
    pub(crate) fn abandon_scope(&mut self) {
        let mut pause: Pause = self.patience(Some(self.patience.drain_timeout));
        self.wait_until(&mut pause, |engine| engine.scoped_sends == 0);
        self.abort_scoped(DownReason::Abandoned);
        // Nobody is left to hear of failures; the channel itself says that it is down.
        let _nobody_listens = self.take_scoped();
    }

    /// Aborts every member that has borrowed buffers in flight.
    pub(crate) fn abort_scoped(&mut self, reason: DownReason) {
        for at in 0..self.members.len() {
            if self.members.get(at).is_some_and(|member| member.scoped > 0) {
                self.abort(u32::try_from(at).unwrap_or(u32::MAX), reason);
            }
        }
    }

    /// Takes the results that nobody took; the first failure among them.
    fn take_scoped(&mut self) -> Result<(), TransportError> {
        let mut result = Ok(());
        while let Some(id) = self.slots.first_scoped() {
            match self.release(id) {
                Some((_, Err(error), _)) if result.is_ok() => result = Err(error),
                Some(_) => {}
                None => break,
            }
        }
        result
    }
}

impl Drop for Engine {
    /// Destroys the queue pairs, and then releases the buffers. Nothing waits for a peer.
    fn drop(&mut self) {
        self.destroy_all(DownReason::Closed);
    }
}
