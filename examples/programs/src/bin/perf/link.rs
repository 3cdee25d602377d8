//! A layer's connections to the peer, as the measured loops use them.

use std::time::Duration;

use programs::Failure;

/// Progress of each connection.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Operations of ours that were posted, and of these, how many have completed.
    pub(crate) posted: Vec<u64>,
    pub(crate) sent: Vec<u64>,
    /// Messages of the peer that have arrived.
    pub(crate) received: Vec<u64>,
}

/// Connections that are polled.
pub(crate) trait Link {
    /// Posts the operation with this number on a connection. Unless it is signalled, it counts as
    /// completed when a later one completes.
    fn post(&mut self, conn: usize, number: u64, signaled: bool) -> Result<(), Failure>;

    /// Polls once, and counts what has completed. Receives are posted again. `false` if nothing has.
    fn poll(&mut self, counts: &mut Counts) -> Result<bool, Failure>;

    /// Nothing has completed: sleeps until something may have, if that was asked for. `false` if
    /// nothing has for so long.
    fn sleep(&mut self, counts: &Counts, at_most: Duration) -> Result<bool, Failure>;
}

impl Counts {
    pub(crate) fn new(qps: usize) -> Self {
        let none = || vec![0; qps];
        Self {
            posted: none(),
            sent: none(),
            received: none(),
        }
    }

    pub(crate) fn in_flight(&self, conn: usize) -> u64 {
        self.posted[conn] - self.sent[conn]
    }

    /// Whether any operation is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.posted != self.sent
    }
}
