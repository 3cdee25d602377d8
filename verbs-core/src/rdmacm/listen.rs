//! The passive side: a listener, and requests of peers.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbs_sys::rdma_accept;

use super::connect::{Connecting, Connector};
use super::connection::{Confirming, Connected, Connection};
use super::event::Event;
use super::id::{Id, QpParam, failed, given_up, with_a_device, with_a_peer};
use super::pending::Pending;
use super::private_data::{MAX_ANSWER, MAX_REJECTION, Message};
use super::queue_pair;
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::device::Context;
use crate::error::{Error, Rejected, Result};
use crate::ffi::{fd, ret};
use crate::queue_pair::{PreparedQueuePair, QueuePair, Receives};

/// A listener at an address. Dropping it rejects the requests that have not been taken.
///
/// Its descriptor ([`AsFd`]) is readable when there is a request.
#[derive(Debug)]
#[doc(alias = "rdma_listen")]
// tidy: allow(unique): its users name it with its module, `rdmacm`
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

/// A request whose queue pair is connected: the peer may send as soon as it is
/// [accepted](Self::accept).
///
/// Post receives before that. Dropping it rejects the peer.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
pub struct Accepting {
    id: Id,
    param: QpParam,
}

impl Connector {
    /// Listens at the address that it is [bound](Self::bind) to. [`Listener::bind`] does both, without
    /// options, and its docs are about the backlog.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE`.
    #[doc(alias = "rdma_listen")]
    pub fn listen(self, backlog: u16) -> Result<Listener> {
        let Self { mut id } = self;
        id.listen(backlog)?;
        Ok(Listener { id })
    }
}

impl Listener {
    /// Listens at an address. The port 0 is any free one: see [`local_addr`](Self::local_addr). The
    /// unspecified address (`0.0.0.0`, `[::]`) is that of all devices.
    ///
    /// `backlog` is how many requests may wait to be taken; the kernel drops further ones, and
    /// their peers ask again after seconds. With 0 it is the maximum, the sysctl
    /// `net.rdma_ucm.max_backlog` (1024 by default).
    ///
    /// For a listener with options, see [`Connector::listen`].
    ///
    /// # Errors
    ///
    /// Those of [`Connector::bind`] and [`Connector::listen`].
    pub fn bind(addr: SocketAddr, backlog: u16) -> Result<Self> {
        let listen = || {
            let mut connector = Connector::new()?;
            connector.bind(addr)?;
            connector.listen(backlog)
        };
        // iWARP listens at a port of TCP, but `rdma_cm` chooses one without regard to those in use.
        let is_taken = |error: &Error| addr.port() == 0 && error.errno() == Some(libc::EADDRINUSE);
        for _ in 1..TRIES {
            match listen() {
                Err(error) if is_taken(&error) => {}
                listener => return listener,
            }
        }
        listen()
    }

    /// The address that it listens at.
    #[must_use]
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
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
        Ok(
            next_request(&mut self.id)?.map(|(event, id)| ConnectRequest {
                id,
                private_data: event.private_data,
                depths: event.depths,
            }),
        )
    }

    /// Waits for the next request; `None` if `timeout` passes first.
    ///
    /// # Errors
    ///
    /// As [`poll_request`](Self::poll_request).
    pub fn request(&mut self, timeout: Option<Duration>) -> Result<Option<ConnectRequest>> {
        wait_request(self, timeout, Self::poll_request)
    }
}

/// How many ports are tried to find a free one.
const TRIES: u32 = 8;

/// Takes the next request off a listener's identifier.
pub(super) fn next_request(listener: &mut Id) -> Result<Option<(Event, Id)>> {
    loop {
        let Some((event, id)) = listener.take_event()? else {
            return Ok(None);
        };
        match (event.kind, id) {
            (CmEventType::CONNECT_REQUEST, Some(id)) => return Ok(Some((event, id))),
            (CmEventType::DEVICE_REMOVAL, _) => return Err(failed("listening", &event)),
            _ => {}
        }
    }
}

/// Waits until a listener has a request; `None` if `timeout` passes first.
pub(super) fn wait_request<L: AsFd, T>(
    listener: &mut L,
    timeout: Option<Duration>,
    poll: impl Fn(&mut L) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = fd::deadline(timeout);
    loop {
        if let Some(request) = poll(listener)? {
            return Ok(Some(request));
        }
        if !fd::wait_readable(listener.as_fd(), deadline)? {
            return Ok(None);
        }
    }
}

