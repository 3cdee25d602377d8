//! The statuses of completions, and what to do about each.

use crate::macros::open_enum;

open_enum! {
    /// How a work request ended: the status of a completion.
    ///
    /// [`advice`](Self::advice) is what to do about it.
    WcStatus(u32), "ibv_wc_status";
    /// The request succeeded.
    SUCCESS = IBV_WC_SUCCESS "IBV_WC_SUCCESS",
    /// A local buffer is too short for the message: post larger receives.
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR "IBV_WC_LOC_LEN_ERR",
    /// This side's queue pair could not carry out the request: check it and its buffers. For a
    /// receive, the message may be longer than its buffers (soft-RoCE reports this instead of
    /// [`LOC_LEN_ERR`](Self::LOC_LEN_ERR)).
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR "IBV_WC_LOC_QP_OP_ERR",
    /// This side's end-to-end context could not carry out the request (RD only).
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR "IBV_WC_LOC_EEC_OP_ERR",
    /// A local element is not in a region of this protection domain: check `lkey` and PD.
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR "IBV_WC_LOC_PROT_ERR",
    /// The request was flushed: its queue pair got to `ERR` before it completed. Look at the first failure. Of a
    /// send, write or atomic, the peer may have received all or a part, if the acknowledgement was missing.
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR "IBV_WC_WR_FLUSH_ERR",
    /// A memory window could not be bound: check its access and its region's.
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR "IBV_WC_MW_BIND_ERR",
    /// The peer's answer is not valid.
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR "IBV_WC_BAD_RESP_ERR",
    /// A local region does not permit writing: register it with `LOCAL_WRITE`.
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR "IBV_WC_LOC_ACCESS_ERR",
    /// The peer finds the request invalid: check its receive's length and its queue pair's access.
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR "IBV_WC_REM_INV_REQ_ERR",
    /// The peer's memory may not be touched like this: check `rkey`, bounds and access flags.
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR "IBV_WC_REM_ACCESS_ERR",
    /// The peer could not carry out the request: look at the peer's own completion.
    REM_OP_ERR = IBV_WC_REM_OP_ERR "IBV_WC_REM_OP_ERR",
    /// No answer after all retries: the peer is gone or has no receive posted (soft-RoCE reports
    /// this instead of [`RNR_RETRY_EXC_ERR`](Self::RNR_RETRY_EXC_ERR)), the link is down, or the
    /// address is wrong.
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR "IBV_WC_RETRY_EXC_ERR",
    /// The peer had no receive posted, after all retries: post receives before the peer sends.
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR "IBV_WC_RNR_RETRY_EXC_ERR",
    /// A reliable datagram domain does not match (RD only).
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR "IBV_WC_LOC_RDD_VIOL_ERR",
    /// The peer finds the reliable datagram invalid (RD only).
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR "IBV_WC_REM_INV_RD_REQ_ERR",
    /// The peer aborted the operation.
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR "IBV_WC_REM_ABORT_ERR",
    /// An end-to-end context's number is invalid (RD only).
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR "IBV_WC_INV_EECN_ERR",
    /// An end-to-end context is in the wrong state (RD only).
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR "IBV_WC_INV_EEC_STATE_ERR",
    /// The transport broke: destroy the queue pair.
    FATAL_ERR = IBV_WC_FATAL_ERR "IBV_WC_FATAL_ERR",
    /// The peer did not answer in time.
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR "IBV_WC_RESP_TIMEOUT_ERR",
    /// Something else: look at the vendor's code.
    GENERAL_ERR = IBV_WC_GENERAL_ERR "IBV_WC_GENERAL_ERR",
    /// Tag matching failed.
    TM_ERR = IBV_WC_TM_ERR "IBV_WC_TM_ERR",
    /// A tagged rendezvous was left to software.
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE "IBV_WC_TM_RNDV_INCOMPLETE",
}

impl WcStatus {
    /// What the status means and what to do about it, in one clause.
    #[must_use]
    #[doc(alias = "ibv_wc_status_str")]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::LOC_LEN_ERR => {
                "a local buffer is too short for the message: post larger receives"
            }
            Self::LOC_QP_OP_ERR => {
                "this side's queue pair could not carry out the request: the message is longer than the receive, a buffer is of another protection domain, or the port is down or has lost its address"
            }
            Self::LOC_PROT_ERR => {
                "a local buffer is not registered in the queue pair's protection domain: check lkey and PD"
            }
            Self::WR_FLUSH_ERR => {
                "flushed, as the queue pair is in ERR: look at the first failure, or at the call that closed it; what was sent may have arrived at the peer all the same"
            }
            Self::MW_BIND_ERR => "a memory window could not be bound: check access flags",
            Self::BAD_RESP_ERR => "the peer's answer is not valid",
            Self::LOC_ACCESS_ERR => {
                "a local region does not permit writing: register it with LOCAL_WRITE"
            }
            Self::REM_INV_REQ_ERR => {
                "the peer finds the request invalid: check whether its receive is long enough, and what its queue pair permits"
            }
            Self::REM_ACCESS_ERR => {
                "the peer's memory may not be touched like this: check rkey, bounds and access flags"
            }
            Self::REM_OP_ERR => {
                "the peer could not carry out the request: look at the peer's own completion, and for a send whether its receive is long enough"
            }
            Self::RETRY_EXC_ERR => {
                "no answer after all retries: the peer is gone or has no receive posted, the link is down or the address is wrong"
            }
            Self::RNR_RETRY_EXC_ERR => {
                "the peer had no receive posted after all retries: post receives before the peer sends"
            }
            Self::REM_ABORT_ERR => "the peer aborted the operation",
            Self::FATAL_ERR => "the transport broke: destroy the queue pair",
            Self::RESP_TIMEOUT_ERR => "the peer did not answer in time",
            Self::GENERAL_ERR => {
                "an error that the specification does not name: look at the vendor code"
            }
            _ => "see the device's documentation",
        }
    }
}
