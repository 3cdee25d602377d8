//! Queue pairs that a connection manager connects: its attributes, and the settings of the builder.

use super::endpoint::QueuePairEndpoint;
use super::receives::Receives;
use super::settings::Config;
use super::timers::PacketSequenceNumber;
use super::{PreparedQueuePair, QpAttr, QueuePair};
use crate::codes::QpAttrMask;
use crate::error::Result;
use crate::path::{AhAttr, LocalPath};

impl<R: Receives> PreparedQueuePair<R> {
    /// Applies the manager's attributes for `INIT`, on this port.
    pub(crate) fn init_by(&mut self, attr: &QpAttr, port_num: u8) -> Result<()> {
        if port_num != self.path.port_num {
            let context = self.qp.pd.context();
            self.path = LocalPath::choose(context, Some(port_num), None)?;
        }
        self.apply(&self.ours(attr))
    }

    /// The settings that the peer is to know: depths and retries.
    pub(crate) fn limits(&self) -> QpAttr {
        let config = &self.qp.config;
        QpAttr::new()
            .with_max_rd_atomic(config.max_rd_atomic)
            .with_max_dest_rd_atomic(config.max_dest_rd_atomic)
            .with_retry_cnt(config.retry_cnt)
            .with_rnr_retry(config.rnr_retry)
    }

    /// Whether its receives are those of a shared receive queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.receives.shared().is_some()
    }

    /// Connects it with the manager's attributes for `RTR` and `RTS`. Returns the depth that it serves, too, if that
    /// is less than the attributes have.
    pub(crate) fn connect_by(
        self,
        receive: &QpAttr,
        send: &QpAttr,
    ) -> Result<(QueuePair<R>, Option<u8>)> {
        let (mut receive, send) = (self.ours(receive), self.ours(send));
        let asked = receive.max_dest_rd_atomic();
        let mut less = None;
        if !receive.mask().is_empty() {
            let served = self.qp.receive(&receive, asked)?;
            less = Some(served).filter(|served| *served < asked);
        }
        if let Some(served) = less {
            receive = receive.with_max_dest_rd_atomic(served);
        }
        self.apply(&send)?;
        let (local, remote) = self.endpoints(&receive, &send);
        let connected = QueuePair {
            qp: self.qp,
            receives: self.receives,
            max_msg_sz: self.path.max_msg_sz,
            local,
            remote,
        };
        Ok((connected, less))
    }

    /// Changes the state; on iWARP the driver does it, and there are no attributes.
    fn apply(&self, attr: &QpAttr) -> Result<()> {
        if attr.mask().is_empty() {
            return Ok(());
        }
        self.qp.modify(attr)
    }

    /// The manager's attributes within the settings of the builder, and the settings alone for what is
    /// this side's.
    fn ours(&self, attr: &QpAttr) -> QpAttr {
        let (mask, config) = (attr.mask(), &self.qp.config);
        let mut ours = *attr;
        if mask.contains(QpAttrMask::AV) {
            ours = ours.with_ah_attr(self.address_vector(attr.ah_attr()));
        }
        if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            let granted = attr.qp_access_flags() | config.qp_access_flags;
            ours = ours.with_qp_access_flags(granted & config.qp_access_flags);
        }
        if mask.contains(QpAttrMask::MIN_RNR_TIMER) {
            ours = ours.with_min_rnr_timer(config.min_rnr_timer);
        }
        if mask.contains(QpAttrMask::TIMEOUT) {
            ours = ours.with_timeout(config.timeout);
        }
        if mask.contains(QpAttrMask::RETRY_CNT) {
            ours = ours.with_retry_cnt(config.retry_cnt);
        }
        if mask.contains(QpAttrMask::RNR_RETRY) {
            ours = ours.with_rnr_retry(config.rnr_retry);
        }
        if let (Some(wanted), Some(found)) = (config.path_mtu, attr.path_mtu())
            && mask.contains(QpAttrMask::PATH_MTU)
        {
            ours = ours.with_path_mtu(wanted.min(found));
        }
        // Before this side has accepted, those are what its peer has asked for.
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            ours = ours.with_max_rd_atomic(attr.max_rd_atomic().min(config.max_rd_atomic));
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            let served = attr.max_dest_rd_atomic();
            ours = ours.with_max_dest_rd_atomic(served.min(config.max_dest_rd_atomic));
        }
        ours
    }

    /// The manager's address vector, with what the builder has set of it: what is not 0.
    fn address_vector(&self, mut attr: AhAttr) -> AhAttr {
        let route = &self.qp.config.route;
        if route.sl != 0 {
            attr = attr.sl(route.sl);
        }
        if route.static_rate != 0 {
            attr = attr.static_rate(route.static_rate);
        }
        if route.traffic_class != 0 {
            attr = attr.traffic_class(route.traffic_class);
        }
        if route.flow_label != 0 {
            attr = attr.flow_label(route.flow_label);
        }
        attr
    }

    /// Both ends, as far as the manager's attributes have them. On iWARP they have none.
    fn endpoints(&self, receive: &QpAttr, send: &QpAttr) -> (QueuePairEndpoint, QueuePairEndpoint) {
        let Config { path_mtu, .. } = &*self.qp.config;
        let psn = |psn| PacketSequenceNumber::new(psn).unwrap_or(PacketSequenceNumber::MAX);
        let found = receive.path_mtu().unwrap_or(self.path.active_mtu);
        let mtu = path_mtu.map_or(found, |wanted| wanted.min(found));
        let local = self.endpoint();
        let depth = if send.mask().contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            send.max_rd_atomic()
        } else {
            local.max_rd_atomic()
        };
        let ours = local.agreed(psn(send.sq_psn()), mtu, depth, receive.max_dest_rd_atomic());
        let (gid, lid) = (receive.ah_attr().gids(), receive.ah_attr().as_raw().dlid);
        let theirs = local.agreed(psn(receive.rq_psn()), mtu, 0, depth).of_peer(
            receive.dest_qp_num(),
            lid,
            gid.map(|(gid, _)| gid),
        );
        (ours, theirs)
    }
}
