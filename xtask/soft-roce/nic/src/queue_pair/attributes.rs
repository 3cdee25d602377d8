//! Options that a queue pair is made with, and attributes that are changed later (`ibv_qp_init_attr`, `ibv_qp_attr`).

use super::QueuePair;
use super::state::{AttributeMask, QueuePairState, check};
use crate::DomainId;
use crate::address::AddressVector;
use crate::card::Card;
use crate::completion::CompletionQueueId;
use crate::error::{Result, full, invalid};
use crate::memory::Access;
use crate::packet::{Psn, Transport};
use crate::profile::Profile;
use crate::shared_receive::SharedReceiveId;

/// Options that a queue pair is made with (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions {
    /// Transport service.
    pub transport: Transport,
    /// Its protection domain.
    pub domain: DomainId,
    /// Queue for the completions of sends.
    pub send_cq: CompletionQueueId,
    /// Queue for the completions of receives.
    pub recv_cq: CompletionQueueId,
    /// A shared queue to take receives from.
    pub shared_receives: Option<SharedReceiveId>,
    /// Requests that the send queue has room for.
    pub max_send_wr: u32,
    /// Requests that the receive queue has room for.
    pub max_recv_wr: u32,
    /// Elements of a send.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline_data: u32,
    /// Whether all sends are signaled.
    pub all_signaled: bool,
}

impl QueuePairOptions {
    /// Options with room for 16 requests of 4 elements, and one queue for all completions.
    #[must_use]
    pub const fn new(transport: Transport, domain: DomainId, cq: CompletionQueueId) -> Self {
        Self {
            transport,
            domain,
            send_cq: cq,
            recv_cq: cq,
            shared_receives: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 0,
            all_signaled: false,
        }
    }

    /// The options as the device makes them, or why it does not.
    pub(crate) fn fitted(mut self, profile: &Profile) -> Result<Self> {
        if self.max_send_wr > profile.max_qp_wr || self.max_recv_wr > profile.max_qp_wr {
            return Err(invalid("a queue is larger than max_qp_wr"));
        }
        if self.max_send_sge > profile.max_sge || self.max_recv_sge > profile.max_sge {
            return Err(invalid("requests have more elements than max_sge"));
        }
        if self.max_inline_data > profile.max_inline_data {
            return Err(invalid("more inline data than the device takes"));
        }
        self.max_send_wr = profile.capacity(self.max_send_wr);
        self.max_recv_wr = profile.capacity(self.max_recv_wr);
        Ok(self)
    }
}

/// The attributes of a queue pair (`ibv_qp_attr`). The default is that of a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueuePairAttributes {
    /// State to go to, or that it has.
    pub state: QueuePairState,
    /// State that it is assumed to have.
    pub current_state: QueuePairState,
    /// Access that the peer has.
    pub access: Access,
    /// Entry of the partition table: 0.
    pub pkey_index: u16,
    /// Port: 1.
    pub port: u8,
    /// `Q_Key` of a datagram queue pair.
    pub qkey: u32,
    /// The way to the peer.
    pub path: AddressVector,
    /// Bytes of a full packet: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// PSN of the first packet that arrives.
    pub rq_psn: u32,
    /// PSN of the first packet that is sent.
    pub sq_psn: u32,
    /// Reads and atomics of the peer's that are remembered.
    pub max_dest_rd_atomic: u8,
    /// Reads and atomics that may be outstanding.
    pub max_rd_atomic: u8,
    /// Code of the time that a peer shall wait for a receive.
    pub min_rnr_timer: u8,
    /// Code of the time to wait for an answer: 4.096 µs · 2<sup>timeout</sup>; 0 for ever.
    pub timeout: u8,
    /// Times that a request is repeated.
    pub retry_cnt: u8,
    /// Times that a request is repeated because the peer had no receive; 7 for ever.
    pub rnr_retry: u8,
    /// Whether the send queue is draining; an answer only.
    pub is_draining: bool,
}

