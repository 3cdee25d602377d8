//! The ping-pong itself: what is posted, and what its completions lead to.
#![expect(unsafe_code, reason = "posts work requests")]

use std::collections::HashMap;

use programs::Failure;
use programs::pingpong::{Queue, RECEIVE, SEND, finish};
use verbs_core::memory::Sge;
use verbs_core::queue_pair::SharedReceives;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{QueuePair, ReceiveWorkRequest, SendWorkRequest, WorkSuccess};

use crate::Options;
use crate::buffers::Buffers;

/// In a `wr_id`, the number of a receive is above its kind.
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
    /// Plays to the end, and prints how it went. The client begins, on each queue pair.
    pub(crate) fn run(mut self, queue: &Queue) -> Result<(), Failure> {
        let options = self.options.game();
        self.underway = vec![RECEIVE; self.qps.len()];
        if options.common.host.is_some() {
            let first = self.qps.len().min(options.iters as usize);
            (0..first).try_for_each(|qp| self.send(qp))?;
        }
        let took = queue.play(options, |success| self.completed(success))?;
        self.qps.into_iter().try_for_each(QueuePair::close)?;
        self.srq.close()?;
        finish(self.options.connected.size.into(), options, took)
    }

    fn completed(&mut self, success: WorkSuccess) -> Result<(u32, u32), Failure> {
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
        if self.begun < self.options.game().iters && *underway == 0 {
            self.send(qp)?;
        }
        Ok((self.received, self.sent))
    }

    fn has_come(&mut self, number: u32, success: WorkSuccess) -> Result<(), Failure> {
        let (came, size) = (success.byte_len(), self.options.connected.size);
        if came != size {
            return Err(Failure::new(format!(
                "a message of {came} bytes came, not of {size}: both ends need the same -s"
            )));
        }
        self.received += 1;
        self.buffers.check(number, self.received)?;
        self.free.push(number);
        let posted = self.options.game().rx_depth as usize - self.free.len();
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

    fn send(&mut self, qp: usize) -> Result<(), Failure> {
        let (Some(queue_pair), Some(underway)) = (self.qps.get(qp), self.underway.get_mut(qp))
        else {
            return Ok(());
        };
        let mut element = self.buffers.send()?;
        let mut request = SendWorkRequest::new(&mut element).wr_id(SEND);
        if queue_pair.cap().max_inline_data >= self.options.connected.size {
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
