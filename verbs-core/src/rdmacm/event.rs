//! Events of the connection manager, copied.
#![expect(unsafe_code, reason = "reads an `rdma_cm_event`")]

use std::fmt;
use std::net::SocketAddr;

use verbs_sys::rdma_cm_event;

use super::private_data::PrivateData;
use crate::codes::macros::open_enum;
use crate::error::Result;
use crate::error::errno::io_error;
use crate::path::{AhAttr, DatagramEndpoint, QKey};

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

/// Why a step of the connection manager has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CmFailure {
    event: CmEventType,
    status: i32,
    private_data: PrivateData,
    /// The address that leads to no device.
    addr: Option<SocketAddr>,
}

impl CmFailure {
    /// An address leads to no RDMA device.
    pub(super) const fn no_device(addr: Option<SocketAddr>) -> Self {
        Self {
            event: CmEventType::ADDR_ERROR,
            status: -libc::ENODEV,
            private_data: PrivateData::EMPTY,
            addr,
        }
    }

    /// No program listens at the peer's port, as iWARP's drivers report it at once.
    pub(crate) const REFUSED: Self = Self {
        event: CmEventType::REJECTED,
        status: REFUSED,
        private_data: PrivateData::EMPTY,
        addr: None,
    };

    /// The peer has given up.
    pub(crate) const GONE: Self = Self {
        event: CmEventType::DISCONNECTED,
        status: 0,
        private_data: PrivateData::EMPTY,
        addr: None,
    };

    /// Those of the guide, for the tests of the crates above: the address is of no RDMA device, and no
    /// program listens.
    #[doc(hidden)]
    #[must_use]
    pub const fn examples() -> [Self; 2] {
        let no_device = Self {
            event: CmEventType::ADDR_ERROR,
            status: -libc::ENODEV,
            private_data: PrivateData::EMPTY,
            addr: None,
        };
        [no_device, Self::REFUSED]
    }

    /// The event that ended the step.
    #[must_use]
    pub const fn event(&self) -> CmEventType {
        self.event
    }

    /// The event's status: a negative errno, or for a rejection its reason, such as 8 (on iWARP
    /// `-ECONNREFUSED`) if there is no listener, and 28 (on iWARP `-ECONNRESET`) if the peer has
    /// rejected the request.
    #[must_use]
    pub const fn status(&self) -> i32 {
        self.status
    }

    /// Data of the peer's rejection.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// The errno, if the status is one.
    pub(crate) fn errno(&self) -> Option<i32> {
        (self.status < 0).then(|| self.status.saturating_abs())
    }
}

impl fmt::Debug for CmFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The reasons of a rejection that have a cure, by the numbers of the InfiniBand specification.
const TIMEOUT: i32 = 4;
const INVALID_SERVICE_ID: i32 = 8;
const STALE_CONNECTION: i32 = 10;
const CONSUMER: i32 = 28;

/// The same of a datagram service, which is unreachable then.
const NO_SERVICE: i32 = 1;
const SERVICE_REJECTS: i32 = 2;

/// The same on iWARP: how the TCP connection ended.
const REFUSED: i32 = -libc::ECONNREFUSED;
const RESET: i32 = -libc::ECONNRESET;

impl fmt::Display for CmFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, status, .. } = *self;
        match (event, status) {
            (CmEventType::REJECTED, INVALID_SERVICE_ID | REFUSED)
            | (CmEventType::UNREACHABLE, NO_SERVICE) => f.write_str(
                "rejected: no program listens at this address and port; is the server started?",
            ),
            (CmEventType::REJECTED, CONSUMER | RESET)
            | (CmEventType::UNREACHABLE, SERVICE_REJECTS) => {
                f.write_str("the peer has rejected the request")
            }
            (CmEventType::REJECTED, STALE_CONNECTION) => {
                f.write_str("rejected: the peer still has a connection of this queue pair's number")
            }
            (CmEventType::REJECTED, TIMEOUT) | (CmEventType::DISCONNECTED, 0) => {
                f.write_str("the peer has given up")
            }
            (_, 1..) => write!(f, "{event} (reason {status})"),
            (_, 0) => write!(f, "{event}"),
            _ => {
                if let Some(addr) = self.addr {
                    write!(f, "no RDMA device leads to {addr}: ")?;
                }
                let error = io_error(status.saturating_abs());
                write!(f, "{event}: {error}")
            }
        }
    }
}

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
        CmFailure {
            event: self.kind,
            status: self.status,
            private_data: self.private_data,
            addr: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: CmEventType, status: i32) -> String {
        let private_data = PrivateData::EMPTY;
        CmFailure {
            event,
            status,
            private_data,
            addr: None,
        }
        .to_string()
    }

    #[test]
    fn failures_say_what_and_why() {
        assert_eq!(
            text(CmEventType::REJECTED, 8),
            "rejected: no program listens at this address and port; is the server started?"
        );
        assert_eq!(
            text(CmEventType::REJECTED, 28),
            "the peer has rejected the request"
        );
        // iWARP's numbers for the same.
        for (status, same) in [(-libc::ECONNREFUSED, 8), (-libc::ECONNRESET, 28)] {
            let both = [status, same].map(|status| text(CmEventType::REJECTED, status));
            assert_eq!(both[0], both[1]);
        }
        assert_eq!(text(CmEventType::REJECTED, 5), "rejected (reason 5)");
        assert!(
            text(CmEventType::ADDR_ERROR, -libc::ENODEV)
                .starts_with("address not resolved: No such device")
        );
        assert_eq!(text(CmEventType::DEVICE_REMOVAL, 0), "device removal");
    }
}
