//! Events of the connection manager: how they wait, and C's form of them.

use std::sync::Arc;

use soft_nic::AddressVector;

use crate::event::{Unacknowledged, Waiting};

/// C's numbers (`rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct EventKind(pub(crate) u32);

impl EventKind {
    pub(crate) const ADDRESS_RESOLVED: Self = Self(0);
    pub(crate) const ADDRESS_ERROR: Self = Self(1);
    pub(crate) const ROUTE_RESOLVED: Self = Self(2);
    pub(crate) const CONNECT_REQUEST: Self = Self(4);
    pub(crate) const CONNECT_RESPONSE: Self = Self(5);
    pub(crate) const UNREACHABLE: Self = Self(7);
    pub(crate) const REJECTED: Self = Self(8);
    pub(crate) const ESTABLISHED: Self = Self(9);
    pub(crate) const DISCONNECTED: Self = Self(10);
    pub(crate) const MULTICAST_JOIN: Self = Self(12);
}

/// The parameters that two sides tell each other: in requests, answers, and the events for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Param {
    pub(crate) qp_num: u32,
    /// Reads and atomics at once of the peer's (`responder_resources`), and of this side's (`initiator_depth`).
    pub(crate) serves: u8,
    pub(crate) asks: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) has_srq: bool,
    pub(crate) has_flow_control: bool,
}

/// An event that has arrived.
pub(crate) struct Arrived {
    /// The endpoint that it is about.
    pub(crate) number: u32,
    /// The listener that a peer asks.
    pub(crate) listener: Option<u32>,
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    pub(crate) param: Param,
    /// For datagrams: the path to the peer or the group, its queue pair's number and its `Q_Key`.
    pub(crate) datagrams: Option<(AddressVector, u32, u32)>,
    pub(crate) data: Vec<u8>,
    /// The pointer that the program passed with the call that this answers.
    pub(crate) context: usize,
    pub(crate) unacknowledged: Arc<Unacknowledged>,
}

impl Arrived {
    pub(crate) fn new(
        number: u32,
        kind: EventKind,
        status: i32,
        unacknowledged: Arc<Unacknowledged>,
    ) -> Self {
        Self {
            number,
            listener: None,
            kind,
            status,
            param: Param::default(),
            datagrams: None,
            data: Vec::new(),
            context: 0,
            unacknowledged,
        }
    }

    pub(crate) const fn is_request(&self) -> bool {
        self.listener.is_some()
    }
}

impl Waiting for Arrived {
    fn got(&self) {
        self.unacknowledged.add();
    }
}
