//! Blocking operations: posted, waited for, and done when they return.
#![expect(unsafe_code, reason = "keeps borrows until the card is done with them")]

use std::time::Duration;

use verbs_core::WorkSuccess;

use crate::engine::Engine;
use crate::error::{DownReason, Error, Result, TransportError};
use crate::list::ScatterList;
use crate::slots::{Id, Keeper};
use crate::work::Work;

impl Engine {
    #[inline]
    pub(crate) fn run<W: Work>(
        &mut self,
        at: u32,
        mut work: W,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        // SAFETY: `work` and what it borrows live until this returns, and `finish` returns only when
        // the card is done with it.
        let id = unsafe { self.post(at, Keeper::Call, &mut work) }?;
        self.finish(id, timeout)
    }

    pub(crate) fn run_batch<W: Work, const N: usize>(
        &mut self,
        at: u32,
        mut works: [W; N],
        timeout: Option<Duration>,
    ) -> Result<()> {
        // SAFETY: as for `run`.
        let id = unsafe { self.post_batch(at, Keeper::Call, &mut works) }?;
        self.finish(id, timeout).map(drop)
    }

    pub(crate) fn run_receive<L: ScatterList>(
        &mut self,
        at: u32,
        mut list: L,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        // SAFETY: as for `run`.
        let id = unsafe { self.post_receive(at, Keeper::Call, &mut list) }?;
        self.finish(id, timeout)
    }

    /// Waits for an operation on borrowed buffers, and aborts it if its time is up.
    #[inline]
    fn finish(&mut self, id: Id, timeout: Option<Duration>) -> Result<WorkSuccess> {
        if !self.wait_for(id, timeout) {
            self.abort_scoped(DownReason::TimedOut);
        }
        match self.slots.release(id) {
            Some((_, Ok(success))) => Ok(success),
            Some((_, Err(error))) => Err(Error::Transport(error)),
            None => Err(Error::Transport(TransportError::CLOSED)),
        }
    }
}
