//! The types of events of the connection manager.

use super::macros::open_enum;

open_enum! {
    /// Type of an event of the connection manager.
    CmEventType(u32), "rdma_cm_event_type";
    /// The device and the port to the address have been found.
    ADDR_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED "RDMA_CM_EVENT_ADDR_RESOLVED" "address resolved",
    /// There is no device or path to the address.
    ADDR_ERROR = RDMA_CM_EVENT_ADDR_ERROR "RDMA_CM_EVENT_ADDR_ERROR" "address not resolved",
    /// The route has been found.
    ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED "RDMA_CM_EVENT_ROUTE_RESOLVED" "route resolved",
    /// There is no route.
    ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR "RDMA_CM_EVENT_ROUTE_ERROR" "route not resolved",
    /// A peer asks for a connection.
    CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST "RDMA_CM_EVENT_CONNECT_REQUEST" "connect request",
    /// The peer has accepted.
    CONNECT_RESPONSE = RDMA_CM_EVENT_CONNECT_RESPONSE "RDMA_CM_EVENT_CONNECT_RESPONSE" "connect response",
    /// The connection could not be made.
    CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR "RDMA_CM_EVENT_CONNECT_ERROR" "connect error",
    /// The peer does not answer.
    UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE "RDMA_CM_EVENT_UNREACHABLE" "unreachable",
    /// The peer has rejected the request, or there is no listener.
    REJECTED = RDMA_CM_EVENT_REJECTED "RDMA_CM_EVENT_REJECTED" "rejected",
    /// The connection is made.
    ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED "RDMA_CM_EVENT_ESTABLISHED" "established",
    /// The connection has ended.
    DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED "RDMA_CM_EVENT_DISCONNECTED" "disconnected",
    /// The device is being removed.
    DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL "RDMA_CM_EVENT_DEVICE_REMOVAL" "device removal",
    /// The multicast group was joined.
    MULTICAST_JOIN = RDMA_CM_EVENT_MULTICAST_JOIN "RDMA_CM_EVENT_MULTICAST_JOIN" "multicast joined",
    /// The multicast group was not joined, or has been left.
    MULTICAST_ERROR = RDMA_CM_EVENT_MULTICAST_ERROR "RDMA_CM_EVENT_MULTICAST_ERROR" "multicast error",
    /// The address of this side has changed.
    ADDR_CHANGE = RDMA_CM_EVENT_ADDR_CHANGE "RDMA_CM_EVENT_ADDR_CHANGE" "address change",
    /// The queue pair's number may be used again.
    TIMEWAIT_EXIT = RDMA_CM_EVENT_TIMEWAIT_EXIT "RDMA_CM_EVENT_TIMEWAIT_EXIT" "time wait is over",
}
