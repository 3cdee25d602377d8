//! Events of the connection manager: how they wait, and C's form of them.

use soft_nic::AddressVector;

use crate::abi::connection::rdma_conn_param;

/// C's numbers (`rdma_cm_event_type`).
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub(crate) struct EventKind(pub(crate) u32);

impl EventKind {
    pub(crate) const ADDRESS_RESOLVED: Self = Self(0);
    pub(crate) const ADDRESS_ERROR: Self = Self(1);
    pub(crate) const ROUTE_RESOLVED: Self = Self(2);
    pub(crate) const CONNECT_REQUEST: Self = Self(4);
    pub(crate) const CONNECT_RESPONSE: Self = Self(5);
    pub(crate) const CONNECT_ERROR: Self = Self(6);
    pub(crate) const UNREACHABLE: Self = Self(7);
    pub(crate) const REJECTED: Self = Self(8);
    pub(crate) const ESTABLISHED: Self = Self(9);
    pub(crate) const DISCONNECTED: Self = Self(10);
    pub(crate) const MULTICAST_JOIN: Self = Self(12);
}

/// An event that has arrived.
#[derive(Default)]
pub(crate) struct Arrived {
    /// The endpoint that it is about.
    pub(crate) number: u32,
    /// The listener that a peer asks.
    pub(crate) listener: Option<u32>,
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    /// The parameters, without a pointer to the data.
    pub(crate) param: rdma_conn_param,
    /// For datagrams: the path to the peer or the group, its queue pair's number and its `Q_Key`.
    pub(crate) datagrams: Option<(AddressVector, u32, u32)>,
    pub(crate) data: Vec<u8>,
    /// The pointer that the program passed with the call that this answers.
    pub(crate) context: usize,
}
