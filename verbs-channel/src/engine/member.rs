//! A member of an engine: its queue pair, whether that takes work, and its credits.

use std::mem;
use std::time::Instant;

use verbs_core::{QueuePair, WcStatus, WorkError};

use super::gate::Limits;
use super::peer::Peer;
use super::slots::{Id, Reservation, SlotList, Slots};
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Queue, TransportError};

/// A queue pair and its accounts.
#[derive(Debug)]
pub(crate) struct Member {
    state: State,
    // Places in its send queue and its receive queue that are free, and how many there are.
    left: [u32; 2],
    max: [u32; 2],
    /// What its queue pair takes.
    pub(crate) limits: Limits,
    /// Its slots.
    pub(crate) slots: SlotList,
    /// What it is called.
    pub(crate) id: ChannelId,
    /// Its place is another's as soon as it has no slots any more.
    pub(crate) is_removed: bool,
    /// Since when its queue pair has been found in ERROR, with requests that are not flushed.
    pub(crate) in_error_since: Option<Instant>,
    /// Its peer, by what shows that peer's end.
    pub(crate) peer: Peer,
}

/// Whether a member takes work.
#[derive(Debug)]
enum State {
    Up(QueuePair),
    /// It takes no more.
    Down(Rest, DownReason),
}

/// What is left of a queue pair that is down.
#[derive(Debug)]
enum Rest {
    QueuePair(QueuePair),
    /// It is somewhere else, to be destroyed: what is in flight on it is the device's still.
    Closing,
    /// The driver refused to destroy it, for this reason unless it was reported: what was in flight
    /// on it is the device's for good.
    Stuck(Option<verbs_core::Error>),
    Gone,
}

/// What a new operation of a member has: the slot, and where to post to.
pub(crate) struct Taken<'s, B> {
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
            state: State::Up(qp),
            left: max,
            max,
            slots,
            id,
            is_removed: false,
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
    ) -> Option<Taken<'s, B>> {
        let State::Up(qp) = &self.state else {
            return None;
        };
        let left = &mut self.left[reservation.queue as usize];
        let credits = u32::from(reservation.credits);
        // Taken before it is known that they may be: the subtraction tells if not.
        let too_few;
        (*left, too_few) = left.overflowing_sub(credits);
        if too_few {
            put_back(left, credits);
            return None;
        }
        let Some((id, buffer)) = slots.take(&mut self.slots, reservation) else {
            put_back(left, credits);
            return None;
        };
        Some(Taken {
            qp,
            limits: &self.limits,
            id,
            buffer,
        })
    }

    /// Gives back the credits of as many operations that took up the same.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, reservation: Reservation, times: usize) {
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
            State::Up(qp) | State::Down(Rest::QueuePair(qp), _) => Some(qp),
            State::Down(..) => None,
        }
    }

    /// Why it takes no more work, if it does not.
    #[inline]
    pub(crate) const fn down(&self) -> Option<DownReason> {
        match self.state {
            State::Up(_) => None,
            State::Down(_, reason) => Some(reason),
        }
    }

    /// It takes no more work from now on; why, which is the first reason there was.
    pub(crate) fn go_down(&mut self, reason: DownReason) -> DownReason {
        let reason = self.down().unwrap_or(reason);
        // As it was, if it has no queue pair any more.
        if let Some(qp) = self.take_qp(reason) {
            self.state = State::Down(Rest::QueuePair(qp), reason);
        }
        reason
    }

    /// [`go_down`](Self::go_down), and its queue pair, to be destroyed: [`closed`](Self::closed)
    /// says how that went.
    pub(crate) fn take_qp(&mut self, reason: DownReason) -> Option<QueuePair> {
        let reason = self.down().unwrap_or(reason);
        match mem::replace(&mut self.state, State::Down(Rest::Closing, reason)) {
            State::Up(qp) | State::Down(Rest::QueuePair(qp), _) => Some(qp),
            other @ State::Down(..) => {
                self.state = other;
                None
            }
        }
    }

    /// Its queue pair has been destroyed, or is stuck.
    pub(crate) fn closed(&mut self, destroyed: verbs_core::Result<()>) {
        if let State::Down(rest @ Rest::Closing, _) = &mut self.state {
            *rest = match destroyed {
                Ok(()) => Rest::Gone,
                Err(error) => Rest::Stuck(Some(error)),
            };
        }
    }

    /// Why its queue pair is stuck, if it is; the first time this is asked.
    pub(crate) fn stuck_because(&mut self) -> Option<verbs_core::Error> {
        match &mut self.state {
            State::Down(Rest::Stuck(error), _) => error.take(),
            _ => None,
        }
    }

    /// Whether its queue pair is somewhere else, to be destroyed.
    pub(crate) const fn is_closing(&self) -> bool {
        matches!(self.state, State::Down(Rest::Closing, _))
    }

    /// How an operation ends whose completion will not come, now that the queue pair is closed.
    pub(crate) fn unanswered(&self) -> TransportError {
        match self.state {
            State::Down(Rest::Stuck(_), _) => TransportError::Stuck,
            State::Down(_, reason) => TransportError::Aborted(reason),
            State::Up(_) => TransportError::CLOSED,
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

    /// A failed request has taken its queue pair to ERROR; or it is flushed since this side did, or
    /// since another failed before.
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

// Apart, so that the good way has the credits in memory only.
#[cold]
#[inline(never)]
const fn put_back(left: &mut u32, credits: u32) {
    *left = left.wrapping_add(credits);
}
