//! Failed steps of the connection manager.

use std::fmt;
use std::net::SocketAddr;

use super::errno::io_error;
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;

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
    pub(crate) const fn new(event: CmEventType, status: i32, private_data: PrivateData) -> Self {
        Self {
            event,
            status,
            private_data,
            addr: None,
        }
    }

    /// An address leads to no RDMA device.
    pub(crate) const fn no_device(addr: Option<SocketAddr>) -> Self {
        Self {
            event: CmEventType::ADDR_ERROR,
            status: -libc::ENODEV,
            private_data: PrivateData::EMPTY,
            addr,
        }
    }

    /// No program listens at the peer's port, as iWARP's drivers report it at once.
    pub(crate) const REFUSED: Self = Self::new(CmEventType::REJECTED, REFUSED, PrivateData::EMPTY);

    /// The peer has given up.
    pub(crate) const GONE: Self = Self::new(CmEventType::DISCONNECTED, 0, PrivateData::EMPTY);

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
