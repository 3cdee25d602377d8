//! Queueing: a request for a full queue waits in the backlog, and is posted when there is room.

use verbs_channel::error::Queue;
use verbs_channel::{ChannelId, RejectReason};

use super::backlog::{Backlog, Links, Queued, Stage};
use super::fair_queue::Head;
use super::request::{QUEUES, Request, Started, Submission};
use super::state::{DriverState, Wait};

impl DriverState {
    /// Appends a request to its backlog.
    pub(super) fn enqueue(&mut self, channel: ChannelId, queue: Queue, request: Request) -> usize {
        let index = channel.index();
        let (prev, next) = (self.backlog_of(index, queue).tail, None);
        let key = self.queued.insert(Queued {
            channel,
            queue,
            stage: Stage::Waiting(request, Links { prev, next }),
            waker: None,
        });
        self.waiters += 1;
        self.queued_or_draining += 1;
        let backlog = self.backlog_of(index, queue);
        backlog.tail = Some(key);
        backlog.len += 1;
        match self.links(prev) {
            Some(prev) => prev.next = Some(key),
            None => self.backlog_of(index, queue).head = Some(key),
        }
        key
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
                Some(Head::Left) => {}
                Some(Head::Rejected) => has_rejected = true,
                Some(Head::Short) => {
                    self.join_line(index, queue);
                    return has_rejected;
                }
                Some(Head::Full) => {
                    self.leave_line(index, queue);
                    return has_rejected;
                }
                None => return has_rejected,
            }
        }
    }

    /// Posts the head of a backlog, if it has one.
    pub(super) fn post_head_of(&mut self, index: usize, queue: Queue) -> Option<Head> {
        let here = self.channels.get(index)?;
        let key = here.backlogs[queue as usize].head?;
        self.post_head(key)
    }

    fn post_head(&mut self, key: usize) -> Option<Head> {
        let head = self.queued.get_mut(key)?;
        let (channel, queue) = (head.channel, head.queue);
        let Stage::Waiting(request, links) = &mut head.stage else {
            return None;
        };
        let links = *links;
        let left = match request.start(&mut self.engine, channel) {
            Started::Full => return Some(Head::Full),
            Started::Short => return Some(Head::Short),
            Started::Posted(ticket) => {
                head.stage = Stage::Posted(ticket);
                let waker = head.waker.take();
                // If room was made for it, there are more slots.
                self.reserve_waits();
                if let Some(waker) = waker {
                    // The slot is new, so no waker is replaced.
                    let _none = self.wait(ticket, Wait::Task(waker));
                }
                Head::Left
            }
            Started::Rejected(reason) => {
                head.stage = Stage::Rejected(request.rejected(reason));
                self.deferred.extend(head.waker.take());
                Head::Rejected
            }
        };
        self.dequeue(channel.index(), queue, links);
        Some(left)
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
        let Stage::Waiting(request, links) = &mut op.stage else {
            return;
        };
        let links = *links;
        op.stage = Stage::Rejected(request.rejected(RejectReason::Backpressure(queue)));
        self.deferred.extend(op.waker.take());
        self.dequeue(index, queue, links);
        // It may have been the head, and the next may have room.
        self.on_capacity_freed(index);
    }

    /// Unlinks an operation from its backlog, and wakes the tasks that wait for room.
    pub(super) fn dequeue(&mut self, index: usize, queue: Queue, links: Links) {
        self.waiters -= 1;
        self.queued_or_draining -= 1;
        match self.links(links.prev) {
            Some(prev) => prev.next = links.next,
            None => self.backlog_of(index, queue).head = links.next,
        }
        match self.links(links.next) {
            Some(next) => next.prev = links.prev,
            None => self.backlog_of(index, queue).tail = links.prev,
        }
        let Self {
            channels, deferred, ..
        } = self;
        let Some(here) = channels.get_mut(index) else {
            return;
        };
        let backlog = &mut here.backlogs[queue as usize];
        backlog.len -= 1;
        let is_last = backlog.len == 0;
        if backlog.room.sleeping > 0 && backlog.len <= backlog.room.wakes_at {
            backlog.room.sleeping = 0;
            let waiters = backlog.room.waiters.iter_mut();
            deferred.extend(waiters.filter_map(|(_, waiter)| waiter.take()));
        }
        if is_last {
            self.leave_line(index, queue);
        }
    }

    pub(super) fn backlog_of(&mut self, index: usize, queue: Queue) -> &mut Backlog {
        &mut self.channel(index).backlogs[queue as usize]
    }

    fn links(&mut self, key: Option<usize>) -> Option<&mut Links> {
        match &mut self.queued.get_mut(key?)?.stage {
            Stage::Waiting(_, links) => Some(links),
            _ => None,
        }
    }
}

/// The line for the room that all channels share.
impl DriverState {
    /// Puts a channel's queue at the end of the line, unless it is in it.
    pub(super) fn join_line(&mut self, index: usize, queue: Queue) {
        self.line.push(index, queue);
        self.engine.hold_room(true);
    }

    /// Takes a channel's queue out of the line, if it is in it.
    pub(super) fn leave_line(&mut self, index: usize, queue: Queue) {
        if self.line.remove(index, queue) {
            self.engine.hold_room(!self.line.is_empty());
        }
    }

    /// Posts for the first in the line while there is room.
    #[cold]
    pub(super) fn advance_line(&mut self) {
        while self.engine.common_room() > 0
            && let Some((index, queue)) = self.line.first()
        {
            self.engine.hold_room(false);
            let head = self.post_head_of(index, queue);
            self.engine.hold_room(!self.line.is_empty());
            match head {
                Some(Head::Short) => return,
                // The next joins the line again if it is short, too.
                Some(Head::Left | Head::Rejected) => {
                    self.leave_line(index, queue);
                    self.advance(index);
                    // It may have been the last of a channel that a task waits to close.
                    self.wake_drained(index);
                }
                // It waits for its own queue.
                Some(Head::Full) | None => self.leave_line(index, queue),
            }
        }
    }
}
