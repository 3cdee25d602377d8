//! The active side: to an address, over a route, to a connection.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbs_sys::{RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_PS_TCP, rdma_establish};

use super::connection::{CONNECTING, Confirming, Connected, Connection};
use super::id::{Id, failed, given_up, with_a_device, with_a_peer};
use super::pending::{Pending, sealed};
use super::private_data::{MAX_REQUEST, Message};
use super::queue_pair;
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::device::Context;
use crate::error::cm_failure::CmFailure;
use crate::error::{Error, Result};
use crate::ffi::ret;
use crate::queue_pair::{AckTimeout, PreparedQueuePair, QueuePair, Receives};

/// A new identifier: to connect or to [listen](Self::listen), after its options have been set.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
// tidy: allow(unique): its users name it with its module, `rdmacm`
pub struct Connector {
    pub(super) id: Id,
}

/// An identifier whose peer can be reached from a device and a port of this machine.
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
pub struct AddrResolved {
    id: Id,
}

/// An identifier that has a route to the peer: it can connect.
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
pub struct RouteResolved {
    id: Id,
}

/// Waits for the event that its step ends with.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Resolving {
    id: Id,
}

/// Waits for the peer's answer.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Requesting {
    id: Id,
    qp_num: u32,
}

/// The peer has accepted: connect the queue pair, post receives, and [establish](Establishing) the
/// connection.
///
/// Dropping it ends the connection.
#[derive(Debug)]
#[must_use = "dropping it ends the connection"]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
// tidy: allow(unique): its users name it with its module, `rdmacm`
pub struct Answer {
    id: Id,
    qp_num: u32,
    private_data: PrivateData,
    is_established: bool,
}

/// A connection that the peer may use as soon as it is [established](Self::establish).
///
/// Post receives before that. Dropping it ends the connection.
#[derive(Debug)]
#[must_use = "dropping it ends the connection"]
pub struct Establishing {
    id: Id,
    is_established: bool,
}

/// Waits for the peer's answer, or for its confirmation.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Connecting<R> {
    state: Half<R>,
}

#[derive(Debug)]
enum Half<R> {
    /// The queue pair waits for the attributes of its peer.
    Asked(Requesting, PreparedQueuePair<R>),
    /// It is connected, and the peer is to confirm that.
    Accepted(Confirming, QueuePair<R>),
}

impl Connector {
    /// Creates an identifier, with a descriptor of its own.
    ///
    /// # Errors
    ///
    /// The errno: `ENODEV` if the kernel has no RDMA device or lacks the module `rdma_ucm`, `EMFILE`.
    #[doc(alias = "rdma_create_id")]
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        Ok(Self {
            id: Id::new(RDMA_PS_TCP)?,
        })
    }

    /// Sets the type of service of its packets: the byte of IPv4's header, or IPv6's traffic class.
    /// Unless set, it is the one that the administrator has set for the device
    /// (`default_roce_tos` in configfs), otherwise 0.
    ///
    /// Connections that a listener accepts have that of the listener.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&mut self, tos: u8) -> Result<()> {
        self.id.set_tos(tos)
    }

    /// Sets whether the local address can be used by several identifiers at once; off unless set.
    /// Set it before [`bind`](Self::bind). A port that is listened at stays in use.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&mut self, on: bool) -> Result<()> {
        self.id.set_reuse_addr(on)
    }

    /// Sets whether the IPv6 address `[::]` is for IPv6 only; unless set, the sysctl
    /// `net.ipv6.bindv6only` decides (off by default: it is for IPv4, too). Set it before
    /// [`bind`](Self::bind).
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_ipv6_only(&mut self, on: bool) -> Result<()> {
        self.id.set_ipv6_only(on)
    }

    /// Sets how long the peer's device waits for an acknowledgement before it sends again, if the peer
    /// leaves that to the connection manager; unless set, 17 to 19 (0.5 to 2 s). The unit is that of
    /// [`AckTimeout`]: 4.096 µs × 2^value.
    ///
    /// The queue pair of this side waits as long as its builder's
    /// [`timeout`](crate::queue_pair::QueuePairConfig::timeout).
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&mut self, timeout: AckTimeout) -> Result<()> {
        self.id
            .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, timeout.get())
    }

    /// Binds it to a local address. The port 0 is any free one.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE`, `EADDRNOTAVAIL` (an address of no RDMA device, or a port that is in use
    /// where one of the two addresses is unspecified), `ENODEV`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&mut self, addr: SocketAddr) -> Result<()> {
        self.id.bind(addr)
    }

    /// The local address; `None` before it has one.
    #[must_use]
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// Begins to find the device and the port from which the address can be reached. The kernel gives up
    /// after `timeout`, which is rounded up to milliseconds.
    ///
    /// # Errors
    ///
    /// The errno: `ENETUNREACH` or `ENODEV` if no RDMA device has a route to the address.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        mut self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> Result<Pending<AddrResolved>> {
        self.id.resolve_addr(addr, timeout)?;
        Ok(Pending::new(Resolving { id: self.id }))
    }
}

