//! Waiting for loans, and for the end of the peer.

use std::time::{Duration, Instant};

use programs::{Failure, Frames};
use verbs_channel::request::List;
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{RejectReason, ScopedPendingWork};

use crate::protocol::{out_of_order, receive_message};

/// How often the peer is checked while nothing happens.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for loans, and for the peer: the TCP connection shows when it ends, and why.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    frames: &'a Frames,
    limit: Duration,
}

impl<'a> Watch<'a> {
    pub(crate) const fn new(frames: &'a Frames, limit: Duration) -> Self {
        Self { frames, limit }
    }

    /// Waits for a loan, and returns the outcome and the elements.
    pub(crate) fn wait<L: List>(
        &self,
        mut loan: ScopedPendingWork<'_, '_, L>,
    ) -> Result<(WorkSuccess, L), Failure> {
        let start = Instant::now();
        loop {
            match loan.wait_timeout(LOOK) {
                Ok((Ok(success), list)) => return Ok((success, list)),
                // The peer's own error, or its end, is more precise than a timeout of the device.
                Ok((Err(error), _)) => return self.look().and(Err(error.into())),
                Err(pending) => loan = pending,
            }
            self.look()?;
            if start.elapsed() >= self.limit {
                let limit = self.limit.as_secs();
                return Err(Failure::new(format!(
                    "the peer is stuck: no block moved for {limit} s (--timeout waits longer)"
                )));
            }
        }
    }

    /// The result of a post. If it was rejected, the peer may have sent a better reason than the
    /// channel's.
    pub(crate) fn posted<T>(&self, posted: Result<T, RejectReason>) -> Result<T, Failure> {
        posted.or_else(|reason| self.look().and(Err(reason.into())))
    }

    /// Only a failure is sent while blocks move.
    fn look(&self) -> Result<(), Failure> {
        if !self.frames.peer().has_sent()? {
            return Ok(());
        }
        receive_message(self.frames).and_then(|_message| Err(out_of_order()))
    }
}
