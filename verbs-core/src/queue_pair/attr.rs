//! The attributes of a queue pair: to ask for, and to change.

use std::fmt;

use verbs_sys::{ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_cap, ibv_qp_state};

use super::timers::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};
use crate::codes::macros::{man, open_enum};
use crate::codes::{MaximumTransferUnit, QpAttrMask, QpState};
use crate::memory::AccessFlags;
use crate::path::AhAttr;

/// Attributes of a queue pair, to query or to modify, and a mask of those that are set.
///
/// [`QueuePair::query`](crate::QueuePair::query) returns all of them. For
/// [`QueuePair::modify`](crate::QueuePair::modify), start from [`new`](Self::new) and set some:
///
/// ```
/// use verbs_core::MinRnrTimer;
/// use verbs_core::codes::QpAttrMask;
/// use verbs_core::queue_pair::QpAttr;
///
/// let attr = QpAttr::new().with_min_rnr_timer(MinRnrTimer::new(1)?);
/// assert_eq!(attr.mask(), QpAttrMask::MIN_RNR_TIMER);
/// # Ok::<(), verbs_core::Error>(())
/// ```
#[doc = man!("ibv_modify_qp")]
#[derive(Clone, Copy)]
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttr {
    attr: ibv_qp_attr,
    mask: QpAttrMask,
}

macro_rules! attributes {
    ($(
        $(#[$attr:meta])*
        $set:ident, $get:ident: $type:ty, $mask:ident, |$value:ident| $to_c:expr, |$raw:ident| $from_c:expr => $read:ty;
    )*) => {$(
        $(#[$attr])*
        #[must_use]
        pub const fn $get(&self) -> $read {
            let $raw = self.attr.$get;
            $from_c
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
        #[must_use]
        pub const fn $set(mut self, $value: $type) -> Self {
            self.attr.$get = $to_c;
            self.mask = self.mask.union(QpAttrMask::$mask);
            self
        }
    )*};
}

impl QpAttr {
    /// A value with no attribute set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            attr: ibv_qp_attr::default(),
            mask: QpAttrMask::empty(),
        }
    }

    /// Which attributes are set.
    #[must_use]
    pub const fn mask(&self) -> QpAttrMask {
        self.mask
    }

    attributes! {
        /// The state that the queue pair is in, or is to be moved to.
        with_qp_state, qp_state: QpState, STATE,
            |state| ibv_qp_state(state.as_raw()), |raw| QpState::from_raw(raw.0) => QpState;
        /// The state that the caller assumes the queue pair to be in.
        with_cur_qp_state, cur_qp_state: QpState, CUR_STATE,
            |state| ibv_qp_state(state.as_raw()), |raw| QpState::from_raw(raw.0) => QpState;
        /// The path MTU: bytes of a message in one packet; `None` for an unknown code.
        with_path_mtu, path_mtu: MaximumTransferUnit, PATH_MTU,
            |mtu| ibv_mtu(mtu.as_raw()),
            |raw| MaximumTransferUnit::from_raw(raw.0) => Option<MaximumTransferUnit>;
        /// The state of path migration: which of two paths the connection uses.
        with_path_mig_state, path_mig_state: MigState, PATH_MIG_STATE,
            |state| ibv_mig_state(state.as_raw()), |raw| MigState::from_raw(raw.0) => MigState;
        /// The Q_Key (datagrams only).
        with_qkey, qkey: u32, QKEY, |qkey| qkey, |raw| raw => u32;
        /// The number of the first packet to expect.
        with_rq_psn, rq_psn: PacketSequenceNumber, RQ_PSN, |psn| psn.get(), |raw| raw => u32;
        /// The number of the first packet to send.
        with_sq_psn, sq_psn: PacketSequenceNumber, SQ_PSN, |psn| psn.get(), |raw| raw => u32;
        /// The number of the peer's queue pair.
        with_dest_qp_num, dest_qp_num: u32, DEST_QPN, |number| number, |raw| raw => u32;
        /// The access that the peer has through this queue pair, to regions that permit it too.
        with_qp_access_flags, qp_access_flags: AccessFlags, ACCESS_FLAGS,
            |flags| flags.bits(), |raw| AccessFlags::from_bits_retain(raw) => AccessFlags;
        /// The path to the peer: an address vector.
        with_ah_attr, ah_attr: AhAttr, AV,
            |path| *path.as_raw(), |raw| AhAttr::from_raw(raw) => AhAttr;
        /// The index of its P_Key in the port's table.
        with_pkey_index, pkey_index: u16, PKEY_INDEX, |index| index, |raw| raw => u16;
        /// Whether the device reports an event when the send queue has drained, in `SQD`.
        with_en_sqd_async_notify, en_sqd_async_notify: bool, EN_SQD_ASYNC_NOTIFY,
            |on| on as u8, |raw| raw != 0 => bool;
        /// How many reads and atomics of this side may be in flight at once.
        with_max_rd_atomic, max_rd_atomic: u8, MAX_QP_RD_ATOMIC, |max| max, |raw| raw => u8;
        /// How many reads and atomics of the peer may be in flight at once.
        with_max_dest_rd_atomic, max_dest_rd_atomic: u8, MAX_DEST_RD_ATOMIC,
            |max| max, |raw| raw => u8;
        /// How long the peer waits when no receive is posted here, as the code of a [`MinRnrTimer`].
        with_min_rnr_timer, min_rnr_timer: MinRnrTimer, MIN_RNR_TIMER,
            |timer| timer.get(), |raw| raw => u8;
        /// The number of the port.
        with_port_num, port_num: u8, PORT, |port| port, |raw| raw => u8;
        /// How long the device waits for an acknowledgement, as the code of an [`AckTimeout`].
        with_timeout, timeout: AckTimeout, TIMEOUT, |code| code.get(), |raw| raw => u8;
        /// How many times the device sends again when nothing is acknowledged.
        with_retry_cnt, retry_cnt: MaxAckRetries, RETRY_CNT, |max| max.get(), |raw| raw => u8;
        /// How many times the device sends again when the peer has no receive posted; 7 means
        /// forever.
        with_rnr_retry, rnr_retry: MaxRnrRetries, RNR_RETRY, |max| max.get(), |raw| raw => u8;
        /// The highest rate to send at, in kbit/s; 0 for no limit.
        with_rate_limit, rate_limit: u32, RATE_LIMIT, |rate| rate, |raw| raw => u32;
    }

    /// Sets the alternate path: its address vector, its P_Key index, and how long the device waits for an
    /// acknowledgement on it.
    #[must_use]
    #[doc(alias = "alt_ah_attr")]
    #[doc(alias = "alt_port_num")]
    #[doc(alias = "alt_pkey_index")]
    #[doc(alias = "alt_timeout")]
    pub const fn with_alt_path(
        mut self,
        path: AhAttr,
        pkey_index: u16,
        timeout: AckTimeout,
    ) -> Self {
        self.attr.alt_ah_attr = *path.as_raw();
        self.attr.alt_port_num = path.as_raw().port_num;
        self.attr.alt_pkey_index = pkey_index;
        self.attr.alt_timeout = timeout.get();
        self.mask = self.mask.union(QpAttrMask::ALT_PATH);
        self
    }

    /// The alternate path: its address vector, its P_Key index, and the code of its [`AckTimeout`].
    #[must_use]
    pub const fn alt_path(&self) -> (AhAttr, u16, u8) {
        let path = AhAttr::from_raw(self.attr.alt_ah_attr);
        (path, self.attr.alt_pkey_index, self.attr.alt_timeout)
    }

    /// Sets [`cap`](Self::cap): new capacities, for devices that can change them.
    #[must_use]
    pub const fn with_cap(mut self, cap: QpCap) -> Self {
        self.attr.cap = cap.as_raw();
        self.mask = self.mask.union(QpAttrMask::CAP);
        self
    }

    /// Whether a send queue in [`SQD`](QpState::SQD) still drains.
    #[must_use]
    pub const fn sq_draining(&self) -> bool {
        self.attr.sq_draining != 0
    }

    /// The capacities of the queues.
    #[must_use]
    pub const fn cap(&self) -> QpCap {
        QpCap::from_raw(self.attr.cap)
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_qp_attr {
        &self.attr
    }

    pub(crate) const fn from_raw(attr: ibv_qp_attr, mask: QpAttrMask) -> Self {
        Self { attr, mask }
    }
}

impl Default for QpAttr {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QpAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpAttr")
            .field("qp_state", &self.qp_state())
            .field("path_mtu", &self.path_mtu())
            .field("dest_qp_num", &format_args!("{:#x}", self.dest_qp_num()))
            .field("ah_attr", &self.ah_attr())
            .field("mask", &self.mask)
            .finish_non_exhaustive()
    }
}

/// The capacities of a queue pair, as the driver granted them: at least as large as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// How many work requests the send queue has room for.
    pub max_send_wr: u32,
    /// How many receives the receive queue has room for.
    pub max_recv_wr: u32,
    /// How many elements a send, write, read or atomic can have.
    pub max_send_sge: u32,
    /// How many elements a receive can have.
    pub max_recv_sge: u32,
    /// The most bytes that one request can post [`inline`](crate::SendWorkRequest::inline), in all
    /// of its elements together.
    pub max_inline_data: u32,
}