impl AddrResolved {
    /// Begins to find the route. The kernel gives up after `timeout`, which is rounded up to
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(mut self, timeout: Duration) -> Result<Pending<RouteResolved>> {
        self.id.resolve_route(timeout)?;
        Ok(Pending::new(Resolving { id: self.id }))
    }
}

impl RouteResolved {
    /// Asks the peer for a connection of this queue pair, with a [`Message`] of at most 55 bytes (250 on
    /// iWARP).
    ///
    /// Post receives before this call: the peer may send as soon as it is connected.
    ///
    /// The queue pair must be of the [device](Self::device_name) and the [port](Self::port_num) of
    /// the route. It keeps its settings: the peer gets no access beyond its `qp_access_flags`, and
    /// timeouts and retries are its own. The connection manager adds the path, and the depths that
    /// both sides agree on.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it is of another device,
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long,
    /// [`Error::ConnectionManager`](crate::Error::ConnectionManager) if no program listens there and the
    /// device is of iWARP (on others the step fails), otherwise the errno. The queue pair is dropped.
    #[doc(alias = "rdma_connect")]
    pub fn connect<'m, R: Receives>(
        self,
        mut queue_pair: PreparedQueuePair<R>,
        message: impl Into<Message<'m>>,
    ) -> Result<Pending<Connected<R>>> {
        let asked = self.ask(&mut queue_pair, message.into())?;
        Ok(Pending::new(Connecting {
            state: Half::Asked(asked, queue_pair),
        }))
    }

    /// The first half of [`connect`](Self::connect), for receives that need a connected queue pair.
    ///
    /// Pass the same queue pair to [`Answer::connect`] when the peer has accepted. If it has not, the queue
    /// pair can be used for another request.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), but the queue pair is not dropped.
    #[doc(alias = "rdma_connect")]
    pub fn request<'m, R: Receives>(
        self,
        queue_pair: &mut PreparedQueuePair<R>,
        message: impl Into<Message<'m>>,
    ) -> Result<Pending<Answer>> {
        Ok(Pending::new(self.ask(queue_pair, message.into())?))
    }

    fn ask<R: Receives>(
        mut self,
        queue_pair: &mut PreparedQueuePair<R>,
        message: Message<'_>,
    ) -> Result<Requesting> {
        let data = self.id.private_data(message, MAX_REQUEST)?;
        queue_pair::init(&mut self.id, queue_pair)?;
        let param = queue_pair::param(queue_pair);
        match self.id.connect(&data, &param) {
            // siw connects TCP in this call; with RoCE it is an event.
            Err(error) if error.errno() == Some(libc::ECONNREFUSED) => {
                return Err(Error::ConnectionManager {
                    step: CONNECTING,
                    failure: Box::new(CmFailure::REFUSED),
                });
            }
            connecting => connecting?,
        }
        Ok(Requesting {
            qp_num: queue_pair.qp_num(),
            id: self.id,
        })
    }
}

impl Answer {
    /// The private data that the peer sent with its answer.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// Connects the queue pair of the request to the peer. It is in `RTS` then.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignParent`](crate::Error::ForeignParent) if it is not the one of the request, otherwise
    /// the errno. The connection ends, and the queue pair is dropped.
    pub fn connect<R: Receives>(
        mut self,
        queue_pair: PreparedQueuePair<R>,
    ) -> Result<(QueuePair<R>, Establishing)> {
        // Queue pairs of two devices may have the same number.
        let is_on = self.id.is_on(queue_pair.pd().context());
        if !is_on || queue_pair.qp_num() != self.qp_num {
            return Err(Error::ForeignParent {
                child: "the queue pair",
                parent: "request",
            });
        }
        let connected = queue_pair::connect(&mut self.id, queue_pair);
        let (queue_pair, _) = given_up(CONNECTING, connected)?;
        let establishing = Establishing {
            id: self.id,
            is_established: self.is_established,
        };
        Ok((queue_pair, establishing))
    }
}

