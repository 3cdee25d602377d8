//! Queue pairs that a connection manager connects.

use super::id::{Id, QpParam};
use crate::codes::QpState;
use crate::error::Result;
use crate::queue_pair::{PreparedQueuePair, QueuePair, Receives};

/// Puts a queue pair on the identifier's port.
pub(super) fn init<R: Receives>(id: &mut Id, queue_pair: &mut PreparedQueuePair<R>) -> Result<()> {
    id.check_is_on(queue_pair.pd().context())?;
    let attr = id.qp_attr(QpState::INIT)?;
    queue_pair.init_by(&attr, id.port_num())
}

/// Parameters of a queue pair that its peer needs.
pub(super) fn param<R: Receives>(queue_pair: &PreparedQueuePair<R>) -> QpParam {
    let attr = queue_pair.limits();
    QpParam {
        qp_num: queue_pair.qp_num(),
        has_srq: queue_pair.has_srq(),
        max_rd_atomic: attr.max_rd_atomic(),
        max_dest_rd_atomic: attr.max_dest_rd_atomic(),
        retry_cnt: attr.retry_cnt(),
        rnr_retry: attr.rnr_retry(),
    }
}

/// Connects a queue pair to the identifier's peer. Returns how many reads and atomics it serves, too, if the device
/// has too little left for what the manager has agreed on.
pub(super) fn connect<R: Receives>(
    id: &mut Id,
    queue_pair: PreparedQueuePair<R>,
) -> Result<(QueuePair<R>, Option<u8>)> {
    let receive = id.qp_attr(QpState::RTR)?;
    let send = id.qp_attr(QpState::RTS)?;
    queue_pair.connect_by(&receive, &send)
}