impl QpCap {
    pub(crate) const fn from_raw(cap: ibv_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    pub(super) const fn as_raw(self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        }
    }
}

open_enum! {
    /// The state of path migration: which of its two paths a connection uses.
    MigState(u32), "ibv_mig_state";
    /// The connection has moved to the alternate path, or has none.
    MIGRATED = IBV_MIG_MIGRATED "IBV_MIG_MIGRATED",
    /// The device prepares the alternate path.
    REARM = IBV_MIG_REARM "IBV_MIG_REARM",
    /// The alternate path is ready.
    ARMED = IBV_MIG_ARMED "IBV_MIG_ARMED",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_mark_what_they_set() {
        let attr = QpAttr::new()
            .with_qp_state(QpState::RTS)
            .with_timeout(AckTimeout::default())
            .with_path_mtu(MaximumTransferUnit::Mtu2048);
        let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT | QpAttrMask::PATH_MTU;
        assert_eq!(attr.mask(), mask);
        assert_eq!(attr.as_raw().timeout, 14);
        assert_eq!(attr.path_mtu(), Some(MaximumTransferUnit::Mtu2048));
        assert_eq!(attr.as_raw().qp_state, verbs_sys::IBV_QPS_RTS);
    }

    #[test]
    fn sq_draining_is_any_value_but_zero() {
        let draining = |sq_draining| {
            let attr = ibv_qp_attr {
                sq_draining,
                ..Default::default()
            };
            QpAttr::from_raw(attr, QpAttrMask::KNOWN).sq_draining()
        };
        assert_eq!([0, 1, 0xff].map(draining), [false, true, true]);
        assert!(!QpAttr::new().sq_draining());
    }
}
