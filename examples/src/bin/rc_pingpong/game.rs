//! The ping-pong itself: what is posted, and what its completions lead to.
#![expect(unsafe_code, reason = "posts work requests")]

use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Patience, Progress};
use verbs_core::{
    CompletionChannel, CompletionQueue, PollSlot, PostError, QueuePair, ReceiveWorkRequest,
    SendWorkRequest, SharedElement, WorkSuccess,
};

use crate::Options;
use crate::buffers::Buffers;

/// The `wr_id`s that distinguish completions, as in C.
pub(crate) const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// A game in progress.
pub(crate) struct Game<'b> {
    // First, so that it is destroyed before the memory that the device accesses.
    pub(crate) qp: QueuePair,
    pub(crate) buffers: &'b Buffers,
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: Option<CompletionChannel>,
    pub(crate) patience: Patience<'static>,
    pub(crate) options: &'b Options,
    pub(crate) posted: u32,
    pub(crate) received: u32,
    pub(crate) sent: u32,
    /// What must complete before the next send: C's `pending`.
    pub(crate) underway: u64,
}

impl Game<'_> {
    /// Plays to the end, and returns how long it took. The client begins.
    pub(crate) fn play(&mut self, begin: bool) -> Result<Duration, Failure> {
        let iters = self.options.iters;
        if begin {
            self.send()?;
        }
        let mut progress = Progress::new("messages", iters.into());
        let start = Instant::now();
        let mut slots = [const { PollSlot::new() }; 2];
        while self.received < iters || self.sent < iters {
            if let Some(channel) = &self.channel {
                let event = channel.get_cq_event(Some(self.options.common.limit()))?;
                let ready = event.ok_or_else(|| self.patience.over())?;
                ready.req_notify(false)?;
            }
            // After an event until nothing is left, else until something comes.
            loop {
                let completions = self.cq.poll(&mut slots)?;
                for completion in completions {
                    let success = completion.result();
                    self.completed(success.context(|| doing(completion.wr_id()))?)?;
                }
                if !completions.is_empty() {
                    self.patience.renew();
                    progress.at(self.received.into());
                }
                if completions.is_empty() == self.channel.is_some() {
                    break;
                }
                if completions.is_empty() {
                    self.patience.idle()?;
                }
            }
        }
        Ok(start.elapsed())
    }

    fn completed(&mut self, success: WorkSuccess) -> Result<(), Failure> {
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
        Ok(())
    }

    fn has_come(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        let (came, size) = (success.byte_len(), self.options.size);
        if came != size {
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
            let mut element = self.buffers.receive()?;
            receive(&mut element, missing, |receive| {
                // SAFETY: `self` borrows `buffers` for longer than it has the queue pair; the
                // receive buffer is a shared region, of which only copies are taken.
                unsafe { self.qp.post_receive(receive) }
            })?;
            self.posted += missing;
        }
        Ok(())
    }

    /// Destroys the queue pair, and prints an error if that fails.
    pub(crate) fn close(self) -> Result<(), Failure> {
        Ok(self.qp.close()?)
    }

    fn send(&mut self) -> Result<(), Failure> {
        let mut element = self.buffers.send()?;
        let mut request = SendWorkRequest::new(&mut element).wr_id(SEND);
        if self.qp.cap().max_inline_data >= self.options.size {
            request = request.inline();
        }
        // SAFETY: `self` borrows `buffers` for longer than it has the queue pair, so nothing writes
        // to the send buffer.
        unsafe { self.qp.post_send(&mut request) }?;
        self.underway = SEND | RECEIVE;
        Ok(())
    }
}

/// What a completion was about.
const fn doing(wr_id: u64) -> &'static str {
    match wr_id {
        SEND => "sending",
        RECEIVE => "receiving (both ends need the same -s)",
        _ => "an unknown request",
    }
}

/// Posts the receive `count` times, as C does: all of them into the same buffer.
pub(crate) fn receive(
    element: &mut SharedElement<'_>,
    count: u32,
    mut post: impl FnMut(&mut ReceiveWorkRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut request = ReceiveWorkRequest::new(element).wr_id(RECEIVE);
    (0..count).try_for_each(|_| post(&mut request))
}
