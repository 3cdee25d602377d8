//! The passive side: a listener, and requests of peers.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbs_sys::{RDMA_PS_TCP, rdma_accept, rdma_listen, rdma_reject};

use super::connect::{Connecting, bind};
use super::connection::Connected;
use super::event::{CmEventType, CmFailure};
use super::id::{Id, failed, with_a_device, with_a_peer};
use super::pending::Pending;
use super::private_data::PrivateData;
use super::queue_pair;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::fd;
use crate::queue_pair::{PreparedQueuePair, QueuePair, Receives};
use crate::ret;

/// A listener at an address. Dropping it rejects the requests that have not been taken.
///
/// Its descriptor ([`AsFd`]) is readable when there is a request.
#[derive(Debug)]
#[doc(alias = "rdma_listen")]
pub struct Listener {
    id: Id,
}

/// A peer that asks for a connection. Dropping it rejects the peer.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct ConnectRequest {
    id: Id,
    private_data: PrivateData,
    depths: (u8, u8),
}

impl Listener {
    /// Listens at an address. The port 0 is any free one: see [`local_addr`](Self::local_addr). The
    /// unspecified address (`0.0.0.0`, `[::]`) is that of all devices.
    ///
    /// `backlog` is how many requests may wait to be taken; the kernel rejects further ones.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE`, `EADDRNOTAVAIL` or `ENODEV` for an address of no RDMA device.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(addr: SocketAddr, backlog: u16) -> Result<Self> {
        let mut id = Id::new(RDMA_PS_TCP)?;
        bind(&mut id, addr)?;
        // SAFETY: the identifier is alive.
        let ret = unsafe { rdma_listen(id.as_ptr(), c_int::from(backlog)) };
        ret::minus_one("rdma_listen", ret)?;
        Ok(Self { id })
    }

    /// The address that it listens at.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// Takes the next request; `None` if there is none. It does not wait.
    ///
    /// # Errors
    ///
    /// The errno of one request, such as `EMFILE`: its peer is rejected, and other requests can
    /// still be taken. [`Error::ConnectionManager`](crate::Error::ConnectionManager) if its device
    /// was removed.
    #[doc(alias = "rdma_get_request")]
    pub fn poll_request(&mut self) -> Result<Option<ConnectRequest>> {
        loop {
            let Some((event, id)) = self.id.take_event()? else {
                return Ok(None);
            };
            match (event.kind, id) {
                (CmEventType::CONNECT_REQUEST, Some(id)) => {
                    return Ok(Some(ConnectRequest {
                        id,
                        private_data: event.private_data,
                        depths: event.depths,
                    }));
                }
                (CmEventType::DEVICE_REMOVAL, _) => return Err(failed("listening", &event)),
                _ => {}
            }
        }
    }

    /// Waits for the next request; `None` if `timeout` passes first.
    ///
    /// # Errors
    ///
    /// As [`poll_request`](Self::poll_request).
    pub fn request(&mut self, timeout: Option<Duration>) -> Result<Option<ConnectRequest>> {
        let deadline = fd::deadline(timeout);
        loop {
            if let Some(request) = self.poll_request()? {
                return Ok(Some(request));
            }
            if !self.id.wait(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl ConnectRequest {
    /// What the peer sent with its request.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// How many reads and atomics the peer wants to have in flight at once. This side serves no more.
    #[must_use]
    pub const fn responder_resources(&self) -> u8 {
        self.depths.0
    }

    /// How many reads and atomics of this side the peer serves at once. This side has no more in flight.
    #[must_use]
    pub const fn initiator_depth(&self) -> u8 {
        self.depths.1
    }

    /// Accepts the peer with this queue pair, and a message of at most 195 bytes (254 on iWARP).
    ///
    /// Post receives before this call: the peer may send at once. The queue pair must be of the
    /// [device](Self::device_name) and the [port](Self::port_num) of the request. It keeps
    /// its settings, as for [`RouteResolved::connect`](super::RouteResolved::connect).
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it is of another device,
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long,
    /// [`Error::ConnectionManager`](crate::Error::ConnectionManager) if the peer has given up, otherwise the
    /// errno. The peer is rejected, and the queue pair dropped.
    #[doc(alias = "rdma_accept")]
    pub fn accept<R: Receives>(
        mut self,
        queue_pair: PreparedQueuePair<R>,
        message: &[u8],
    ) -> Result<Pending<Connected<R>>> {
        let max = if self.id.is_iwarp() { u8::MAX } else { 196 };
        let data = PrivateData::framed(message, max)?;
        match self.accept_with(queue_pair, &data) {
            Ok(queue_pair) => Ok(Pending::new(Connecting::accepted(self.id, queue_pair))),
            // Attributes are denied to a request whose peer has given up; there is no event of that.
            Err(Error::Verb {
                verb: "rdma_init_qp_attr",
                ..
            }) => Err(Error::ConnectionManager {
                step: "accepting",
                failure: Box::new(CmFailure::GONE),
            }),
            Err(error) => Err(error),
        }
    }

    fn accept_with<R: Receives>(
        &mut self,
        queue_pair: PreparedQueuePair<R>,
        data: &PrivateData,
    ) -> Result<QueuePair<R>> {
        let queue_pair = queue_pair::init(&mut self.id, queue_pair)?;
        let mut param = queue_pair::param(&queue_pair);
        // No more than the peer has room for.
        param.max_dest_rd_atomic = param.max_dest_rd_atomic.min(self.depths.0);
        param.max_rd_atomic = param.max_rd_atomic.min(self.depths.1);
        // Before it is accepted: the peer may send as soon as it is.
        let queue_pair = queue_pair::connect(&mut self.id, queue_pair)?;
        let mut param = Id::conn_param(data, &param);
        // SAFETY: the identifier is alive, and the parameters and the data outlive the call.
        let ret = unsafe { rdma_accept(self.id.as_ptr(), &raw mut param) };
        ret::minus_one("rdma_accept", ret)?;
        Ok(queue_pair)
    }

    /// Rejects the peer, with a message of at most 147 bytes (254 on iWARP).
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long, otherwise the errno. The peer is
    /// rejected without a message.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, message: &[u8]) -> Result<()> {
        let max = if self.id.is_iwarp() { u8::MAX } else { 148 };
        let data = PrivateData::framed(message, max)?;
        let bytes = data.as_bytes();
        let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        // SAFETY: the identifier is alive, and the data a local of this length.
        let ret = unsafe { rdma_reject(self.id.as_ptr(), bytes.as_ptr().cast(), len) };
        ret::minus_one("rdma_reject", ret)
    }
}

with_a_device! { ConnectRequest }
with_a_peer! { ConnectRequest }

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}
