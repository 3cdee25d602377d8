//! The statuses of completions, and what to do about each.

use super::macros::open_enum;
use super::wc_opcode::WcOpcode;

open_enum! {
    /// How a work request ended: the status of a completion.
    ///
    /// [`advice_for`](Self::advice_for) an opcode is what to do about it, or [`advice`](Self::advice) where the opcode is
    /// not known.
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
    /// The request was flushed: its queue pair got to `ERR` before it completed. Look at the first
    /// failure. The peer may have received all or a part of a send, write or atomic, if only the
    /// acknowledgement was missing.
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR "IBV_WC_WR_FLUSH_ERR",
    /// A memory window could not be bound: check its access and its region's.
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR "IBV_WC_MW_BIND_ERR",
    /// The peer's answer is not valid.
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR "IBV_WC_BAD_RESP_ERR",
    /// A local region does not permit writing: register it with `LOCAL_WRITE`.
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR "IBV_WC_LOC_ACCESS_ERR",
    /// The peer finds the request invalid: for a send, check its receive's length; for others, its queue pair's access.
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR "IBV_WC_REM_INV_REQ_ERR",
    /// The peer's memory may not be touched like this: check `rkey`, bounds and access flags.
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR "IBV_WC_REM_ACCESS_ERR",
    /// The peer could not carry out the request: look at the peer's own completion.
    REM_OP_ERR = IBV_WC_REM_OP_ERR "IBV_WC_REM_OP_ERR",
    /// No answer after all retries: the link is down, the peer is gone or has no receive posted
    /// (soft-RoCE reports this instead of [`RNR_RETRY_EXC_ERR`](Self::RNR_RETRY_EXC_ERR)), or the
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
    /// The meaning of the status and what to do about it, in one clause, for a request of any kind.
    #[must_use]
    #[doc(alias = "ibv_wc_status_str")]
    pub const fn advice(self) -> &'static str {
        self.text(Kind::Any)
    }

    /// The same for a request of this kind: the opcode of its completion if it had succeeded.
    ///
    /// A write with immediate data is a write. A receive that such a write completes is a receive.
    #[must_use]
    pub const fn advice_for(self, opcode: WcOpcode) -> &'static str {
        self.text(Kind::of(opcode))
    }

    pub(crate) const fn text(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::SUCCESS, _) => "success",
            (Self::LOC_LEN_ERR, Kind::Receive) => {
                "the message is longer than the receive: post larger receives"
            }
            (Self::LOC_LEN_ERR, Kind::Any) => {
                "for a receive, the message is longer than its buffers: post larger receives; other requests are longer than the port's max_msg_sz"
            }
            (Self::LOC_LEN_ERR, _) => {
                "the request is longer than the port's max_msg_sz, or a datagram than a packet: make several of it"
            }
            (Self::LOC_QP_OP_ERR, Kind::Receive) => {
                "this side's queue pair could not receive: the message is longer than the receive, or a buffer is of another protection domain"
            }
            (Self::LOC_QP_OP_ERR, Kind::Any) => {
                "this side's queue pair could not carry out the request: the port is down or has lost its address, a buffer is of another protection domain, or, for a receive, the message is longer than its buffers"
            }
            (Self::LOC_QP_OP_ERR, _) => {
                "this side's queue pair could not carry out the request: the port is down or has lost its address, or a buffer is of another protection domain"
            }
            (Self::LOC_PROT_ERR, Kind::Key) => {
                "the region or window is not of the queue pair's protection domain: check key and PD"
            }
            (Self::LOC_PROT_ERR, _) => {
                "a local buffer is not registered in the queue pair's protection domain: check lkey and PD"
            }
            (Self::WR_FLUSH_ERR, Kind::Any | Kind::Send) => {
                "flushed, as the queue pair is in ERR: look at the first failure, or at the call that closed it; what was sent may have arrived at the peer all the same"
            }
            (Self::WR_FLUSH_ERR, Kind::Write | Kind::Atomic) => {
                "flushed, as the queue pair is in ERR: look at the first failure, or at the call that closed it; the peer's memory may have been changed all the same"
            }
            (Self::WR_FLUSH_ERR, _) => {
                "flushed, as the queue pair is in ERR: look at the first failure, or at the call that closed it"
            }
            (Self::MW_BIND_ERR, _) => "a memory window could not be bound: check access flags",
            (Self::BAD_RESP_ERR, _) => "the peer's answer is not valid",
            (Self::LOC_ACCESS_ERR, Kind::Send | Kind::Write | Kind::Key) => {
                "a local region does not permit this: check lkey and access flags"
            }
            (Self::LOC_ACCESS_ERR, _) => {
                "a local region does not permit writing: register it with LOCAL_WRITE"
            }
            (Self::REM_INV_REQ_ERR, Kind::Any) => {
                "the peer finds the request invalid: for a send, check whether its receive is long enough; for others, what its queue pair permits"
            }
            (Self::REM_INV_REQ_ERR, Kind::Send) => {
                "the peer finds the send invalid: check whether its receive is long enough"
            }
            (Self::REM_INV_REQ_ERR, Kind::Write) => {
                "the peer finds the write invalid: check whether its queue pair permits REMOTE_WRITE"
            }
            (Self::REM_INV_REQ_ERR, Kind::Read) => {
                "the peer finds the read invalid: check whether its queue pair permits REMOTE_READ, and its max_dest_rd_atomic"
            }
            (Self::REM_INV_REQ_ERR, Kind::Atomic) => {
                "the peer finds the atomic invalid: check whether its queue pair permits REMOTE_ATOMIC, its max_dest_rd_atomic, and that the address is divisible by 8"
            }
            (Self::REM_INV_REQ_ERR, _) => "the peer finds the request invalid",
            (Self::REM_ACCESS_ERR, Kind::Send) => "the peer's key may not be invalidated: check it",
            (Self::REM_ACCESS_ERR, Kind::Write) => {
                "the peer's memory may not be written like this: check rkey, bounds and REMOTE_WRITE"
            }
            (Self::REM_ACCESS_ERR, Kind::Read) => {
                "the peer's memory may not be read like this: check rkey, bounds and REMOTE_READ"
            }
            (Self::REM_ACCESS_ERR, Kind::Atomic) => {
                "the peer's memory may not be changed like this: check rkey, bounds and REMOTE_ATOMIC"
            }
            (Self::REM_ACCESS_ERR, _) => {
                "the peer's memory may not be touched like this: check rkey, bounds and access flags"
            }
            (Self::REM_OP_ERR, Kind::Any) => {
                "the peer could not carry out the request: look at the peer's own completion, and for a send whether its receive is long enough"
            }
            (Self::REM_OP_ERR, Kind::Send) => {
                "the peer could not receive: look at the peer's own completion, and whether its receive is long enough"
            }
            (Self::REM_OP_ERR, _) => {
                "the peer could not carry out the request: look at the peer's own failures and its device"
            }
            (Self::RETRY_EXC_ERR, Kind::Any) => {
                "no answer after all retries: the link is down, the peer is gone or the address is wrong; or, for a send, the peer has no receive posted"
            }
            (Self::RETRY_EXC_ERR, Kind::Send) => {
                "no answer after all retries: the link is down, the peer is gone or has no receive posted, or the address is wrong"
            }
            (Self::RETRY_EXC_ERR, _) => {
                "no answer after all retries: the link is down, the peer is gone or the address is wrong"
            }
            (Self::RNR_RETRY_EXC_ERR, _) => {
                "the peer had no receive posted after all retries: post receives before the peer sends"
            }
            (Self::REM_ABORT_ERR, _) => "the peer aborted the operation",
            (Self::FATAL_ERR, _) => "the transport broke: destroy the queue pair",
            (Self::RESP_TIMEOUT_ERR, _) => "the peer did not answer in time",
            (Self::GENERAL_ERR, _) => {
                "an error that the specification does not name: look at the vendor code"
            }
            _ => "see the device's documentation",
        }
    }
}

