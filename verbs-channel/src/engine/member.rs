//! A member of an engine: its queue pair, whether that takes requests, and its credits.

use std::mem;
use std::time::Instant;

use verbs_core::{QueuePair, WcStatus, WorkError};

use super::afterwards::Queued;
use super::budget::Budget;
use super::gate::Limits;
use super::peer::Peer;
use super::slots::{Id, Reservation, SlotList, Slots};
use crate::channel_id::ChannelId;
use crate::error::{CloseError, DownReason, Queue, TransportError};

/// A queue pair, its credits and its slots.
#[derive(Debug)]
pub(crate) struct Member {
    state: MemberState,
    // Free places of its share of the send queue and the receive queue.
    left: [u32; 2],
    idle: [u32; 2],
    // Places that it has to itself. Without a budget these are all.
    share: [u32; 2],
    // How many places there are, and how many are taken of the room that all channels share.
    max: [u32; 2],
    common: [u32; 2],
    /// Limits of its queue pair.
    pub(crate) limits: Limits,
    /// Its slots.
    pub(crate) slots: SlotList,
    /// Its id.
    pub(crate) id: ChannelId,
    /// Another member gets its place once all its outcomes have been taken.
    pub(crate) is_removed: bool,
    /// Its end is among the messages of its engine, or was: if receives are shared.
    pub(crate) is_end_reported: bool,
    /// Since when its queue pair has been found in `ERR`, with requests that are not flushed.
    pub(crate) in_error_since: Option<Instant>,
    /// Its peer, by what shows that peer's end.
    pub(crate) peer: Peer,
}

/// Whether a member takes requests.
#[derive(Debug)]
enum MemberState {
    Up(QueuePair),
    /// It takes no more requests.
    Down(Rest, DownReason),
}

/// Remains of a queue pair that is down.
#[derive(Debug)]
enum Rest {
    QueuePair(QueuePair),
    /// It was handed out to be destroyed: the device may still access the buffers in flight.
    Closing,
    /// The driver failed to destroy it, for this reason unless it was reported: the device may access
    /// the buffers that were in flight forever.
    Stuck(Option<verbs_core::Error>),
    Gone,
}

/// A new operation of a member: its slot, and where to post it.
pub(crate) struct NewOperation<'s, B> {
    pub(crate) qp: &'s QueuePair,
    /// Limits of the queue pair.
    pub(crate) limits: &'s Limits,
    pub(crate) id: Id,
    /// The place in the slot for the flags of its requests, unless it is a receive or owns them.
    pub(crate) flags: &'s mut u32,
    /// The place in the slot for the buffer that the operation owns; empty.
    pub(crate) buffer: &'s mut Option<B>,
}

impl Member {
    pub(crate) fn new(
        id: ChannelId,
        slots: SlotList,
        qp: QueuePair,
        max: [u32; 2],
        share: [u32; 2],
        peer: Peer,
    ) -> Self {
        Self {
            limits: Limits::of(&qp),
            state: MemberState::Up(qp),
            left: share,
            idle: share,
            share,
            max,
            common: [0; 2],
            slots,
            id,
            is_removed: false,
            is_end_reported: false,
            in_error_since: None,
            peer,
        }
    }

