//! Blocking operations: posted and waited for, with borrows that end when the call returns.
#![expect(
    unsafe_code,
    reason = "keeps borrows until the device is done with them"
)]

use std::time::Duration;

use verbs_core::WorkSuccess;

use super::guard::AbortOnUnwind;
use super::{Ladder as _, Poller, Steps as _};
use crate::engine::{BufferOwner, Id};
use crate::error::TransportError;
use crate::request::{List, Op, Request};

impl Poller {
    /// Posts a request and waits for it.
    #[inline(always)]
    pub(crate) fn run<L: List>(
        &mut self,
        at: u32,
        mut list: L,
        op: Op,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        let guard = AbortOnUnwind;
        // SAFETY: `list` and the memory that it borrows live until this returns. `finish` returns only
        // when the device is done with that memory, and so does `rejected`, if the device may have a part of
        // the request. If this panics, the process is aborted.
        let posted = unsafe {
            self.engine
                .post_list(at, BufferOwner::Borrowed, &mut list, op)
        };
        let ended = match posted {
            Ok(posted) => self.finish(at, posted.id, timeout),
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        ended
    }

    #[inline(always)]
    pub(crate) fn run_batch<W: Request, const N: usize>(
        &mut self,
        at: u32,
        requests: &mut [W; N],
        timeout: Option<Duration>,
    ) -> Result<(), TransportError> {
        let guard = AbortOnUnwind;
        // SAFETY: `requests` and the memory that they borrow live until this returns. `finish`
        // returns only when the device is done with it, and so does `rejected`, if it may have a part.
        let posted = unsafe { self.engine.post_batch_at(at, requests) };
        let ended = match posted {
            Ok(posted) => self.finish(at, posted.id, timeout).map(drop),
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        ended
    }

    /// Waits for an operation on borrowed buffers, and aborts it after `timeout`, or after the
    /// channel's own timeout.
    #[inline(always)]
    fn finish(
        &mut self,
        at: u32,
        id: Id,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        // Most operations complete within a poll or two.
        match self.poll_borrowed(at, id) {
            Some(success) => Ok(success),
            None => self.finish_slowly(at, id, timeout),
        }
    }

    #[inline(never)]
    fn finish_slowly(
        &mut self,
        at: u32,
        id: Id,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        let timeout = timeout.or(self.config.timeout);
        if !self.wait_for(id, timeout) {
            self.abort_late(at, id, timeout);
        }
        // The poll before the wait may have ended it.
        self.run_afterwards();
        let outcome = self.engine.release(id);
        outcome.map_or(Err(TransportError::CLOSED), |outcome| outcome.result)
    }
}