/// Kinds of requests whose failures have the same causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is unknown.
    Any,
    Receive,
    Send,
    Write,
    Read,
    Atomic,
    /// A bind of a window, or a local invalidation.
    Key,
}

impl Kind {
    pub(crate) const fn of(opcode: WcOpcode) -> Self {
        match opcode {
            WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM => Self::Receive,
            WcOpcode::SEND | WcOpcode::TSO => Self::Send,
            WcOpcode::RDMA_WRITE => Self::Write,
            WcOpcode::RDMA_READ => Self::Read,
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => Self::Atomic,
            WcOpcode::BIND_MW | WcOpcode::LOCAL_INV => Self::Key,
            _ => Self::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVES: [WcOpcode; 2] = [WcOpcode::RECV, WcOpcode::RECV_RDMA_WITH_IMM];
    const SENDS: [WcOpcode; 2] = [WcOpcode::SEND, WcOpcode::TSO];
    const WRITES: [WcOpcode; 1] = [WcOpcode::RDMA_WRITE];
    const READS: [WcOpcode; 1] = [WcOpcode::RDMA_READ];
    const ATOMICS: [WcOpcode; 2] = [WcOpcode::COMP_SWAP, WcOpcode::FETCH_ADD];
    const KEYS: [WcOpcode; 2] = [WcOpcode::BIND_MW, WcOpcode::LOCAL_INV];

    /// Words that are about some kinds of requests, and those kinds.
    const ABOUT: [(&str, &[&[WcOpcode]]); 12] = [
        // The peer's receive, and this side's.
        ("its receive is long enough", &[&SENDS]),
        ("no receive posted,", &[&SENDS]),
        ("longer than the receive", &[&RECEIVES]),
        ("post larger receives", &[&RECEIVES]),
        ("REMOTE_WRITE", &[&WRITES]),
        ("REMOTE_READ", &[&READS]),
        ("REMOTE_ATOMIC", &[&ATOMICS]),
        ("max_dest_rd_atomic", &[&READS, &ATOMICS]),
        (
            "rkey, bounds",
            &[&WRITES, &READS, &ATOMICS, &KEYS, &RECEIVES],
        ),
        ("LOCAL_WRITE", &[&RECEIVES, &READS, &ATOMICS]),
        (
            "the port is down",
            &[&SENDS, &WRITES, &READS, &ATOMICS, &KEYS],
        ),
        ("at the peer all the same", &[&SENDS]),
    ];

    /// All statuses, with those of newer libraries.
    fn statuses() -> impl Iterator<Item = WcStatus> {
        (0..40).map(WcStatus::from_raw)
    }

    #[test]
    fn advice_for_an_opcode_has_no_cause_of_others() {
        let all = [&RECEIVES[..], &SENDS, &WRITES, &READS, &ATOMICS, &KEYS].concat();
        for status in statuses() {
            for opcode in &all {
                let advice = status.advice_for(*opcode);
                assert!(!advice.contains("for a "), "{opcode:?}: {advice}");
                for (words, of) in ABOUT {
                    let is_its = of.iter().any(|opcodes| opcodes.contains(opcode));
                    let fits = is_its || !advice.contains(words);
                    assert!(fits, "{status:?} of {opcode:?}: {advice}");
                }
            }
        }
    }

    #[test]
    fn advice_for_a_request_of_any_kind_names_the_kinds_that_it_is_for() {
        for status in statuses() {
            let advice = status.advice();
            for (words, of) in ABOUT.into_iter().take(4) {
                // The words of the last cause may be about its own kind only.
                let is_bound = advice.contains("for a send") || advice.contains("for a receive");
                let fits = is_bound || !advice.contains(words);
                assert!(fits, "{status:?}, {of:?}: {advice}");
            }
        }
    }

    #[test]
    fn every_cause_is_in_the_advice_for_its_opcodes() {
        for (words, of) in ABOUT {
            let mut opcodes = of.iter().flat_map(|opcodes| opcodes.iter());
            let has = |opcode: &WcOpcode| {
                statuses().any(|status| status.advice_for(*opcode).contains(words))
            };
            assert!(opcodes.any(has), "{words}");
        }
    }

    #[test]
    fn failed_write_has_no_advice_about_receives() {
        for status in statuses().filter(|status| *status != WcStatus::RNR_RETRY_EXC_ERR) {
            let advice = status.advice_for(WcOpcode::RDMA_WRITE);
            assert!(!advice.contains("receive"), "{status:?}: {advice}");
        }
    }
}
