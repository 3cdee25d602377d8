//! The gate: what is checked of each request before the driver gets it.
//!
//! Drivers' own checks are no safety boundary: they add up lengths in 32 bits, so that a list of 4 GiB
//! is 0 bytes long, and an inline list of that length is copied past the end of the driver's queue.
//! Everything safe that posts goes through here: one request, each of a batch, and receives.

use verbs_core::QueuePair;

use crate::error::Refusal;
use crate::list::List;

/// What a queue pair takes.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Limits {
    max_msg_sz: u32,
    max_inline_data: u32,
    max_send_sge: u32,
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
            max_recv_sge: cap.max_recv_sge,
            max_rd_atomic: qp.max_rd_atomic(),
        }
    }

    /// Whether a send or a write passes.
    #[inline(always)]
    pub(crate) fn admits_outgoing<L: List>(&self, list: &mut L, is_inline: bool) -> bool {
        let len = list.total_len();
        let is_too_long = len > self.max_msg_sz.into();
        let is_not_inline = is_inline && (L::IS_SHARED || len > self.max_inline_data.into());
        // Without a branch of its own for each: batches look at many.
        !(is_too_long | is_not_inline | has_many(list, self.max_send_sge))
    }

    /// Why a send or a write does not pass, if it does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_outgoing<L: List>(
        &self,
        list: &mut L,
        is_inline: bool,
    ) -> Result<(), Refusal> {
        let len = list.total_len();
        let max = self.max_msg_sz;
        if len > max.into() {
            return Err(Refusal::MessageTooLong { len, max });
        }
        let max = self.max_inline_data;
        if is_inline && L::IS_SHARED {
            return Err(Refusal::SharedInline);
        }
        if is_inline && len > max.into() {
            return Err(Refusal::InlineTooLong { len, max });
        }
        check_count(list, self.max_send_sge)
    }

    /// Whether a read or an atomic passes.
    #[inline(always)]
    pub(crate) fn admits_incoming<L: List>(&self, list: &mut L) -> bool {
        let is_too_long = list.total_len() > self.max_msg_sz.into();
        !((self.max_rd_atomic == 0) | is_too_long | has_many(list, self.max_send_sge))
    }

    /// Why a read or an atomic does not pass, if it does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_incoming<L: List>(&self, list: &mut L) -> Result<(), Refusal> {
        if self.max_rd_atomic == 0 {
            return Err(Refusal::NoReads);
        }
        self.check_outgoing(list, false)
    }

    /// Checks a receive. It may have room for more than the port can send, but not for 4 GiB.
    #[inline(always)]
    pub(crate) fn check_receive<L: List>(&self, list: &mut L) -> Result<(), Refusal> {
        if list.total_len() > u32::MAX.into() || has_many(list, self.max_recv_sge) {
            return self.refuse_receive(list);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn refuse_receive<L: List>(&self, list: &mut L) -> Result<(), Refusal> {
        let len = list.total_len();
        if len > u32::MAX.into() {
            return Err(Refusal::ReceiveTooLong { len });
        }
        check_count(list, self.max_recv_sge)
    }
}

/// Whether a list is longer than a request can be, with its empty elements. One element is always
/// possible.
#[inline(always)]
fn has_many<L: List>(list: &mut L, max: u32) -> bool {
    let count = list.elements().len();
    count > 1 && count > max as usize
}

/// Checks the number of elements. Empty ones are left out.
fn check_count<L: List>(list: &L, max: u32) -> Result<(), Refusal> {
    let count = list.count();
    if count > 1 && count > max as usize {
        return Err(Refusal::TooManyElements { count, max });
    }
    Ok(())
}
