//! A member of an engine: its queue pair, whether that takes requests, and its credits.

use std::mem;
use std::time::Instant;

use verbs_core::{QueuePair, WcStatus, WorkError};

use super::gate::Limits;
use super::peer::Peer;
use super::slots::{Id, Reservation, SlotList, Slots};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Queue, TransportError};

/// A queue pair, its credits and its slots.
#[derive(Debug)]
pub(crate) struct Member {
    state: MemberState,
    // Places in its send queue and its receive queue that are free, and how many there are.
    left: [u32; 2],
    max: [u32; 2],
    /// What its queue pair takes.
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

/// What is left of a queue pair that is down.
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
    /// What the queue pair takes.
    pub(crate) limits: &'s Limits,
    pub(crate) id: Id,
    /// The place in the slot for the buffer that the operation owns; empty.
    pub(crate) buffer: &'s mut Option<B>,
}

impl Member {
    pub(crate) fn new(
        id: ChannelId,
        slots: SlotList,
        qp: QueuePair,
        max_send_wr: u32,
        max_recv_wr: u32,
    ) -> Self {
        let max = [max_send_wr, max_recv_wr];
        Self {
            limits: Limits::of(&qp),
            state: MemberState::Up(qp),
            left: max,
            max,
            slots,
            id,
            is_removed: false,
            is_end_reported: false,
            in_error_since: None,
            peer: Peer::default(),
        }
    }

    /// Takes credits and a slot, if it is up and there are as many.
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
        let Some((id, buffer)) = slots.take(&mut self.slots, reservation) else {
            undo_take(left, credits);
            return None;
        };
        Some(NewOperation {
            qp,
            limits: &self.limits,
            id,
            buffer,
        })
    }

    /// Returns the credits of this many operations with the same reservation.
    #[inline(always)]
    pub(crate) fn return_credits(&mut self, reservation: Reservation, times: usize) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.left[reservation.queue as usize] += u32::from(reservation.credits) * times;
    }

    /// How many places there are in one of its queues.
    pub(crate) const fn capacity(&self, queue: Queue) -> u32 {
        self.max[queue as usize]
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
        self.left == self.max
    }

    /// Places in one of its queues that are free.
    pub(crate) const fn credits(&self, queue: Queue) -> u32 {
        self.left[queue as usize]
    }

    /// Places in one of its queues that are taken.
    pub(crate) const fn in_flight(&self, queue: Queue) -> u32 {
        self.capacity(queue) - self.credits(queue)
    }

    /// A failed request has moved its queue pair to `ERR`; or it was flushed, since this side did so
    /// or another request failed before. Returns the outcome of the operation.
    pub(crate) fn failed(&mut self, queue: Queue, error: WorkError) -> TransportError {
        self.peer.close();
        let first = self.down();
        self.go_down(DownReason::Work { queue, error });
        match first {
            Some(reason) if error.status == WcStatus::WR_FLUSH_ERR => {
                TransportError::Aborted(reason)
            }
            _ => TransportError::Work { queue, error },
        }
    }
}

// A function of its own: in the usual case the credits are in memory only.
#[cold]
#[inline(never)]
const fn undo_take(left: &mut u32, credits: u32) {
    *left = left.wrapping_add(credits);
}
