//! Blocking operations: posted, waited for, and done when they return.
#![expect(unsafe_code, reason = "keeps borrows until the card is done with them")]

use std::time::Duration;

use verbs_core::WorkSuccess;

use crate::engine::Engine;
use crate::error::{DownReason, Error, Result, TransportError};
use crate::list::ScatterList;
use crate::slots::{Claim, Id};
use crate::teardown::unwinding_aborts;
use crate::work::Work;

impl Engine {
    #[inline(always)]
    pub(crate) fn run<W: Work>(
        &mut self,
        at: u32,
        work: W,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        let (mut list, said) = work.into_parts();
        unwinding_aborts(|| {
            // SAFETY: `list` and what it borrows live until this returns, and `finish` returns only when
            // the card is done with it.
            let posted = unsafe { self.post::<W>(Claim::send(at), &mut list, said) }?;
            self.finish(Claim::send(at), posted.id, timeout)
        })
    }

    pub(crate) fn run_batch<W: Work, const N: usize>(
        &mut self,
        at: u32,
        mut works: [W; N],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let claim = Claim::send(at).times(N)?;
        unwinding_aborts(|| {
            // SAFETY: as for `run`.
            let posted = unsafe { self.post_batch::<W, N>(claim, &mut works) }?;
            self.finish(claim, posted.id, timeout).map(drop)
        })
    }

    pub(crate) fn run_receive<L: ScatterList>(
        &mut self,
        at: u32,
        mut list: L,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        unwinding_aborts(|| {
            // SAFETY: as for `run`.
            let posted = unsafe { self.post_receive(Claim::receive(at), &mut list) }?;
            self.finish(Claim::receive(at), posted.id, timeout)
        })
    }

    /// Waits for an operation on borrowed buffers, and aborts it if its time is up: `timeout`, or
    /// the channel's own.
    #[inline(always)]
    fn finish(&mut self, claim: Claim, id: Id, timeout: Option<Duration>) -> Result<WorkSuccess> {
        // Most are done by now, or after a poll or two.
        match self.poll_for(claim, id) {
            Some(success) => Ok(success),
            None => self.finish_slowly(claim.member, id, timeout),
        }
    }

    #[inline(never)]
    fn finish_slowly(&mut self, at: u32, id: Id, timeout: Option<Duration>) -> Result<WorkSuccess> {
        if !self.wait_for(id, timeout.or(self.patience.timeout)) {
            self.abort_borrowed(at, DownReason::TimedOut);
        }
        match self.release(at, id) {
            Some(Ok(success)) => Ok(success),
            Some(Err(error)) => Err(Error::Transport(error)),
            None => Err(Error::Transport(TransportError::CLOSED)),
        }
    }
}
