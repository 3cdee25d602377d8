//! A member of an engine: its queue pair, whether that takes work, and its credits.

use std::mem;

use verbs_core::{QueuePair, WcStatus, WorkError};

use crate::engine::Table;
use crate::error::{DownReason, Queue, TransportError};
use crate::peer::Peer;
use crate::slots::{Claim, Id};

/// A queue pair and its accounts.
#[derive(Debug)]
pub(crate) struct Member {
    state: State,
    // Places in its send queue and its receive queue that are free, and how many there are.
    left: [u32; 2],
    max: [u32; 2],
    /// Its number is nobody's any more.
    pub(crate) is_removed: bool,
    /// Its peer, by what shows that peer's end.
    pub(crate) peer: Peer,
}

/// Whether a member takes work.
#[derive(Debug)]
enum State {
    Up(QueuePair),
    /// Without the queue pair when it has been destroyed.
    Down(Option<QueuePair>, DownReason),
}

impl Member {
    pub(crate) fn new(qp: QueuePair, max_send_wr: u32, max_recv_wr: u32) -> Self {
        let max = [max_send_wr, max_recv_wr];
        Self {
            state: State::Up(qp),
            left: max,
            max,
            is_removed: false,
            peer: Peer::default(),
        }
    }

    /// Takes credits and a slot, if it is up and there are as many.
    #[inline(always)]
    pub(crate) fn take(&mut self, slots: &mut Table, claim: Claim) -> Option<(&QueuePair, Id)> {
        let State::Up(qp) = &self.state else {
            return None;
        };
        let left = &mut self.left[claim.queue as usize];
        let credits = u32::from(claim.credits);
        // Taken before it is known that they may be: the subtraction tells if not.
        let too_few;
        (*left, too_few) = left.overflowing_sub(credits);
        if !too_few && let Some(id) = slots.take(claim) {
            return Some((qp, id));
        }
        put_back(left, credits);
        None
    }

    /// Gives back the credits of as many operations that took up the same.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, claim: Claim, times: usize) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.left[claim.queue as usize] += u32::from(claim.credits) * times;
    }

    /// How many places there are in one of its queues.
    pub(crate) const fn capacity(&self, queue: Queue) -> u32 {
        self.max[queue as usize]
    }

    /// Its queue pair, unless it has been destroyed.
    pub(crate) const fn qp(&self) -> Option<&QueuePair> {
        match &self.state {
            State::Up(qp) => Some(qp),
            State::Down(qp, _) => qp.as_ref(),
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

    /// It takes no more work from now on; why, which is what was said first.
    pub(crate) fn go_down(&mut self, reason: DownReason) -> DownReason {
        let reason = self.down().unwrap_or(reason);
        self.state = State::Down(self.give_up(reason), reason);
        reason
    }

    /// [`go_down`](Self::go_down), and its queue pair, to be destroyed.
    pub(crate) fn give_up(&mut self, reason: DownReason) -> Option<QueuePair> {
        let reason = self.down().unwrap_or(reason);
        match mem::replace(&mut self.state, State::Down(None, reason)) {
            State::Up(qp) => Some(qp),
            State::Down(qp, _) => qp,
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

    /// A failed request has taken its queue pair to ERROR; or it is flushed since this side did.
    pub(crate) fn failed(&mut self, error: WorkError) -> TransportError {
        self.peer.let_go();
        match self.go_down(DownReason::Work(error)) {
            DownReason::Work(_) => TransportError::Work(error),
            reason if error.status == WcStatus::WR_FLUSH_ERR => TransportError::Aborted(reason),
            _ => TransportError::Work(error),
        }
    }
}

// Apart, so that the good way has the credits in memory only.
#[cold]
#[inline(never)]
const fn put_back(left: &mut u32, credits: u32) {
    *left = left.wrapping_add(credits);
}
