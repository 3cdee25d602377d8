//! Waiting for completions, with a bound.

use std::thread;
use std::time::{Duration, Instant};

use verbs_core::{CompletionQueue, PollSlot, WorkSuccess};

use crate::{Failure, Peer};

/// The number of empty polls between two readings of the clock.
const SPINS: u32 = 1024;

/// A timeout of silence: reads the clock only while nothing happens.
#[derive(Debug)]
pub struct Patience<'p> {
    limit: Duration,
    peer: Option<&'p Peer>,
    spins: u32,
    since: Option<Instant>,
}

impl<'p> Patience<'p> {
    /// Ends after a silence of `limit`, or when `peer` is gone, if there is one.
    #[must_use]
    pub const fn new(limit: Duration, peer: Option<&'p Peer>) -> Self {
        Self {
            limit,
            peer,
            spins: 0,
            since: None,
        }
    }

    /// Something happened: the timeout starts again.
    #[inline]
    pub const fn renew(&mut self) {
        self.spins = 0;
        self.since = None;
    }

    /// Nothing happened.
    ///
    /// # Errors
    ///
    /// The limit is reached, or the peer is gone.
    #[inline]
    pub fn idle(&mut self) -> Result<(), Failure> {
        self.spins += 1;
        if self.spins < SPINS {
            return Ok(());
        }
        self.spins = 0;
        self.look()
    }

    #[cold]
    fn look(&mut self) -> Result<(), Failure> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.limit {
            return Err(self.over());
        }
        if let Some(peer) = self.peer {
            peer.still_there()?;
        }
        // The process that makes it happen may need this processor.
        thread::yield_now();
        Ok(())
    }

    /// The failure when the limit is reached.
    #[must_use]
    pub fn over(&self) -> Failure {
        let limit = self.limit.as_secs();
        Failure::new(format!(
            "no completion for {limit} s: the peer is gone, stuck or very slow (--timeout waits longer)"
        ))
    }
}

/// Polls a queue that only one thread polls.
#[derive(Debug)]
pub struct Waiter<'a> {
    cq: &'a CompletionQueue,
    patience: Patience<'a>,
}

impl<'a> Waiter<'a> {
    /// Waits on `cq` with this timeout.
    #[must_use]
    pub const fn new(cq: &'a CompletionQueue, patience: Patience<'a>) -> Self {
        Self { cq, patience }
    }

    /// Waits for `count` completions, and passes each to `each`.
    ///
    /// # Errors
    ///
    /// A failed completion, an error of `each`, or a timeout.
    pub fn wait(
        &mut self,
        count: u64,
        mut each: impl FnMut(WorkSuccess) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut left = count;
        self.patience.renew();
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(slots.len());
            let completions = self.cq.poll(slots.get_mut(..room).unwrap_or_default())?;
            if completions.is_empty() {
                self.patience.idle()?;
                continue;
            }
            self.patience.renew();
            for completion in completions {
                left -= 1;
                each(completion.result()?)?;
            }
        }
        Ok(())
    }
}
