//! The ping-pong itself: what is posted, and what its completions lead to.
#![expect(unsafe_code, reason = "posts work requests")]

use verbs_core::error::PostError;
use verbs_core::memory::Sge;
use verbs_core::{ReceiveWorkRequest, WorkSuccess};

use super::buffers::Buffers;
use super::link::Link;
use super::options::Options;
use super::queue::{Queue, RECEIVE, SEND, finish};
use crate::Failure;

/// A game in progress.
pub(super) struct Game<'b> {
    // First, so that it is destroyed before the memory that the device accesses.
    link: Link,
    buffers: &'b Buffers,
    options: &'b Options,
    posted: u32,
    received: u32,
    sent: u32,
    /// Operations that must complete before the next send: C's `pending`.
    underway: u64,
}

impl<'b> Game<'b> {
    /// A game for which `rx_depth` receives are posted.
    pub(super) const fn new(link: Link, buffers: &'b Buffers, options: &'b Options) -> Self {
        Self {
            link,
            buffers,
            options,
            posted: options.rx_depth,
            received: 0,
            sent: 0,
            underway: RECEIVE,
        }
    }

    /// Plays to the end, and prints how it went. The client begins.
    pub(super) fn run(mut self, queue: &Queue) -> Result<(), Failure> {
        if self.options.common.host.is_some() {
            self.send()?;
        }
        let took = queue.play(self.options, |success| self.completed(success))?;
        self.link.close()?;
        finish(self.buffers.size() as u64, self.options, took)
    }

    fn completed(&mut self, success: WorkSuccess) -> Result<(u32, u32), Failure> {
        match success.wr_id() {
            SEND => self.sent += 1,
            RECEIVE => self.has_come(success)?,
            other => {
                return Err(Failure::new(format!(
                    "completion for unknown wr_id {other}"
                )));
            }
        }
        self.underway &= !success.wr_id();
        if self.sent < self.options.iters && self.underway == 0 {
            self.send()?;
        }
        Ok((self.received, self.sent))
    }

    fn has_come(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        let (came, expected) = (success.byte_len() as usize, self.buffers.comes_with());
        if came != expected {
            let size = self.buffers.size();
            let came = (came + size).saturating_sub(expected);
            return Err(Failure::new(format!(
                "a message of {came} bytes came, not of {size}: both ends need the same -s"
            )));
        }
        self.received += 1;
        if self.options.chk {
            self.buffers.check(self.received)?;
        }
        self.posted -= 1;
        if self.posted <= 1 {
            let missing = self.options.rx_depth - self.posted;
            let mut element = Sge::from(self.buffers.receive()?);
            receive(&mut element, missing, |receive| {
                // SAFETY: `self` borrows `buffers` for longer than it has the queue pair; the
                // receive buffer is a shared region, of which only copies are taken.
                unsafe { self.link.receive(receive) }
            })?;
            self.posted += missing;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let element = self.buffers.send()?;
        // SAFETY: `self` borrows `buffers` for longer than it has the queue pair, so nothing writes
        // to the send buffer.
        unsafe { self.link.send(element, SEND) }?;
        self.underway = SEND | RECEIVE;
        Ok(())
    }
}

/// Posts the receive `count` times, as C does: all of them into the same buffer.
pub(super) fn receive(
    element: &mut Sge,
    count: u32,
    mut post: impl FnMut(&mut ReceiveWorkRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut request = ReceiveWorkRequest::new(element).wr_id(RECEIVE);
    (0..count).try_for_each(|_| post(&mut request))
}
