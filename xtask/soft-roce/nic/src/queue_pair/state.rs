//! States of a queue pair, and which attributes each transition takes (10.3.1, 11.2).

use bitflags::bitflags;

use crate::error::{Result, invalid};
use crate::packet::Transport;

/// The state of a queue pair, with C's numbers (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum QueuePairState {
    /// Made, or taken back: nothing is posted, nothing received.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drain: what has begun ends, and nothing new begins.
    Sqd = 4,
    /// Send queue error, of UC and UD: sends are flushed, receives go on.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

bitflags! {
    /// The attributes that a change is about; the bits are C's (`ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct AttributeMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `current_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`; an event is always sent, as rxe does.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `path`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The alternate path, which this card takes and never uses, as rxe.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The migration state, which this card takes and never uses, as rxe.
        const PATH_MIG_STATE = 1 << 18;
        /// Capacities, which no transition takes: queues are not resized.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
    }
}

/// The attributes that a transition needs, and those that it may have beside; nothing if there is no such
/// transition.
fn transition(
    transport: Transport,
    from: QueuePairState,
    to: QueuePairState,
) -> Option<(AttributeMask, AttributeMask)> {
    use AttributeMask as M;
    use QueuePairState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use Transport::{Rc, Uc, Ud};
    let none = M::empty();
    let begin = M::PKEY_INDEX | M::PORT;
    let peer = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let retry = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let live = M::CUR_STATE | M::ACCESS_FLAGS | M::ALT_PATH | M::PATH_MIG_STATE;
    let paths = M::AV | M::ALT_PATH | M::PATH_MIG_STATE;
    let serving = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let own = match transport {
        Ud => M::QKEY,
        Rc | Uc => M::ACCESS_FLAGS,
    };
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Init) => (begin | own, none),
        (Reset, _) => return None,
        (_, Err) => (none, none),
        (Init, Init) => (none, begin | own),
        (Init, Rtr) => match transport {
            Rc => (peer | serving, M::ALT_PATH | own | M::PKEY_INDEX),
            Uc => (peer, M::ALT_PATH | own | M::PKEY_INDEX),
            Ud => (none, M::PKEY_INDEX | own),
        },
        (Rtr, Rts) => match transport {
            Rc => (M::SQ_PSN | retry, live | M::MIN_RNR_TIMER),
            Uc => (M::SQ_PSN, live),
            Ud => (M::SQ_PSN, M::CUR_STATE | own),
        },
        (Rts | Sqd, Rts) => match transport {
            Rc => (none, live | M::MIN_RNR_TIMER),
            Uc => (none, live),
            Ud => (none, M::CUR_STATE | own),
        },
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => match transport {
            Rc => (none, retry | begin | own | paths | serving),
            Uc => (none, paths | own | M::PKEY_INDEX),
            Ud => (none, M::PKEY_INDEX | own),
        },
        (Sqe, Rts) if transport != Rc => (none, M::CUR_STATE | own),
        (Init | Rtr | Rts | Sqd | Sqe | Err, _) => return None,
    })
}

impl AttributeMask {
    /// The attributes that a queue pair needs on its way to a state: from RESET to INIT, RTR and RTS.
    #[must_use]
    pub fn needed(transport: Transport, to: QueuePairState) -> Self {
        let from = match to {
            QueuePairState::Rts => QueuePairState::Rtr,
            QueuePairState::Rtr => QueuePairState::Init,
            _ => QueuePairState::Reset,
        };
        let needed = transition(transport, from, to).map(|(needed, _)| needed);
        Self::STATE | needed.unwrap_or_default()
    }
}

/// Refuses what `ibv_modify_qp` refuses with `EINVAL`: a transition that does not exist, an attribute that is
/// missing, or one that does not belong to it.
pub(super) fn check(
    transport: Transport,
    from: QueuePairState,
    to: QueuePairState,
    mask: AttributeMask,
) -> Result<()> {
    let Some((required, optional)) = transition(transport, from, to) else {
        return Err(invalid("there is no transition between these states"));
    };
    if !mask.contains(required) {
        return Err(invalid(
            "an attribute that this transition needs is missing",
        ));
    }
    if !(required | optional | AttributeMask::STATE).contains(mask) {
        return Err(invalid("an attribute does not belong to this transition"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{AttributeMask, QueuePairState, check};
    use crate::packet::Transport;

    #[test]
    fn masks_are_checked_as_by_the_kernel() {
        use QueuePairState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
        let rc = Transport::Rc;
        let begin = AttributeMask::PKEY_INDEX | AttributeMask::PORT;
        let init = begin | AttributeMask::ACCESS_FLAGS;
        assert!(check(rc, Reset, Init, init | AttributeMask::STATE).is_ok());
        assert!(check(rc, Reset, Init, begin).is_err(), "one is missing");
        assert!(
            check(rc, Reset, Init, init | AttributeMask::QKEY).is_err(),
            "one too much"
        );
        assert!(check(Transport::Ud, Reset, Init, begin | AttributeMask::QKEY).is_ok());
        assert!(check(rc, Reset, Rtr, init).is_err());
        assert!(check(rc, Rts, Rtr, AttributeMask::empty()).is_err());
        assert!(check(rc, Rts, Sqd, AttributeMask::EN_SQD_ASYNC_NOTIFY).is_ok());
        assert!(
            check(rc, Sqe, Rts, AttributeMask::empty()).is_err(),
            "RC has no SQE"
        );
        assert!(check(Transport::Uc, Sqe, Rts, AttributeMask::ACCESS_FLAGS).is_ok());
        for state in [Init, Rtr, Rts, Sqd, Sqe] {
            assert!(check(rc, state, QueuePairState::Err, AttributeMask::STATE).is_ok());
            assert!(check(rc, state, Reset, AttributeMask::STATE).is_ok());
        }
    }
}