    /// Takes credits of its share and a slot, if it is up and has them.
    #[inline(always)]
    pub(crate) fn take<'s, S: Copy, B>(
        &'s mut self,
        slots: &'s mut Slots<S, B>,
        reservation: Reservation,
    ) -> Option<NewOperation<'s, B>> {
        let MemberState::Up(qp) = &self.state else {
            return None;
        };
        let left = &mut self.left[reservation.queue as usize];
        let credits = u32::from(reservation.credits);
        // Subtracted before they are compared: the overflow shows that there were too few.
        let too_few;
        (*left, too_few) = left.overflowing_sub(credits);
        if too_few {
            undo_take(left, credits);
            return None;
        }
        let Some((id, flags, buffer)) = slots.take(&mut self.slots, reservation) else {
            undo_take(left, credits);
            return None;
        };
        Some(NewOperation {
            qp,
            limits: &self.limits,
            id,
            flags,
            buffer,
        })
    }

    /// Takes what its share lacks from the room that all channels share, and a common slot, so that the
    /// next [`take`](Self::take) finds them. `false` if there is no such room.
    pub(super) fn make_room<S: Copy, B>(
        &mut self,
        slots: &mut Slots<S, B>,
        reservation: Reservation,
    ) -> bool {
        let queue = reservation.queue as usize;
        let lacks = u32::from(reservation.credits).saturating_sub(self.left[queue]);
        // Its share can be taken at any time, so the rest of its queue is all there is.
        let rest = self.max[queue] - self.share[queue] - self.common[queue];
        if self.down().is_some() || lacks > rest.min(slots.budget.room()) {
            return false;
        }
        if !slots.lend_common(&mut self.slots) {
            return false;
        }
        slots.budget.take(lacks);
        self.left[queue] += lacks;
        self.common[queue] += lacks;
        if self.common[queue] > 0 {
            self.idle[queue] = u32::MAX;
        }
        true
    }

    /// [`take`](Self::take) after [`make_room`](Self::make_room): the id, or [`Id::NONE`].
    pub(super) fn take_common<S: Copy, B>(
        &mut self,
        slots: &mut Slots<S, B>,
        reservation: Reservation,
    ) -> Id {
        if !self.make_room(slots, reservation) {
            return Id::NONE;
        }
        let taken = self.take(slots, reservation);
        taken.map_or(Id::NONE, |operation| operation.id)
    }

    /// The operation with this id, which was [taken](Self::take); `None` if there is none.
    #[inline(always)]
    pub(super) fn taken<'s, S: Copy, B>(
        &'s self,
        slots: &'s mut Slots<S, B>,
        id: Id,
    ) -> Option<NewOperation<'s, B>> {
        let MemberState::Up(qp) = &self.state else {
            return None;
        };
        let (flags, buffer) = slots.places_in(id)?;
        Some(NewOperation {
            qp,
            limits: &self.limits,
            id,
            flags,
            buffer,
        })
    }

    /// Returns the credits of this many operations with the same reservation, none of which has a
    /// common slot.
    #[inline(always)]
    pub(crate) fn return_credits(&mut self, reservation: Reservation, times: usize) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.left[reservation.queue as usize] += u32::from(reservation.credits) * times;
    }

    /// Returns the credits of any operation, whose slot may be common.
    // First to the budget: what the channel has of it is at most what is in flight in common slots, so
    // the others return no more to the share than it has.
    pub(crate) fn settle(&mut self, budget: &mut Budget, reservation: Reservation) {
        let queue = reservation.queue as usize;
        let credits = u32::from(reservation.credits);
        let to_budget = credits.min(self.common[queue]);
        self.common[queue] -= to_budget;
        if self.common[queue] == 0 {
            self.idle[queue] = self.share[queue];
        }
        self.left[queue] += credits - to_budget;
        if self.holds_budget() {
            budget.give_back(to_budget);
        }
    }

    /// Whether what it returns is room again: its queue pair is neither gone nor stuck.
    const fn holds_budget(&self) -> bool {
        !matches!(
            self.state,
            MemberState::Down(Rest::Gone | Rest::Stuck(_), _)
        )
    }

    /// Room of the budget that it has taken.
    pub(crate) const fn common(&self) -> u32 {
        self.common[0] + self.common[1]
    }

    /// How many places there are in one of its queues.
    pub(crate) const fn max(&self, queue: Queue) -> u32 {
        self.max[queue as usize]
    }

    /// How many of them can be taken at once.
    pub(crate) fn capacity(&self, queue: Queue, budget: &Budget) -> u32 {
        let share = self.share[queue as usize];
        self.max(queue).min(share.saturating_add(budget.total()))
    }

    /// Its queue pair, unless it has been destroyed, or is about to be.
    pub(crate) const fn qp(&self) -> Option<&QueuePair> {
        match &self.state {
            MemberState::Up(qp) | MemberState::Down(Rest::QueuePair(qp), _) => Some(qp),
            MemberState::Down(..) => None,
        }
    }

    /// Why it takes no more requests, if it does not.
    #[inline]
    pub(crate) const fn down(&self) -> Option<DownReason> {
        match self.state {
            MemberState::Up(_) => None,
            MemberState::Down(_, reason) => Some(reason),
        }
    }

    /// It takes no more requests from now on. Returns the reason, which is the first one.
    pub(crate) fn go_down(&mut self, reason: DownReason) -> DownReason {
        if self.down().is_none() && !self.is_idle() {
            self.peer.check_soon();
        }
        let reason = self.down().unwrap_or(reason);
        // As it was, if it has no queue pair any more.
        if let Some(qp) = self.take_qp(reason) {
            self.state = MemberState::Down(Rest::QueuePair(qp), reason);
        }
        reason
    }

    /// [`go_down`](Self::go_down), and its queue pair, to be destroyed: [`closed`](Self::closed)
    /// records the result.
    pub(crate) fn take_qp(&mut self, reason: DownReason) -> Option<QueuePair> {
        let reason = self.down().unwrap_or(reason);
        match mem::replace(&mut self.state, MemberState::Down(Rest::Closing, reason)) {
            MemberState::Up(qp) | MemberState::Down(Rest::QueuePair(qp), _) => Some(qp),
            other @ MemberState::Down(..) => {
                self.state = other;
                None
            }
        }
    }

    /// Its queue pair has been destroyed, or is stuck.
    pub(crate) fn closed(&mut self, destroyed: verbs_core::Result<()>) {
        if let MemberState::Down(rest @ Rest::Closing, _) = &mut self.state {
            *rest = match destroyed {
                Ok(()) => Rest::Gone,
                Err(error) => Rest::Stuck(Some(error)),
            };
        }
    }

    /// Why its queue pair is stuck, if it is; returned once.
    pub(crate) fn take_stuck_error(&mut self) -> Option<verbs_core::Error> {
        match &mut self.state {
            MemberState::Down(Rest::Stuck(error), _) => error.take(),
            _ => None,
        }
    }

    /// Whether its queue pair could be destroyed; `None` if it has not been.
    pub(crate) const fn destroyed(&self) -> Option<Result<(), CloseError>> {
        match self.state {
            MemberState::Down(Rest::Gone, _) => Some(Ok(())),
            MemberState::Down(Rest::Stuck(_), _) => Some(Err(CloseError::Stuck)),
            _ => None,
        }
    }

    /// Whether its queue pair was handed out to be destroyed.
    pub(crate) const fn is_closing(&self) -> bool {
        matches!(self.state, MemberState::Down(Rest::Closing, _))
    }

    /// The outcome of an operation whose completion will not come, as the queue pair is closed.
    pub(crate) fn outcome_without_completion(&self) -> TransportError {
        match self.state {
            MemberState::Down(Rest::Stuck(_), _) => TransportError::Stuck,
            MemberState::Down(_, reason) => TransportError::Aborted(reason),
            MemberState::Up(_) => TransportError::CLOSED,
        }
    }

    /// Whether nothing is in flight on it.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.left == self.idle
    }

    /// Whether it is down, and its queue pair is to flush what is in flight.
    pub(super) fn is_flushing(&self) -> bool {
        matches!(self.state, MemberState::Down(Rest::QueuePair(_), _)) && !self.is_idle()
    }

    /// Places in one of its queues that are free, and that the budget has room for.
    pub(crate) fn credits(&self, queue: Queue, budget: &Budget) -> u32 {
        let queue = queue as usize;
        let rest = self.max[queue] - self.share[queue] - self.common[queue];
        self.left[queue] + rest.min(budget.room())
    }

    /// Places in one of its queues that are taken.
    pub(crate) const fn in_flight(&self, queue: Queue) -> u32 {
        let queue = queue as usize;
        self.share[queue] - self.left[queue] + self.common[queue]
    }

    /// A failed request has moved its queue pair to `ERR`; or it was flushed, since this side did so,
    /// another request failed before, or the connection has ended. Returns the outcome of the operation.
    pub(super) fn failed(
        &mut self,
        queue: Queue,
        error: WorkError,
        afterwards: &mut Queued,
    ) -> TransportError {
        afterwards.close(&mut self.peer);
        let first = self.down().or_else(|| self.end_by_flush(error.status));
        self.go_down(first.unwrap_or(DownReason::Work { queue, error }));
        match first {
            Some(reason) if error.status == WcStatus::WR_FLUSH_ERR => {
                TransportError::Aborted(reason)
            }
            _ => TransportError::Work { queue, error },
        }
    }

    /// On iWARP the driver flushes a queue pair when its connection ends: no request has failed, and
    /// this side has not ended it.
    fn end_by_flush(&self, status: WcStatus) -> Option<DownReason> {
        let context = self.qp()?.pd().context();
        let is_end = status == WcStatus::WR_FLUSH_ERR && context.device().needs_rdma_cm();
        is_end.then_some(DownReason::PeerClosed)
    }
}

// A function of its own: in the usual case the credits are in memory only.
#[cold]
#[inline(never)]
const fn undo_take(left: &mut u32, credits: u32) {
    *left = left.wrapping_add(credits);
}
