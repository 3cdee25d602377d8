//! Blocking operations: posted and waited for, with borrows that end when the call returns.
#![expect(
    unsafe_code,
    reason = "keeps borrows until the device is done with them"
)]

use std::time::Duration;

use verbs_core::WorkSuccess;

use super::guard::AbortOnUnwind;
use super::{Ladder as _, Poller, Steps as _};
#[expect(unused_imports, reason = "named in documentation")]
use crate::engine::Engine;
use crate::engine::{Id, Reservation, SlotBuffer};
use crate::error::{Error, Result, TransportError};
use crate::request::{Request, ScatterList};

impl Poller {
    /// Posts a request and waits for it. Its success is the [last success](Engine::last_success) if
    /// this returns `Ok(None)`.
    #[inline(always)]
    fn run_to_end<W: Request>(
        &mut self,
        at: u32,
        request: W,
        timeout: Option<Duration>,
    ) -> Result<Option<WorkSuccess>> {
        let (mut list, options) = request.into_parts();
        let guard = AbortOnUnwind;
        // SAFETY: `list` and the memory that it borrows live until this returns. `finish` returns only
        // when the device is done with that memory. If this panics, the process is aborted.
        let posted = unsafe {
            self.engine.post_at::<W, true>(
                Reservation::send(at),
                &mut list,
                options,
                SlotBuffer::none,
            )
        };
        let ended = match posted {
            Ok(posted) => self.finish(Reservation::send(at), posted.id, timeout),
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        ended
    }

    #[inline(always)]
    pub(crate) fn run<W: Request>(
        &mut self,
        at: u32,
        request: W,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        let ended = self.run_to_end(at, request, timeout)?;
        self.success(ended)
    }

    /// [`run`](Self::run) without a copy of the success.
    #[inline(always)]
    pub(crate) fn run_blocking<W: Request>(
        &mut self,
        at: u32,
        request: W,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.run_to_end(at, request, timeout).map(drop)
    }

    #[inline(always)]
    pub(crate) fn run_batch<W: Request, const N: usize>(
        &mut self,
        at: u32,
        requests: &mut [W; N],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let reservation = Reservation::send(at).times(N)?;
        let guard = AbortOnUnwind;
        // SAFETY: `requests` and the memory that they borrow live until this returns. `finish`
        // returns only when the device is done with it.
        let posted = unsafe { self.engine.post_batch_at::<W, N>(reservation, requests) };
        let ended = match posted {
            Ok(posted) => self.finish(reservation, posted.id, timeout).map(drop),
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        ended
    }

    #[inline(always)]
    pub(crate) fn run_receive<L: ScatterList>(
        &mut self,
        at: u32,
        mut list: L,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess> {
        let guard = AbortOnUnwind;
        // SAFETY: `list` and the memory that it borrows live until this returns. `finish` returns
        // only when the device is done with it.
        let posted = unsafe {
            self.engine.post_receive_at::<_, true>(
                Reservation::receive(at),
                &mut list,
                SlotBuffer::none,
            )
        };
        let ended = match posted {
            Ok(posted) => self.finish(Reservation::receive(at), posted.id, timeout),
            Err(reason) => Err(self.rejected(reason).into()),
        };
        guard.defuse();
        self.success(ended?)
    }

    /// Waits for an operation on borrowed buffers, and aborts it after `timeout`, or after the
    /// channel's own timeout. `None` is the [last success](Engine::last_success).
    #[inline(always)]
    fn finish(
        &mut self,
        reservation: Reservation,
        id: Id,
        timeout: Option<Duration>,
    ) -> Result<Option<WorkSuccess>> {
        // Before the poll, whose success is the last one that was polled.
        self.count(1);
        // Most operations complete within a poll or two.
        if self.engine.poll_for(reservation, id) {
            return Ok(None);
        }
        self.finish_slowly(reservation.member, id, timeout)
            .map(Some)
    }

    #[inline(never)]
    fn finish_slowly(&mut self, at: u32, id: Id, timeout: Option<Duration>) -> Result<WorkSuccess> {
        let timeout = timeout.or(self.config.timeout);
        if !self.wait_for(id, timeout) {
            self.abort_late(at, id, timeout);
        }
        // The poll before the wait may have ended it.
        self.run_afterwards();
        match self.engine.release(at, id) {
            Some(Ok(success)) => Ok(success),
            Some(Err(error)) => Err(Error::Transport(error)),
            None => Err(Error::Transport(TransportError::CLOSED)),
        }
    }

    #[inline(always)]
    fn success(&self, ended: Option<WorkSuccess>) -> Result<WorkSuccess> {
        let success = match &ended {
            Some(success) => Some(success),
            None => self.engine.last_success(),
        };
        success
            .copied()
            .ok_or(Error::Transport(TransportError::CLOSED))
    }
}
