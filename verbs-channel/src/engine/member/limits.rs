//! The gate: the checks of each request before the driver gets it.
//!
//! Drivers' own checks are no safety boundary: they add up lengths in 32 bits, so that a list of 4 GiB
//! is 0 bytes long, and an inline list of that length is copied past the end of the driver's queue.
//! Everything safe that posts goes through here: one request, each of a batch, and receives.

use verbs_core::QueuePair;

use crate::error::{Queue, RejectReason};
use crate::request::Needs;

/// The limits of a queue pair.
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
