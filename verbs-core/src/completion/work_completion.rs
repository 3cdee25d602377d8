//! Completions and their contents.
#![expect(unsafe_code, reason = "reads the unions of `ibv_wc`")]

use std::fmt;

use verbs_sys::{IBV_WC_IP_CSUM_OK, IBV_WC_RECV, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc};

use crate::codes::macros::man;
use crate::codes::wc_status::Kind;
use crate::codes::{WcOpcode, WcStatus};
use crate::error::WorkError;

/// A completion: it identifies a work request, and has its outcome.
#[doc = man!("ibv_poll_cq")]
#[derive(Clone, Copy)]
#[repr(transparent)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    pub(super) wc: ibv_wc,
}

/// A work request that succeeded, and the fields of its completion.
#[derive(Clone, Copy)]
#[repr(transparent)]
#[doc(alias = "ibv_wc")]
pub struct WorkSuccess {
    pub(super) wc: ibv_wc,
}

impl WorkCompletion {
    /// The ID of the work request, as given when it was posted.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// The status: [`SUCCESS`](WcStatus::SUCCESS), or how the request failed.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.wc.status.0)
    }

    /// The number of the queue pair it was posted on.
    #[inline]
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.wc.qp_num
    }

    /// The outcome: the completion's fields, or how the request failed.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for every status but success.
    #[inline]
    pub const fn result(&self) -> Result<WorkSuccess, WorkError> {
        if self.wc.status.0 == WcStatus::SUCCESS.as_raw() {
            Ok(WorkSuccess { wc: self.wc })
        } else {
            Err(self.error())
        }
    }

    /// The fields of a request that succeeded, by reference; `None` if it failed.
    ///
    /// [`result`](Self::result) copies them instead.
    #[inline]
    #[must_use]
    pub const fn success(&self) -> Option<&WorkSuccess> {
        if self.wc.status.0 != WcStatus::SUCCESS.as_raw() {
            return None;
        }
        // SAFETY: both are an `ibv_wc`, and `self` stays borrowed.
        Some(unsafe { &*std::ptr::from_ref(self).cast::<WorkSuccess>() })
    }

    #[cold]
    #[inline(never)] // `result` loads nothing for it then.
    const fn error(&self) -> WorkError {
        WorkError {
            status: self.status(),
            vendor_err: self.wc.vendor_err,
            wr_id: self.wc.wr_id,
            qp_num: self.wc.qp_num,
            kind: Kind::Any,
        }
    }
}

impl WorkSuccess {
    /// The ID of the work request, as given when it was posted.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// The number of the queue pair it was posted on.
    #[inline]
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.wc.qp_num
    }

    /// The kind of request that completed.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.wc.opcode.0)
    }

    /// How many bytes arrived, for a receive, a read or an atomic. Undefined for sends and writes. For a
    /// datagram, it counts the [`Grh::LEN`](crate::completion::Grh::LEN) bytes before it, too.
    ///
    /// If the peer's write with immediate completed the receive, the bytes are where the peer wrote
    /// them, not in the buffers of the receive. If the peer may write, check the
    /// [`opcode`](Self::opcode) first.
    #[inline]
    #[must_use]
    pub const fn byte_len(&self) -> u32 {
        self.wc.byte_len
    }

    /// The message that arrived, for a receive of one element. `bytes` are the bytes of that element.
    ///
    /// It is `None` for all other requests, and for a receive that a write with immediate completed: its
    /// bytes are elsewhere. It is also `None` if `bytes` is shorter than the message, and so is not the
    /// whole element.
    ///
    /// ```
    /// # use verbs_core::{MemoryRegion, WorkSuccess};
    /// # fn example(inbox: &MemoryRegion<Vec<u8>>, received: &WorkSuccess) {
    /// if let Some(message) = received.message_in(inbox) {
    ///     println!("{} bytes", message.len());
    /// }
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn message_in<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.opcode() != WcOpcode::RECV {
            return None;
        }
        bytes.get(..usize::try_from(self.byte_len()).ok()?)
    }

    /// The error of a message that the driver reports as longer than its buffer, which has these bytes.
    #[doc(hidden)]
    pub fn check_message(&self, buffer: &[u8]) -> Result<(), WorkError> {
        let is_message = self.opcode() == WcOpcode::RECV;
        if !is_message || self.message_in(buffer).is_some() {
            return Ok(());
        }
        Err(WorkError {
            status: WcStatus::LOC_LEN_ERR,
            vendor_err: self.wc.vendor_err,
            wr_id: self.wc.wr_id,
            qp_num: self.wc.qp_num,
            kind: Kind::of(WcOpcode::RECV),
        })
    }

    /// The peer's immediate data in this machine's byte order; `None` if it sent none.
    #[inline]
    #[must_use]
    pub const fn imm_data(&self) -> Option<u32> {
        if !self.brings(IBV_WC_WITH_IMM.0) {
            return None;
        }
        // SAFETY: with this flag the union holds it.
        let imm_data = unsafe { self.wc.imm_data() };
        Some(u32::from_be(imm_data.0))
    }

    /// The local key that the peer's send [invalidated](crate::SendWorkRequest::invalidate), if any.
    #[inline]
    #[must_use]
    pub const fn invalidated_rkey(&self) -> Option<u32> {
        // Soft-RoCE has the kernel's flag. C's of the same value is for datagrams, which have a sender.
        let of_kernel = self.brings(IBV_WC_IP_CSUM_OK.0) && self.wc.src_qp == 0;
        if !self.brings(IBV_WC_WITH_INV.0) && !of_kernel {
            return None;
        }
        // SAFETY: both fields of the union are plain numbers.
        Some(unsafe { self.wc.invalidated_rkey() })
    }

    /// Whether the peer's message brought this. Some drivers set the flag in the sender's own
    /// completion too, where there is nothing.
    const fn brings(&self, flag: u32) -> bool {
        self.wc.wc_flags & flag != 0 && self.wc.opcode.0 & IBV_WC_RECV.0 != 0
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result() {
            Ok(success) => fmt::Debug::fmt(&success, f),
            Err(error) => fmt::Debug::fmt(&error, f),
        }
    }
}