impl ConnectRequest {
    /// The private data that the peer sent with its request.
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

    /// Accepts the peer with this queue pair, and a [`Message`] of at most 195 bytes (250 on iWARP).
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
    pub fn accept<'m, R: Receives>(
        self,
        queue_pair: PreparedQueuePair<R>,
        message: impl Into<Message<'m>>,
    ) -> Result<Pending<Connected<R>>> {
        let data = self.id.private_data(message.into(), MAX_ANSWER)?;
        let (queue_pair, accepting) = self.connect(queue_pair)?;
        let confirming = accepting.send(&data)?;
        Ok(Pending::new(Connecting::accepted(confirming, queue_pair)))
    }

    /// The first half of [`accept`](Self::accept), for receives that need a connected queue pair: connects
    /// it to the peer. It is in `RTS` then.
    ///
    /// Post receives on it, and [accept](Accepting::accept) the peer, which may send from then on.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept), with the request, to [reject](Self::reject) the peer with the reason.
    #[expect(clippy::result_large_err, reason = "gives back what it was called on")]
    pub fn connect<R: Receives>(
        mut self,
        queue_pair: PreparedQueuePair<R>,
    ) -> Result<(QueuePair<R>, Accepting), Rejected<Self>> {
        match given_up(ACCEPTING, self.connect_with(queue_pair)) {
            Ok((queue_pair, param)) => Ok((queue_pair, Accepting { id: self.id, param })),
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    fn connect_with<R: Receives>(
        &mut self,
        mut queue_pair: PreparedQueuePair<R>,
    ) -> Result<(QueuePair<R>, QpParam)> {
        queue_pair::init(&mut self.id, &mut queue_pair)?;
        let mut param = queue_pair::param(&queue_pair);
        // No more than the peer has room for.
        param.max_dest_rd_atomic = param.max_dest_rd_atomic.min(self.depths.0);
        param.max_rd_atomic = param.max_rd_atomic.min(self.depths.1);
        // Before it is accepted: the peer may send as soon as it is.
        let (queue_pair, less) = queue_pair::connect(&mut self.id, queue_pair)?;
        let served = less.unwrap_or(param.max_dest_rd_atomic);
        param.max_dest_rd_atomic = param.max_dest_rd_atomic.min(served);
        Ok((queue_pair, param))
    }

    /// Rejects the peer, with a [`Message`] of at most 147 bytes (250 on iWARP).
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long, otherwise the errno. The peer is
    /// rejected without a message.
    #[doc(alias = "rdma_reject")]
    pub fn reject<'m>(self, message: impl Into<Message<'m>>) -> Result<()> {
        let data = self.id.private_data(message.into(), MAX_REJECTION)?;
        self.id.reject(&data)
    }
}

impl Accepting {
    /// Accepts the peer, with a [`Message`] of at most 195 bytes (250 on iWARP).
    ///
    /// # Errors
    ///
    /// As [`ConnectRequest::accept`]. The peer is rejected.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'m>(self, message: impl Into<Message<'m>>) -> Result<Pending<Connection>> {
        let data = self.id.private_data(message.into(), MAX_ANSWER)?;
        Ok(Pending::new(self.send(&data)?))
    }

    /// Rejects the peer after all, with a [`Message`] of at most 147 bytes (250 on iWARP).
    ///
    /// # Errors
    ///
    /// As [`ConnectRequest::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject<'m>(self, message: impl Into<Message<'m>>) -> Result<()> {
        let data = self.id.private_data(message.into(), MAX_REJECTION)?;
        self.id.reject(&data)
    }

    fn send(self, data: &PrivateData) -> Result<Confirming> {
        let mut param = Id::conn_param(data, &self.param);
        // SAFETY: the identifier is alive, and the parameters and the data outlive the call.
        let ret = unsafe { rdma_accept(self.id.as_ptr(), &raw mut param) };
        given_up(ACCEPTING, ret::minus_one("rdma_accept", ret))?;
        Ok(Confirming::new(self.id))
    }
}

/// The step that a peer is admitted in.
const ACCEPTING: &str = "accepting";

with_a_device! { Accepting }
with_a_peer! { Accepting }
with_a_device! { ConnectRequest }
with_a_peer! { ConnectRequest }

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}