impl QueuePair {
    /// Changes state and attributes; if it is refused, nothing has changed.
    pub(crate) fn modify(
        &mut self,
        card: &mut Card,
        new: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<()> {
        let to = match mask.contains(AttributeMask::STATE) {
            true => new.state,
            false => self.state,
        };
        check(self.options.transport, self.state, to, mask)?;
        if mask.contains(AttributeMask::CUR_STATE) && new.current_state != self.state {
            return Err(invalid("the queue pair is in another state"));
        }
        let is_ending = matches!(to, QueuePairState::Err | QueuePairState::Reset);
        if self.state == QueuePairState::Sqd && !self.is_drained && !is_ending {
            return Err(invalid("the send queue is still draining"));
        }
        check_values(card, new, mask)?;
        if mask.contains(AttributeMask::MAX_DEST_RD_ATOMIC) {
            let others = card.reserved_rd_atomic - u32::from(self.attributes.max_dest_rd_atomic);
            let sum = others + u32::from(new.max_dest_rd_atomic);
            if sum > card.profile.max_res_rd_atom {
                return Err(full(
                    "all queue pairs together remember too many reads and atomics",
                ));
            }
            card.reserved_rd_atomic = sum;
        }
        self.assign(new, mask);
        if mask.contains(AttributeMask::STATE) {
            self.enter(card, to);
        }
        self.settle(card);
        Ok(())
    }

    fn assign(&mut self, new: &QueuePairAttributes, mask: AttributeMask) {
        let own = &mut self.attributes;
        macro_rules! assign {
            ($($flag:ident $field:ident)*) => {
                $(if mask.contains(AttributeMask::$flag) {
                    own.$field = new.$field;
                })*
            };
        }
        assign!(ACCESS_FLAGS access PKEY_INDEX pkey_index PORT port QKEY qkey AV path PATH_MTU path_mtu
            TIMEOUT timeout RETRY_CNT retry_cnt RNR_RETRY rnr_retry RQ_PSN rq_psn SQ_PSN sq_psn
            MAX_QP_RD_ATOMIC max_rd_atomic MAX_DEST_RD_ATOMIC max_dest_rd_atomic
            MIN_RNR_TIMER min_rnr_timer DEST_QPN dest_qp_num);
        if mask.contains(AttributeMask::RQ_PSN) {
            self.responder.psn = Psn::new(new.rq_psn);
        }
        if mask.contains(AttributeMask::SQ_PSN) {
            let (own, psn) = (&mut self.requester, Psn::new(new.sq_psn));
            (own.unacked, own.sent, own.fresh) = (psn, psn, psn);
        }
        self.requester.restore_retries(&self.attributes);
    }

    fn enter(&mut self, card: &mut Card, to: QueuePairState) {
        match to {
            QueuePairState::Reset => self.reset(card),
            QueuePairState::Err => {
                self.responder.replies.clear();
                self.fail(card);
            }
            other => {
                self.is_drained &=
                    other == QueuePairState::Sqd && self.state == QueuePairState::Sqd;
                self.state = other;
            }
        }
    }

    /// Takes back all that was done since the queue pair was made.
    pub(crate) fn reset(&mut self, card: &mut Card) {
        if self.has_bound {
            card.memory.invalidate_all_of(self.number);
        }
        card.reserved_rd_atomic -= u32::from(self.attributes.max_dest_rd_atomic);
        *self = Self {
            is_ready: self.is_ready,
            scheduled: self.scheduled,
            ..Self::new(self.number, self.options)
        };
    }

    /// All attributes as they are (`ibv_query_qp`).
    pub(crate) fn query(&self) -> QueuePairAttributes {
        QueuePairAttributes {
            state: self.state,
            current_state: self.state,
            rq_psn: self.responder.psn.get(),
            sq_psn: self.requester.fresh.get(),
            is_draining: self.state == QueuePairState::Sqd && !self.is_drained,
            ..self.attributes
        }
    }
}

/// Refuses values that the device has not.
fn check_values(card: &Card, new: &QueuePairAttributes, mask: AttributeMask) -> Result<()> {
    use AttributeMask as M;
    let profile = &card.profile;
    const TOO_MANY: &str = "more reads and atomics at once than the device's max_qp_rd_atom";
    const FIVE_BITS: &str = "timeout and min_rnr_timer are codes of five bits";
    let is_mtu =
        matches!(new.path_mtu, 256 | 512 | 1024 | 2048 | 4096) && new.path_mtu <= profile.max_mtu;
    let has_gid = card.gids.get(new.path.source_index).is_some();
    let is_allowed = |depth: u8| depth <= profile.max_qp_rd_atom;
    let [asks, serves] = [new.max_rd_atomic, new.max_dest_rd_atomic].map(is_allowed);
    let is_first = new.pkey_index == 0;
    let checks = [
        (M::PORT, new.port == 1, "there is one port: 1"),
        (M::PKEY_INDEX, is_first, "there is one P_Key, index 0"),
        (M::AV, has_gid, "the path's own GID is an empty entry"),
        (M::PATH_MTU, is_mtu, "an MTU that the port has not"),
        (M::MAX_QP_RD_ATOMIC, asks, TOO_MANY),
        (M::MAX_DEST_RD_ATOMIC, serves, TOO_MANY),
        (M::TIMEOUT, new.timeout < 32, FIVE_BITS),
        (M::MIN_RNR_TIMER, new.min_rnr_timer < 32, FIVE_BITS),
        (M::RETRY_CNT, new.retry_cnt < 8, "retry_cnt has three bits"),
        (M::RNR_RETRY, new.rnr_retry < 8, "rnr_retry has three bits"),
    ];
    let wrong = checks
        .into_iter()
        .find(|(flag, is_right, _)| mask.contains(*flag) && !is_right);
    wrong.map_or(Ok(()), |(.., reason)| Err(invalid(reason)))
}
