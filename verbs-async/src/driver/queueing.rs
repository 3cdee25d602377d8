//! Queueing: a request for a full queue waits in the backlog, and is posted when there is room.

use verbs_channel::error::Queue;
use verbs_channel::{ChannelId, RejectReason};

use super::backlog::{Queued, Stage};
use super::request::{QUEUES, Request, Started, Submission};
use super::state::{DriverState, Wait};

impl DriverState {
    /// Appends a request to its backlog.
    pub(super) fn enqueue(&mut self, channel: ChannelId, queue: Queue, request: Request) -> usize {
        let key = self.queued.vacant_key();
        let here = self.channel(channel.index());
        let number = here.backlogs[queue as usize].push(key);
        self.waiters += 1;
        self.queued_or_waiting += 1;
        self.queued.insert(Queued {
            channel,
            queue,
            stage: Stage::Waiting(request, number),
            waker: None,
        })
    }

    /// Posts from the heads of a channel's backlogs while there is room.
    pub(super) fn advance(&mut self, index: usize) {
        // A post that fails may take the channel down: then what waits for its other queue is rejected, too.
        while QUEUES
            .into_iter()
            .any(|queue| self.advance_queue(index, queue))
        {}
    }

    /// The same for one of its backlogs. Returns whether a request was rejected.
    pub(super) fn advance_queue(&mut self, index: usize, queue: Queue) -> bool {
        let mut has_rejected = false;
        loop {
            match self.post_head_of(index, queue) {
                Some(Started::Posted(_)) => {}
                Some(Started::Rejected(_)) => has_rejected = true,
                Some(Started::Short) => {
                    self.join_line(index, queue);
                    return has_rejected;
                }
                Some(Started::Full) => {
                    self.leave_line(index, queue);
                    return has_rejected;
                }
                None => return has_rejected,
            }
        }
    }

    /// Posts the head of a backlog, if it has one. If it is posted or rejected, it has left the backlog.
    fn post_head_of(&mut self, index: usize, queue: Queue) -> Option<Started> {
        let here = self.channels.get(index)?;
        let key = *here.backlogs[queue as usize].first()?;
        let head = self.queued.get_mut(key)?;
        let channel = head.channel;
        let Stage::Waiting(request, number) = &mut head.stage else {
            return None;
        };
        let number = *number;
        let started = request.start(&mut self.engine, channel);
        match started {
            Started::Full | Started::Short => return Some(started),
            Started::Posted(ticket) => {
                head.stage = Stage::Posted(ticket);
                let waker = head.waker.take();
                // If room was made for it, there are more slots.
                self.reserve_waits();
                if let Some(waker) = waker {
                    // The slot is new, so no waker is replaced.
                    let _none = self.wait(ticket, Wait::Task(waker));
                }
            }
            Started::Rejected(reason) => {
                head.stage = Stage::Rejected(request.rejected(reason));
                self.deferred.extend(head.waker.take());
            }
        }
        self.dequeue(index, queue, number);
        Some(started)
    }

    /// Rejects an operation that is in its backlog.
    pub(super) fn withdraw(&mut self, submission: Submission) {
        let Submission::Queued(key) = submission else {
            return;
        };
        let Some(op) = self.queued.get_mut(key) else {
            return;
        };
        let (index, queue) = (op.channel.index(), op.queue);
        let Stage::Waiting(request, number) = &mut op.stage else {
            return;
        };
        let number = *number;
        op.stage = Stage::Rejected(request.rejected(RejectReason::Backpressure(queue)));
        self.deferred.extend(op.waker.take());
        self.dequeue(index, queue, number);
        // It may have been the head, and the next may have room.
        self.on_capacity_freed(index);
    }

    /// Takes an operation out of its backlog.
    pub(super) fn dequeue(&mut self, index: usize, queue: Queue, number: u64) {
        self.waiters -= 1;
        self.queued_or_waiting -= 1;
        let backlog = &mut self.channel(index).backlogs[queue as usize];
        let _its_key = backlog.remove(number);
        if backlog.is_empty() {
            self.leave_line(index, queue);
        }
    }
}

/// The line for the room that all channels share: first come, first served.
///
/// The queue of a channel is in the line while the head of its backlog finds no such room. When it is
/// the first and there is room for its head, that is posted, and the queue goes to the end of the line
/// if its next operation finds none. So a channel with a long backlog delays the others by one
/// operation each.
///
/// While there is a line, the engine holds the shared room back, and none overtakes it. A request
/// that finds room in its own channel's share is posted at once.
impl DriverState {
    /// Puts a channel's queue at the end of the line, unless it is in it.
    pub(super) fn join_line(&mut self, index: usize, queue: Queue) {
        if self.channel(index).in_line[queue as usize].is_none() {
            let number = self.line.push((index, queue));
            self.channel(index).in_line[queue as usize] = Some(number);
        }
        self.engine.hold_room(true);
    }

    /// Takes a channel's queue out of the line, if it is in it.
    pub(super) fn leave_line(&mut self, index: usize, queue: Queue) {
        if let Some(number) = self.channel(index).in_line[queue as usize].take() {
            let _its_queue = self.line.remove(number);
            self.engine.hold_room(!self.line.is_empty());
        }
    }

    /// Posts for the first in the line while there is room.
    #[cold]
    pub(super) fn advance_line(&mut self) {
        while self.engine.common_room() > 0
            && let Some(&(index, queue)) = self.line.first()
        {
            self.engine.hold_room(false);
            let head = self.post_head_of(index, queue);
            self.engine.hold_room(!self.line.is_empty());
            match head {
                Some(Started::Short) => return,
                // The next joins the line again if it is short, too.
                Some(Started::Posted(_) | Started::Rejected(_)) => {
                    self.leave_line(index, queue);
                    self.advance(index);
                    // It may have been the last of a channel that a task waits to close.
                    self.wake_channel_waiters(index);
                }
                // It waits for its own queue.
                Some(Started::Full) | None => self.leave_line(index, queue),
            }
        }
    }
}
