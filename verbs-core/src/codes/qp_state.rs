//! The states of a queue pair, and what each change of state needs.

use std::fmt;

use verbs_sys::{self as c, ibv_qp_type};

use super::macros::open_enum;

open_enum! {
    /// A state of a queue pair.
    QpState(u32), "ibv_qp_state";
    /// New, or reset: nothing is posted.
    RESET = IBV_QPS_RESET "IBV_QPS_RESET",
    /// Receives can be posted, but no data is transferred.
    INIT = IBV_QPS_INIT "IBV_QPS_INIT",
    /// Ready to receive.
    RTR = IBV_QPS_RTR "IBV_QPS_RTR",
    /// Ready to send: connected.
    RTS = IBV_QPS_RTS "IBV_QPS_RTS",
    /// The send queue drains: requests that the device has started are finished, and no others begin.
    SQD = IBV_QPS_SQD "IBV_QPS_SQD",
    /// The send queue is in error, but receives still work (not RC).
    SQE = IBV_QPS_SQE "IBV_QPS_SQE",
    /// In error: everything that is posted is flushed. `ERROR` in texts about InfiniBand.
    ERR = IBV_QPS_ERR "IBV_QPS_ERR",
    /// The driver does not report the state.
    UNKNOWN = IBV_QPS_UNKNOWN "IBV_QPS_UNKNOWN",
}

bitflags::bitflags! {
    /// A set of attributes of a queue pair: which fields of a [`QpAttr`](crate::queue_pair::QpAttr) are set.
    ///
    /// See [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct QpAttrMask: u32 {
        /// `qp_state`.
        #[doc(alias = "IBV_QP_STATE")]
        const STATE = c::IBV_QP_STATE.0;
        /// `cur_qp_state`.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        const CUR_STATE = c::IBV_QP_CUR_STATE.0;
        /// `en_sqd_async_notify`.
        #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
        const EN_SQD_ASYNC_NOTIFY = c::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
        /// `qp_access_flags`.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        const ACCESS_FLAGS = c::IBV_QP_ACCESS_FLAGS.0;
        /// `pkey_index`.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        const PKEY_INDEX = c::IBV_QP_PKEY_INDEX.0;
        /// `port_num`.
        #[doc(alias = "IBV_QP_PORT")]
        const PORT = c::IBV_QP_PORT.0;
        /// `qkey`.
        #[doc(alias = "IBV_QP_QKEY")]
        const QKEY = c::IBV_QP_QKEY.0;
        /// `ah_attr`.
        #[doc(alias = "IBV_QP_AV")]
        const AV = c::IBV_QP_AV.0;
        /// `path_mtu`.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        const PATH_MTU = c::IBV_QP_PATH_MTU.0;
        /// `timeout`.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        const TIMEOUT = c::IBV_QP_TIMEOUT.0;
        /// `retry_cnt`.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        const RETRY_CNT = c::IBV_QP_RETRY_CNT.0;
        /// `rnr_retry`.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        const RNR_RETRY = c::IBV_QP_RNR_RETRY.0;
        /// `rq_psn`.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        const RQ_PSN = c::IBV_QP_RQ_PSN.0;
        /// `max_rd_atomic`.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        const MAX_QP_RD_ATOMIC = c::IBV_QP_MAX_QP_RD_ATOMIC.0;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        const ALT_PATH = c::IBV_QP_ALT_PATH.0;
        /// `min_rnr_timer`.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        const MIN_RNR_TIMER = c::IBV_QP_MIN_RNR_TIMER.0;
        /// `sq_psn`.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        const SQ_PSN = c::IBV_QP_SQ_PSN.0;
        /// `max_dest_rd_atomic`.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        const MAX_DEST_RD_ATOMIC = c::IBV_QP_MAX_DEST_RD_ATOMIC.0;
        /// `path_mig_state`.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        const PATH_MIG_STATE = c::IBV_QP_PATH_MIG_STATE.0;
        /// `cap`.
        #[doc(alias = "IBV_QP_CAP")]
        const CAP = c::IBV_QP_CAP.0;
        /// `dest_qp_num`.
        #[doc(alias = "IBV_QP_DEST_QPN")]
        const DEST_QPN = c::IBV_QP_DEST_QPN.0;
        /// `rate_limit`.
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        const RATE_LIMIT = c::IBV_QP_RATE_LIMIT.0;

        // Attributes of newer libraries are kept as they are.
        const _ = !0;
    }
}

