//! A member of an engine: its queue pair, which requests that takes, and its credits.

use std::mem;
use std::time::Instant;

use verbs_core::codes::WcStatus;
use verbs_core::{QueuePair, WorkError};

use super::afterwards::Queued;
use super::counters::Counts;
use super::peer::Peer;
use crate::channel_id::ChannelId;
use crate::error::{CloseError, DownReason, Queue, RejectReason, TransportError};
use crate::request::Needs;
pub(crate) use budget::{Budget, Shares};
pub(crate) use credits::{BufferOwner, Credits, NONE, Reservation, SlotList};

mod budget;
mod credits;

/// A queue pair, its credits and its slots.
#[derive(Debug)]
pub(crate) struct Member {
    state: MemberState,
    /// Its credits and its slots.
    pub(crate) credits: Credits,
    /// Limits of its queue pair.
    pub(crate) limits: Limits,
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
    /// The counts of its place before it had that.
    pub(crate) counted_before: Option<Box<Counts>>,
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

impl Member {
    pub(crate) fn new(id: ChannelId, qp: QueuePair, credits: Credits, peer: Peer) -> Self {
        Self {
            limits: Limits::of(&qp),
            state: MemberState::Up(qp),
            counted_before: credits.cells.counted(),
            credits,
            id,
            is_removed: false,
            is_end_reported: false,
            in_error_since: None,
            peer,
        }
    }

    /// One that is down, for tests.
    #[cfg(test)]
    pub(crate) fn without_queue_pair(at: u32, credits: Credits) -> Self {
        Self {
            limits: Limits::default(),
            state: MemberState::Down(Rest::Gone, DownReason::Closed),
            counted_before: None,
            credits,
            id: ChannelId::new(at),
            is_removed: false,
            is_end_reported: false,
            in_error_since: None,
            peer: super::peer::Peers::default().unwatched(),
        }
    }

    /// Its queue pair and its credits, if it takes requests.
    #[inline(always)]
    pub(crate) const fn up(&mut self) -> Option<(&QueuePair, &mut Credits)> {
        match &self.state {
            MemberState::Up(qp) => Some((qp, &mut self.credits)),
            MemberState::Down(..) => None,
        }
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
        if self.down().is_none() && !self.credits.is_idle() {
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

    /// Whether it is down, and its queue pair is to flush what is in flight.
    pub(super) fn is_flushing(&self) -> bool {
        matches!(self.state, MemberState::Down(Rest::QueuePair(_), _)) && !self.credits.is_idle()
    }

    /// A failed request has moved its queue pair to `ERR`; or it was flushed, since this side did so,
    /// another request failed before, or the connection has ended. Returns the outcome of the operation.
    pub(super) fn failed(
        &mut self,
        queue: Queue,
        error: WorkError,
        afterwards: &mut Queued,
    ) -> TransportError {
        afterwards.close(self.peer.close());
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

/// The limits of a queue pair. They are the gate: the checks of each request before the driver gets it.
///
/// Drivers' own checks are no safety boundary: they add up lengths in 32 bits, so that a list of 4 GiB
/// is 0 bytes long, and an inline list of that length is copied past the end of the driver's queue.
/// Everything safe that posts goes through here: one request, each of a batch, and receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    max_msg_sz: u32,
    max_inline_data: u32,
    max_send_sge: u32,
    max_read_sge: u32,
    max_recv_sge: u32,
    max_rd_atomic: u8,
}

impl Limits {
    pub(crate) fn of(qp: &QueuePair) -> Self {
        let cap = qp.cap();
        Self {
            max_msg_sz: qp.max_msg_sz(),
            max_inline_data: cap.max_inline_data,
            max_send_sge: cap.max_send_sge,
            max_read_sge: qp.max_read_sge(),
            max_recv_sge: cap.max_recv_sge,
            max_rd_atomic: qp.max_rd_atomic(),
        }
    }

    pub(crate) const fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    /// Whether requests for the send queue with these needs pass.
    #[inline(always)]
    pub(crate) fn admit(&self, needs: &Needs) -> bool {
        let Needs {
            len,
            elements,
            is_shared,
            is_read,
            ..
        } = *needs;
        let is_inline = needs.is_inline();
        let is_too_long = len > self.max_msg_sz.into();
        let is_not_inline = is_inline && (is_shared || len > self.max_inline_data.into());
        let are_many = are_too_many(elements, self.max_sge(is_read));
        let is_no_read = is_read && self.max_rd_atomic == 0;
        !(is_too_long || is_not_inline || are_many || is_no_read)
    }

    /// How many elements a request can have: iWARP devices take fewer for a read.
    #[inline(always)]
    const fn max_sge(&self, is_read: bool) -> u32 {
        if is_read {
            self.max_read_sge
        } else {
            self.max_send_sge
        }
    }

    /// Checks one request for this queue with these needs.
    #[inline(always)]
    pub(crate) fn check(&self, queue: Queue, needs: &Needs) -> Result<(), RejectReason> {
        let is_admitted = match queue {
            Queue::Send => self.admit(needs),
            Queue::Receive => self.admit_receive(needs),
        };
        if is_admitted {
            return Ok(());
        }
        // A copy: the whole would be in memory for this, where all is admitted, too.
        Err(self.reject_reason(queue, &needs.clone()))
    }

    /// Why a request with these needs does not pass.
    #[cold]
    #[inline(never)]
    fn reject_reason(&self, queue: Queue, needs: &Needs) -> RejectReason {
        let Needs {
            len,
            elements: count,
            is_shared,
            is_read,
            ..
        } = *needs;
        let is_inline = needs.is_inline();
        if queue == Queue::Receive {
            let max = self.max_recv_sge;
            return match u32::try_from(len) {
                Ok(_) => RejectReason::TooManyElements { count, max },
                Err(_) => RejectReason::ReceiveTooLong { len },
            };
        }
        if is_read && self.max_rd_atomic == 0 {
            return RejectReason::NoReads;
        }
        let max = self.max_msg_sz;
        if len > max.into() {
            return RejectReason::MessageTooLong { len, max };
        }
        if is_inline && is_shared {
            return RejectReason::SharedInline;
        }
        let max = self.max_inline_data;
        if is_inline && len > max.into() {
            return RejectReason::InlineTooLong { len, max };
        }
        let max = self.max_sge(is_read);
        RejectReason::TooManyElements { count, max }
    }

    /// Whether a receive with these needs passes. It may have room for more than the port can send, but not for
    /// 4 GiB.
    #[inline(always)]
    fn admit_receive(&self, needs: &Needs) -> bool {
        needs.len <= u32::MAX.into() && !are_too_many(needs.elements, self.max_recv_sge)
    }
}

/// Whether a request has more elements than a queue pair takes. One is always possible: each
/// queue pair is created for one.
#[inline(always)]
const fn are_too_many(count: usize, max: u32) -> bool {
    count > 1 && count > max as usize
}
