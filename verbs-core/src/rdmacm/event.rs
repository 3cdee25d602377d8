//! Events of the connection manager, copied.
#![expect(unsafe_code, reason = "reads an `rdma_cm_event`")]

use verbs_sys::rdma_cm_event;

use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::error::Result;
use crate::error::cm_failure::CmFailure;
use crate::path::{AhAttr, DatagramEndpoint, QKey};

/// An event that has been acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) kind: CmEventType,
    pub(super) status: i32,
    pub(super) private_data: PrivateData,
    /// How many reads and atomics this side serves, and has in flight, at most.
    pub(super) depths: (u8, u8),
    /// `Some` on an identifier for datagrams.
    pub(super) datagrams: Option<DatagramPath>,
}

/// How a service, or the members of a multicast group, are reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramPath {
    pub(super) ah_attr: AhAttr,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
}

impl DatagramPath {
    /// The endpoint that the path leads to.
    pub(super) fn endpoint(&self) -> Result<DatagramEndpoint> {
        let (gid, lid) = (self.ah_attr.gids(), self.ah_attr.as_raw().dlid);
        let endpoint = DatagramEndpoint::builder(self.qp_num, QKey::new(self.qkey)?)
            .lid(lid)
            .gid(gid.map(|(gid, _)| gid))
            .build();
        Ok(endpoint?)
    }
}

impl Event {
    /// Copies an event of an identifier for connections, or for datagrams.
    ///
    /// # Safety
    ///
    /// - `event` is not acknowledged yet, and of an identifier for what `is_of_datagrams` says.
    pub(super) unsafe fn copied(event: *const rdma_cm_event, is_of_datagrams: bool) -> Self {
        // SAFETY: the caller promises that the event has not been acknowledged.
        let rdma_cm_event {
            event: kind,
            status,
            param,
            ..
        } = unsafe { event.read() };
        let kind = CmEventType::from_raw(kind.0);
        if is_of_datagrams {
            // SAFETY: the identifier is for datagrams; without data all of it is zero.
            let ud = unsafe { param.ud };
            let private_data = match kind {
                // Not data but what the caller passed.
                CmEventType::MULTICAST_JOIN | CmEventType::MULTICAST_ERROR => PrivateData::EMPTY,
                // SAFETY: the data lies beside the event.
                _ => unsafe { PrivateData::copied(ud.private_data, ud.private_data_len) },
            };
            return Self {
                kind,
                status,
                private_data,
                depths: (0, 0),
                datagrams: Some(DatagramPath {
                    ah_attr: AhAttr::from_raw(ud.ah_attr),
                    qp_num: ud.qp_num,
                    qkey: ud.qkey,
                }),
            };
        }
        // SAFETY: the identifier is for connections; without data all of it is zero.
        let conn = unsafe { param.conn };
        Self {
            kind,
            status,
            // SAFETY: the data lies beside the event.
            private_data: unsafe { PrivateData::copied(conn.private_data, conn.private_data_len) },
            depths: (conn.responder_resources, conn.initiator_depth),
            datagrams: None,
        }
    }

    pub(super) const fn failure(&self) -> CmFailure {
        CmFailure::new(self.kind, self.status, self.private_data)
    }
}