impl fmt::Debug for WorkSuccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkSuccess")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("imm_data", &self.imm_data())
            .field("qp_num", &format_args!("{:#x}", self.qp_num()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::examples::work_error;
    use verbs_sys::{
        __be32, IBV_WC_RDMA_READ, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, ibv_wc_status,
    };

    fn completion(change: impl FnOnce(&mut ibv_wc)) -> WorkCompletion {
        let mut wc = ibv_wc::default();
        change(&mut wc);
        WorkCompletion { wc }
    }

    #[test]
    fn success_has_length_and_immediate() {
        let completion = completion(|wc| {
            wc.wr_id = 7;
            wc.opcode = IBV_WC_RECV;
            wc.byte_len = 64;
            wc.wc_flags = IBV_WC_WITH_IMM.0;
            wc.__bindgen_anon_1.imm_data = __be32(0x0102_0304_u32.to_be());
        });
        let success = completion.result().unwrap();
        assert_eq!((success.wr_id(), success.byte_len()), (7, 64));
        assert_eq!(success.opcode(), WcOpcode::RECV);
        assert_eq!(success.imm_data(), Some(0x0102_0304));
        assert_eq!(success.invalidated_rkey(), None);
    }

    #[test]
    fn only_receives_of_messages_bring_one() {
        let of = |opcode, byte_len| {
            let change = |wc: &mut ibv_wc| (wc.opcode, wc.byte_len) = (opcode, byte_len);
            completion(change).result().unwrap()
        };
        let bytes = b"hello....";
        let received = of(IBV_WC_RECV, 5);
        assert_eq!(received.message_in(bytes), Some(&b"hello"[..]));
        assert_eq!(received.message_in(b"hell"), None, "not its bytes");
        assert_eq!(of(IBV_WC_RECV, 0).message_in(bytes), Some(&b""[..]));
        for other in [IBV_WC_SEND, IBV_WC_RDMA_READ, IBV_WC_RECV_RDMA_WITH_IMM] {
            assert_eq!(of(other, 5).message_in(bytes), None);
        }
    }

    #[test]
    fn without_the_flag_there_is_no_immediate() {
        let success = completion(|_| {}).result().unwrap();
        assert_eq!(success.imm_data(), None);
    }

    #[test]
    fn send_completion_has_no_immediate_whatever_its_flags() {
        let completion = completion(|wc| wc.wc_flags = IBV_WC_WITH_IMM.0 | IBV_WC_WITH_INV.0);
        let success = completion.result().unwrap();
        assert_eq!(success.opcode(), WcOpcode::SEND);
        assert_eq!(success.imm_data(), None);
        assert_eq!(success.invalidated_rkey(), None);
    }

    #[test]
    fn invalidated_key_is_found_with_the_flag_of_c_and_with_that_of_the_kernel() {
        let of = |flag: u32, src_qp| {
            let received = completion(|wc| {
                (wc.opcode, wc.wc_flags, wc.src_qp) = (IBV_WC_RECV, flag, src_qp);
                wc.__bindgen_anon_1.invalidated_rkey = 7;
            });
            received.result().unwrap().invalidated_rkey()
        };
        assert_eq!(of(IBV_WC_WITH_INV.0, 0), Some(7));
        assert_eq!(of(IBV_WC_IP_CSUM_OK.0, 0), Some(7));
        assert_eq!(of(IBV_WC_IP_CSUM_OK.0, 2), None, "a datagram");
        assert_eq!(of(0, 0), None);
    }

    #[test]
    fn success_is_returned_by_reference() {
        let done = completion(|wc| wc.byte_len = 64);
        let len = done.success().map(WorkSuccess::byte_len);
        assert_eq!(len, Some(64));
        assert!(
            completion(|wc| wc.status = ibv_wc_status(5))
                .success()
                .is_none()
        );
    }

    #[test]
    fn failure_text_has_the_remedy() {
        let error = completion(|wc| {
            wc.status = verbs_sys::IBV_WC_RNR_RETRY_EXC_ERR;
            wc.vendor_err = 0x87;
            wc.wr_id = 3;
            wc.qp_num = 0x11;
        });
        let error = error.result().unwrap_err();
        assert_eq!(error.status, WcStatus::RNR_RETRY_EXC_ERR);
        assert_eq!(
            error.to_string(),
            "IBV_WC_RNR_RETRY_EXC_ERR on QP 0x11: the peer had no receive posted after all retries: \
             post receives before the peer sends (vendor code 0x87)"
        );
        assert!(format!("{error:?}").ends_with("(vendor code 0x87) [WorkError of wr_id 3]"));
    }

    #[test]
    fn text_follows_the_opcode_where_it_is_known() {
        let mut error = work_error();
        error.status = WcStatus::REM_INV_REQ_ERR;
        assert!(error.to_string().contains(": for a send, check"), "{error}");
        let error = error.for_opcode(WcOpcode::RDMA_WRITE);
        assert!(error.to_string().contains("REMOTE_WRITE"), "{error}");
        assert!(!error.to_string().contains("receive"), "{error}");
    }
}
