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

    /// Checks a send or a write.
    #[inline(always)]
    pub(crate) fn check_outgoing<L: List>(
        &self,
        list: &mut L,
        is_inline: bool,
    ) -> Result<(), Refusal> {
        let len = list.total_len();
        if len > self.max_msg_sz.into() {
            return Err(too_long(len, self.max_msg_sz));
        }
        if is_inline && (L::IS_SHARED || len > self.max_inline_data.into()) {
            return Err(not_inline::<L>(len, self.max_inline_data));
        }
        check_count(list, self.max_send_sge)
    }

    /// Checks a read or an atomic.
    #[inline(always)]
    pub(crate) fn check_incoming<L: List>(&self, list: &mut L) -> Result<(), Refusal> {
        if self.max_rd_atomic == 0 {
            return Err(Refusal::NoReads);
        }
        let len = list.total_len();
        if len > self.max_msg_sz.into() {
            return Err(too_long(len, self.max_msg_sz));
        }
        check_count(list, self.max_send_sge)
    }

    /// Checks a receive. It may have room for more than the port can send, but not for 4 GiB.
    #[inline(always)]
    pub(crate) fn check_receive<L: List>(&self, list: &mut L) -> Result<(), Refusal> {
        let len = list.total_len();
        if len > u32::MAX.into() {
            return Err(Refusal::ReceiveTooLong { len });
        }
        check_count(list, self.max_recv_sge)
    }
}

/// Checks the number of elements. One is always possible.
#[inline(always)]
fn check_count<L: List>(list: &mut L, max: u32) -> Result<(), Refusal> {
    let count = list.elements().len();
    if count > 1 && count > max as usize {
        return many(list.count(), max);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn many(count: usize, max: u32) -> Result<(), Refusal> {
    // Empty ones are left out.
    if count > max as usize {
        return Err(Refusal::TooManyElements { count, max });
    }
    Ok(())
}

#[cold]
#[inline(never)]
const fn too_long(len: u64, max: u32) -> Refusal {
    Refusal::MessageTooLong { len, max }
}

#[cold]
#[inline(never)]
fn not_inline<L: List>(len: u64, max: u32) -> Refusal {
    if L::IS_SHARED {
        return Refusal::SharedInline;
    }
    Refusal::InlineTooLong { len, max }
}