impl QpAttrMask {
    /// All attributes that have a name here; a driver may reject others.
    pub(crate) const KNOWN: Self = Self::from_bits_retain((c::IBV_QP_DEST_QPN.0 << 1) - 1);
}

impl fmt::Display for QpAttrMask {
    /// C's names: `IBV_QP_STATE | IBV_QP_PORT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}IBV_QP_{name}")?;
            separator = " | ";
        }
        Ok(())
    }
}

impl fmt::Debug for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Attributes that a transition requires and allows beside the state; `None` where there is no such
/// transition.
fn transition(
    qp_type: ibv_qp_type,
    from: QpState,
    to: QpState,
) -> Option<(QpAttrMask, QpAttrMask)> {
    match qp_type {
        c::IBV_QPT_UD => datagram(from, to),
        c::IBV_QPT_UC => unreliable(from, to),
        _ => reliable(from, to),
    }
}

/// Transitions of an RC queue pair.
fn reliable(from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    use QpAttrMask as A;
    const NONE: A = A::empty();
    const INIT: A = A::PKEY_INDEX.union(A::PORT).union(A::ACCESS_FLAGS);
    const RTS: A = A::CUR_STATE
        .union(A::ALT_PATH)
        .union(A::ACCESS_FLAGS)
        .union(A::MIN_RNR_TIMER)
        .union(A::PATH_MIG_STATE);
    Some(match (from, to) {
        (_, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (INIT, NONE),
        (QpState::INIT, QpState::INIT) => (NONE, INIT),
        (QpState::INIT, QpState::RTR) => (
            A::AV
                | A::PATH_MTU
                | A::DEST_QPN
                | A::RQ_PSN
                | A::MAX_DEST_RD_ATOMIC
                | A::MIN_RNR_TIMER,
            A::ALT_PATH | A::ACCESS_FLAGS | A::PKEY_INDEX,
        ),
        (QpState::RTR, QpState::RTS) => (
            A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_QP_RD_ATOMIC,
            RTS,
        ),
        (QpState::RTS | QpState::SQD, QpState::RTS) => (NONE, RTS),
        (QpState::RTS, QpState::SQD) => (NONE, A::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (
            NONE,
            A::PORT
                | A::AV
                | A::TIMEOUT
                | A::RETRY_CNT
                | A::RNR_RETRY
                | A::MAX_QP_RD_ATOMIC
                | A::MAX_DEST_RD_ATOMIC
                | A::ALT_PATH
                | A::ACCESS_FLAGS
                | A::PKEY_INDEX
                | A::MIN_RNR_TIMER
                | A::PATH_MIG_STATE,
        ),
        _ => return None,
    })
}

/// Transitions of a UC queue pair: nothing is acknowledged, so there is nothing to retry or to wait
/// for.
fn unreliable(from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    use QpAttrMask as A;
    const ACKNOWLEDGED: A = A::MAX_DEST_RD_ATOMIC
        .union(A::MIN_RNR_TIMER)
        .union(A::TIMEOUT)
        .union(A::RETRY_CNT)
        .union(A::RNR_RETRY)
        .union(A::MAX_QP_RD_ATOMIC)
        .union(A::PORT);
    match (from, to) {
        (QpState::SQE, QpState::RTS) => Some((A::empty(), A::CUR_STATE | A::ACCESS_FLAGS)),
        (QpState::RESET, QpState::INIT) | (QpState::INIT, QpState::INIT) => reliable(from, to),
        _ => reliable(from, to)
            .map(|(needs, may)| (needs.difference(ACKNOWLEDGED), may.difference(ACKNOWLEDGED))),
    }
}

/// Transitions of a UD queue pair: no peer, so no path, but a Q_Key.
fn datagram(from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    use QpAttrMask as A;
    const NONE: A = A::empty();
    const INIT: A = A::PKEY_INDEX.union(A::PORT).union(A::QKEY);
    const RTS: A = A::CUR_STATE.union(A::QKEY);
    Some(match (from, to) {
        (_, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (INIT, NONE),
        (QpState::INIT, QpState::INIT) => (NONE, INIT),
        (QpState::INIT, QpState::RTR) | (QpState::SQD, QpState::SQD) => {
            (NONE, A::PKEY_INDEX | A::QKEY)
        }
        (QpState::RTR, QpState::RTS) => (A::SQ_PSN, RTS),
        (QpState::RTS | QpState::SQD | QpState::SQE, QpState::RTS) => (NONE, RTS),
        (QpState::RTS, QpState::SQD) => (NONE, A::EN_SQD_ASYNC_NOTIFY),
        _ => return None,
    })
}

/// The attributes that a refused change of state lacked, and those that it should not have had.
/// Where there is no such change, the state itself is what it should not have had.
pub(crate) fn diagnose(
    qp_type: ibv_qp_type,
    from: QpState,
    to: QpState,
    given: QpAttrMask,
) -> (QpAttrMask, QpAttrMask) {
    let given_besides = given - QpAttrMask::STATE;
    match transition(qp_type, from, to) {
        Some((required, optional)) => (
            required - given_besides,
            given_besides - required - optional,
        ),
        None => (QpAttrMask::empty(), QpAttrMask::STATE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_extra_attributes_are_named() {
        let given = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::TIMEOUT;
        let (missing, extra) = diagnose(c::IBV_QPT_RC, QpState::RESET, QpState::INIT, given);
        assert_eq!(
            missing.to_string(),
            "IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX"
        );
        assert_eq!(extra.to_string(), "IBV_QP_TIMEOUT");
    }

    #[test]
    fn correct_mask_has_no_missing_or_extra_attributes() {
        let given = QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        let (missing, extra) = diagnose(c::IBV_QPT_RC, QpState::RTR, QpState::RTS, given);
        assert!(missing.is_empty() && extra.is_empty());
        let (missing, extra) =
            diagnose(c::IBV_QPT_RC, QpState::RTS, QpState::ERR, QpAttrMask::STATE);
        assert!(missing.is_empty() && extra.is_empty());
    }

    #[test]
    fn impossible_transition_is_reported_as_such() {
        let (_, extra) = diagnose(
            c::IBV_QPT_RC,
            QpState::RESET,
            QpState::RTS,
            QpAttrMask::STATE,
        );
        assert_eq!(extra, QpAttrMask::STATE);
    }
    #[test]
    fn unreliable_connection_has_nothing_to_retry() {
        let (from, to) = (QpState::INIT, QpState::RTR);
        let needs =
            QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        assert_eq!(
            diagnose(c::IBV_QPT_UC, from, to, QpAttrMask::MIN_RNR_TIMER),
            (needs, QpAttrMask::MIN_RNR_TIMER)
        );
        let (from, to) = (QpState::RTR, QpState::RTS);
        assert_eq!(
            diagnose(c::IBV_QPT_UC, from, to, QpAttrMask::TIMEOUT),
            (QpAttrMask::SQ_PSN, QpAttrMask::TIMEOUT)
        );
    }

    #[test]
    fn datagrams_have_a_qkey_and_no_path() {
        let (from, to) = (QpState::RESET, QpState::INIT);
        let (missing, _) = diagnose(c::IBV_QPT_UD, from, to, QpAttrMask::STATE);
        assert_eq!(
            missing.to_string(),
            "IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY"
        );
        let (from, to) = (QpState::INIT, QpState::RTR);
        let (_, extra) = diagnose(c::IBV_QPT_UD, from, to, QpAttrMask::AV);
        assert_eq!(extra, QpAttrMask::AV);
        let (from, to) = (QpState::RTR, QpState::RTS);
        let (missing, _) = diagnose(c::IBV_QPT_UD, from, to, QpAttrMask::STATE);
        assert_eq!(missing, QpAttrMask::SQ_PSN);
    }
}
