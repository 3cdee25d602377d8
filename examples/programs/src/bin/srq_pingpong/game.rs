//! The ping-pong itself: what is posted, and what its completions lead to.
#![expect(unsafe_code, reason = "posts work requests")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Patience, Progress};
use verbs_core::completion::CompletionChannel;
use verbs_core::memory::Sge;
use verbs_core::queue_pair::SharedReceives;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{
    CompletionQueue, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest, WorkSuccess,
};

use crate::Options;
use crate::buffers::Buffers;

/// The `wr_id`s that distinguish completions, as in C. Above that of a receive is its number.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const NUMBER: u32 = 2;

/// A game in progress.
pub(crate) struct Game<'b> {
    // First, so that they are destroyed before the memory that the device accesses: the queue pairs,
    // and then the queue that they take their receives from.
    pub(crate) qps: Vec<QueuePair<SharedReceives>>,
    pub(crate) srq: SharedReceiveQueue,
    /// The places of the queue pairs in `qps`, by their numbers.
    pub(crate) numbers: HashMap<u32, usize>,
    pub(crate) buffers: &'b Buffers,
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: Option<CompletionChannel>,
    pub(crate) patience: Patience<'static>,
    pub(crate) options: &'b Options,
    /// The numbers of the receives that are not posted.
    pub(crate) free: Vec<u32>,
    pub(crate) received: u32,
    pub(crate) sent: u32,
    /// Sends that were posted: no more than the peer waits for, so that none is in flight at the end.
    pub(crate) begun: u32,
    /// Operations that must complete before the next send of each queue pair: C's `pending`.
    pub(crate) underway: Vec<u64>,
}

impl Game<'_> {
    /// Plays to the end, and returns how long it took. The client begins, on each queue pair.
    pub(crate) fn play(&mut self, begin: bool) -> Result<Duration, Failure> {
        let iters = self.options.iters;
        self.underway = vec![RECEIVE; self.qps.len()];
        if begin {
            let first = self.qps.len().min(iters as usize);
            (0..first).try_for_each(|qp| self.send(qp))?;
        }
        let mut progress = Progress::new("messages", iters.into());
        let start = Instant::now();
        let mut slots = [const { PollSlot::new() }; 32];
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
                    progress.at(self.received.min(iters).into());
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
        let number = u32::try_from(success.wr_id() >> NUMBER)?;
        let kind = success.wr_id() & (RECEIVE | SEND);
        match kind {
            SEND => self.sent += 1,
            RECEIVE => self.has_come(number, success)?,
            other => {
                return Err(Failure::new(format!(
                    "completion for unknown wr_id {other}"
                )));
            }
        }
        // A receive is of no queue pair until a message is in it: the completion names it.
        let qp = self.numbers.get(&success.qp_num()).copied();
        let underway = qp.and_then(|qp| Some((qp, self.underway.get_mut(qp)?)));
        let Some((qp, underway)) = underway else {
            let qp_num = success.qp_num();
            return Err(Failure::new(format!(
                "completion for unknown queue pair {qp_num:#x}"
            )));
        };
        *underway &= !kind;
        if self.begun < self.options.iters && *underway == 0 {
            self.send(qp)?;
        }
        Ok(())
    }

    fn has_come(&mut self, number: u32, success: WorkSuccess) -> Result<(), Failure> {
        let (came, size) = (success.byte_len(), self.options.size);
        if came != size {
            return Err(Failure::new(format!(
                "a message of {came} bytes came, not of {size}: both ends need the same -s"
            )));
        }
        self.received += 1;
        self.buffers.check(number, self.received)?;
        self.free.push(number);
        let posted = self.options.rx_depth as usize - self.free.len();
        if posted <= self.options.num_qp as usize {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Posts the receives that are not posted.
    pub(crate) fn post_receives(&mut self) -> Result<(), Failure> {
        for number in self.free.drain(..) {
            let mut element = Sge::from(self.buffers.receive(number)?);
            let wr_id = u64::from(number) << NUMBER | RECEIVE;
            let mut request = ReceiveWorkRequest::new(&mut element).wr_id(wr_id);
            // SAFETY: `self` borrows `buffers` for longer than it has the queue; the memory is a shared
            // region, of which only copies are taken.
            unsafe { self.srq.post_receive(&mut request) }?;
        }
        Ok(())
    }

    /// Destroys the queue pairs and the queue, and returns an error if that fails.
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.qps.into_iter().try_for_each(QueuePair::close)?;
        Ok(self.srq.close()?)
    }

    fn send(&mut self, qp: usize) -> Result<(), Failure> {
        let (Some(queue_pair), Some(underway)) = (self.qps.get(qp), self.underway.get_mut(qp))
        else {
            return Ok(());
        };
        let mut element = self.buffers.send()?;
        let mut request = SendWorkRequest::new(&mut element).wr_id(SEND);
        if queue_pair.cap().max_inline_data >= self.options.size {
            request = request.inline();
        }
        // SAFETY: `self` borrows `buffers` for longer than it has the queue pair, so nothing writes
        // to the send buffer.
        unsafe { queue_pair.post_send(&mut request) }?;
        *underway = SEND | RECEIVE;
        self.begun += 1;
        Ok(())
    }
}

/// Name of the operation that has completed.
const fn doing(wr_id: u64) -> &'static str {
    match wr_id & (RECEIVE | SEND) {
        SEND => "sending",
        RECEIVE => "receiving (both ends need the same -s)",
        _ => "an unknown request",
    }
}
