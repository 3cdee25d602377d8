//! One rail: its channel, and its share of a transfer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use verbs_core::codes::WcStatus;

use crate::channel::Channel;
use crate::engine::{Ended, Transfer};
use crate::error::{Queue, RejectReason, TransportError};
use crate::request::{Op, OwnedRequest};
use crate::waiting::{Aborts, Deadline, Poller, Steps as _};

/// A rail has no more than this in flight, or one operation: more than a device of 400 Gbit/s moves in 80 µs. The rest is
/// left for rails that are faster.
const WINDOW: u64 = 4 << 20;

pub(super) struct Rail {
    pub(super) channel: Channel,
    /// Its share.
    pub(super) transfer: Transfer,
    /// The operations of the share, by their numbers.
    given: Vec<Given>,
    /// Those that have ended and were not taken.
    ended: VecDeque<usize>,
    /// Bytes of the operations that were not taken.
    pub(super) bytes: u64,
    /// Another channel will come.
    pub(super) is_asked: bool,
    /// It has come. It waits until the one before has no operations any more.
    pub(super) next: Option<Channel>,
    /// It has refused a post in this transfer, and gets no more.
    pub(super) refuses: bool,
}

/// An operation of the whole transfer.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) index: usize,
    pub(super) op: Op,
    /// It goes over this rail only.
    pub(super) is_tied: bool,
    len: u64,
    place: usize,
}

impl Rail {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            transfer: Transfer::default(),
            given: Vec::new(),
            ended: VecDeque::new(),
            bytes: 0,
            is_asked: false,
            next: None,
            refuses: false,
        }
    }

    pub(super) fn poller(&mut self) -> &mut Poller {
        self.channel.parts().0
    }

    /// All operations that it was given have ended.
    pub(super) const fn is_idle(&self) -> bool {
        self.transfer.has_ended()
    }

    pub(super) fn has_room(&self) -> bool {
        let ((engine, _), id) = (self.channel.shared(), self.channel.id());
        let most = engine.capacity(id, Queue::Send) as usize;
        let is_free = self.transfer.left() < most && self.bytes < WINDOW;
        self.is_usable() && (is_free || self.is_idle())
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.refuses && !self.channel.is_down()
    }

    /// Gives it an operation. `op` is that of the whole transfer.
    pub(super) fn give(&mut self, index: usize, op: Op, request: OwnedRequest, is_tied: bool) {
        let len = request.buffer().range().len() as u64;
        self.given.push(Given {
            index,
            op,
            is_tied,
            len,
            place: self.transfer.next_place(),
        });
        self.bytes += len;
        self.transfer.add(self.channel.id(), request);
    }

    /// Polls, takes outcomes, and posts, until all rails are aborted. Returns whether there was something to do.
    pub(super) fn step(
        &mut self,
        now: Instant,
        deadline: Deadline,
        posts: &mut u16,
        aborts: &Aborts,
    ) -> bool {
        let Self {
            channel,
            transfer,
            ended,
            ..
        } = self;
        let poller = channel.parts().0;
        poller.check_peers(now);
        poller.run_afterwards();
        if transfer.has_ended() {
            return false;
        }
        let found = poller.engine.drive();
        poller.step_transfer(transfer, deadline, posts, Some(aborts), &mut |number, _| {
            ended.push_back(number);
        });
        poller.run_afterwards();
        found > 0 || !self.ended.is_empty()
    }

    /// Takes the channel down if it has operations in flight.
    pub(super) fn shut_down(&mut self, after: Duration) {
        let poller = self.channel.parts().0;
        if !self.transfer.has_ended() {
            poller.shut_down_transfer(&mut self.transfer, after);
        }
    }

    /// Waits for the flushes, and destroys its queue pair otherwise.
    pub(super) fn drain(&mut self, after: Duration, drained_by: Deadline) {
        let poller = self.channel.parts().0;
        if !self.transfer.has_ended() {
            poller.drain_transfer(&mut self.transfer, after, drained_by);
        }
    }

    /// The end of the ladder: all operations have ended then.
    pub(super) fn quiesce(&mut self) {
        let poller = self.channel.parts().0;
        if !self.transfer.has_ended() {
            poller.end_transfer(&mut self.transfer);
        }
        // Those that were taken before have no outcome any more.
        self.ended.clear();
        self.ended.extend(0..self.given.len());
    }

    /// The next operation that has ended, with its outcome.
    pub(super) fn next_ended(&mut self) -> Option<(Given, Ended)> {
        while let Some(number) = self.ended.pop_front() {
            if let Some(given) = self.given.get(number)
                && let Some(ended) = self.transfer.take_ended(given.place)
            {
                self.bytes -= given.len;
                self.refuses |= ended.is_refused();
                return Some((*given, ended));
            }
        }
        if self.is_idle() && !self.given.is_empty() {
            // All were taken.
            drop(self.transfer.drain());
            self.given.clear();
        }
        None
    }
}

impl Ended {
    pub(super) fn rejected(reason: RejectReason, request: OwnedRequest) -> Self {
        Self {
            result: Err(reason.into()),
            buffer: Some(request.into_buffer()),
        }
    }

    /// Whether the driver has refused to post it: because of the operation, or it refuses all.
    pub(super) const fn is_refused(&self) -> bool {
        matches!(self.result, Err(TransportError::Rejected(RejectReason::Post(error))) if error.posted() == 0)
    }
}

impl Given {
    /// Whether another rail may carry out this operation, which has ended here. The device is done with its memory.
    pub(super) fn can_move(&self, ended: &Ended) -> bool {
        let Ended {
            result: Err(error),
            buffer: Some(_),
        } = ended
        else {
            return false;
        };
        let is_possible = match error {
            // It was not posted.
            TransportError::Rejected(RejectReason::Down(_)) => true,
            TransportError::Rejected(RejectReason::Post(error)) => {
                error.posted() == 0 || self.op.is_repeatable()
            }
            TransportError::Aborted(_) => self.op.is_repeatable(),
            TransportError::Work { error, .. } => {
                is_of_the_way(error.status) && self.op.is_repeatable()
            }
            _ => false,
        };
        is_possible && !self.is_tied
    }
}

/// Whether the network or the device has caused a failure with this status, and not the operation. A queue pair that breaks
/// is flushed without another failure.
const fn is_of_the_way(status: WcStatus) -> bool {
    matches!(
        status,
        WcStatus::RETRY_EXC_ERR
            | WcStatus::WR_FLUSH_ERR
            | WcStatus::RESP_TIMEOUT_ERR
            | WcStatus::FATAL_ERR
            | WcStatus::GENERAL_ERR
    )
}
