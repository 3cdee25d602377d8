//! A connection that the connection manager has made.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbs_sys::rdma_disconnect;

use super::id::{Id, failed, with_a_device, with_a_peer};
use super::pending::sealed;
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::device::Context;
use crate::error::Result;
use crate::ffi::{fd, ret};
use crate::queue_pair::{OwnReceives, QueuePair};

/// A connected queue pair, and the connection manager's part of the connection.
#[derive(Debug)]
#[non_exhaustive]
#[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
pub struct Connected<R = OwnReceives> {
    /// The queue pair, in `RTS`.
    pub queue_pair: QueuePair<R>,
    /// The connection: it reports when the peer has disconnected.
    pub connection: Connection,
    /// Data of the peer's answer; empty on the side that accepts.
    pub private_data: PrivateData,
}

/// The connection manager's part of a connection.
///
/// Its descriptor ([`AsFd`]) is readable when the peer has disconnected: see
/// [`poll_disconnected`](Self::poll_disconnected). Dropping it disconnects, which may take 10 ms on
/// soft-RoCE and 7 s on soft-iWARP.
///
/// The queue pair does not end with it: on RoCE it stays in `RTS` after the peer has disconnected, and
/// what is posted fails when its retries are used up. Move it to
/// [`ERR`](crate::QueuePair::to_error) when the peer has disconnected.
#[derive(Debug)]
pub struct Connection {
    id: Id,
    is_disconnected: bool,
}

impl Connection {
    pub(super) const fn new(id: Id) -> Self {
        Self {
            id,
            is_disconnected: false,
        }
    }

    /// Ends the connection, and notifies the peer. The queue pair stays as it is.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if it has ended. [`Error::OtherProcess`](crate::Error::OtherProcess) in the child of a fork.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<()> {
        self.id.check_process()?;
        // SAFETY: the identifier is alive.
        let ret = unsafe { rdma_disconnect(self.id.as_ptr()) };
        ret::minus_one("rdma_disconnect", ret)
    }

    /// Whether the connection has ended: the peer has disconnected, or its device was removed. It does not
    /// wait.
    ///
    /// On RoCE the side that disconnects first gets this event only when the peer has disconnected,
    /// too.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    pub fn poll_disconnected(&mut self) -> Result<bool> {
        while !self.is_disconnected {
            let Some(event) = self.id.next_event()? else {
                break;
            };
            self.is_disconnected = matches!(
                event.kind,
                CmEventType::DISCONNECTED
                    | CmEventType::DEVICE_REMOVAL
                    | CmEventType::TIMEWAIT_EXIT
                    | CmEventType::CONNECT_ERROR
                    | CmEventType::REJECTED
            );
        }
        Ok(self.is_disconnected)
    }

    /// Waits until the connection has ended; `false` if `timeout` passes first.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn wait_disconnected(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = fd::deadline(timeout);
        loop {
            if self.poll_disconnected()? {
                return Ok(true);
            }
            if !self.id.wait(deadline)? {
                return Ok(false);
            }
        }
    }
}

/// The step, in an error.
pub(super) const CONNECTING: &str = "connecting";

/// Waits until the peer has confirmed a connection that this side has accepted.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Confirming {
    id: Id,
}

impl Confirming {
    pub(super) const fn new(id: Id) -> Self {
        Self { id }
    }
}

impl sealed::Step for Connection {
    type State = Confirming;

    const NAME: &'static str = CONNECTING;

    fn advance(Confirming { mut id }: Confirming) -> Result<Result<Self, Confirming>> {
        match id.next_event()? {
            None => Ok(Err(Confirming { id })),
            Some(event) if event.kind == CmEventType::ESTABLISHED && event.status == 0 => {
                Ok(Ok(Self::new(id)))
            }
            Some(event) => Err(failed(Self::NAME, &event)),
        }
    }
}

impl AsFd for Confirming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

with_a_device! { Connection }
with_a_peer! { Connection }

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}