impl Establishing {
    /// Notifies the peer, which may send from now on.
    ///
    /// # Errors
    ///
    /// The errno, for example if the peer has disconnected. The connection ends.
    #[doc(alias = "rdma_establish")]
    pub fn establish(self) -> Result<Connection> {
        if !self.is_established {
            // SAFETY: the identifier is alive.
            let ret = unsafe { rdma_establish(self.id.as_ptr()) };
            given_up(CONNECTING, ret::minus_one("rdma_establish", ret))?;
        }
        Ok(Connection::new(self.id))
    }
}

with_a_device! { Answer }
with_a_peer! { Answer }
with_a_device! { AddrResolved RouteResolved }
with_a_peer! { AddrResolved RouteResolved }

/// The identifier once its step has ended as it should.
fn resolved(
    Resolving { mut id }: Resolving,
    step: &'static str,
    wanted: CmEventType,
) -> Result<Result<Id, Resolving>> {
    match id.next_event()? {
        None => Ok(Err(Resolving { id })),
        Some(event) if event.kind == wanted && event.status == 0 => Ok(Ok(id)),
        Some(event) => Err(failed(step, &event)),
    }
}

impl sealed::Step for AddrResolved {
    type State = Resolving;

    const NAME: &'static str = "resolving the address";

    fn advance(state: Resolving) -> Result<Result<Self, Resolving>> {
        let resolved = resolved(state, Self::NAME, CmEventType::ADDR_RESOLVED)?;
        Ok(resolved.map(|id| Self { id }))
    }
}

impl sealed::Step for RouteResolved {
    type State = Resolving;

    const NAME: &'static str = "resolving the route";

    fn advance(state: Resolving) -> Result<Result<Self, Resolving>> {
        let resolved = resolved(state, Self::NAME, CmEventType::ROUTE_RESOLVED)?;
        Ok(resolved.map(|id| Self { id }))
    }
}

impl<R> Connecting<R> {
    /// The passive side: it has accepted, and the queue pair is connected.
    pub(super) const fn accepted(confirming: Confirming, queue_pair: QueuePair<R>) -> Self {
        let state = Half::Accepted(confirming, queue_pair);
        Self { state }
    }
}

impl sealed::Step for Answer {
    type State = Requesting;

    const NAME: &'static str = CONNECTING;

    fn advance(mut requesting: Requesting) -> Result<Result<Self, Requesting>> {
        let Some(event) = requesting.id.next_event()? else {
            return Ok(Err(requesting));
        };
        let is_established = match event.kind {
            CmEventType::CONNECT_RESPONSE if event.status == 0 => false,
            // iWARP: the driver has connected it.
            CmEventType::ESTABLISHED if event.status == 0 => true,
            _ => return Err(failed(Self::NAME, &event)),
        };
        Ok(Ok(Self {
            id: requesting.id,
            qp_num: requesting.qp_num,
            private_data: event.private_data,
            is_established,
        }))
    }
}

impl<R: Receives> sealed::Step for Connected<R> {
    type State = Connecting<R>;

    const NAME: &'static str = CONNECTING;

    fn advance(Connecting { state }: Connecting<R>) -> Result<Result<Self, Connecting<R>>> {
        let (queue_pair, connection, private_data) = match state {
            Half::Asked(requesting, prepared) => match Answer::advance(requesting)? {
                Err(requesting) => {
                    let state = Half::Asked(requesting, prepared);
                    return Ok(Err(Connecting { state }));
                }
                Ok(answer) => {
                    let private_data = answer.private_data;
                    let (queue_pair, establishing) = answer.connect(prepared)?;
                    (queue_pair, establishing.establish()?, private_data)
                }
            },
            Half::Accepted(confirming, queue_pair) => match Connection::advance(confirming)? {
                Err(confirming) => {
                    let state = Half::Accepted(confirming, queue_pair);
                    return Ok(Err(Connecting { state }));
                }
                Ok(connection) => (queue_pair, connection, PrivateData::EMPTY),
            },
        };
        Ok(Ok(Self {
            queue_pair,
            connection,
            private_data,
        }))
    }
}

impl AsFd for Resolving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl AsFd for Requesting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl<R> AsFd for Connecting<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            Half::Asked(requesting, _) => requesting.as_fd(),
            Half::Accepted(confirming, _) => confirming.as_fd(),
        }
    }
}
