//! Receives: posted, and waiting in a queue pair's own queue or one that is shared (10.2.9).

use std::collections::VecDeque;

use crate::DomainId;
use crate::error::{Result, full, invalid};
use crate::request::ReceiveRequest;

/// A shared receive queue, by its number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SharedReceiveId(pub u32);

/// Receives that wait for messages.
pub(crate) struct ReceiveQueue {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) waiting: VecDeque<ReceiveRequest>,
}

/// A queue of receives for several queue pairs.
pub(crate) struct SharedReceiveQueue {
    pub(crate) domain: DomainId,
    pub(crate) queue: ReceiveQueue,
    /// The limit that makes an event once; 0 for none.
    pub(crate) limit: u32,
}

impl ReceiveQueue {
    pub(crate) const fn new(max_wr: u32, max_sge: u32) -> Self {
        Self {
            max_wr,
            max_sge,
            waiting: VecDeque::new(),
        }
    }

    /// Posts a receive, if there are fewer than `room`.
    pub(crate) fn post(&mut self, request: ReceiveRequest, room: u32) -> Result<()> {
        if u32::try_from(request.elements.len()).map_or(true, |len| len > self.max_sge) {
            return Err(invalid(
                "a receive has more elements than its queue was made for",
            ));
        }
        if u32::try_from(self.waiting.len()).map_or(true, |len| len >= room) {
            return Err(full("the receive queue is full"));
        }
        self.waiting.push_back(request);
        Ok(())
    }
}
