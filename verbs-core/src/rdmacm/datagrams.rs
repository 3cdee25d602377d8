//! Datagram services: their queue pair, key and path, found by their address and port.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbs_sys::{RDMA_PS_UDP, rdma_accept};

use super::event::DatagramPath;
use super::id::{Id, QpParam, failed, with_a_device, with_a_peer};
use super::listen::{next_request, wait_request};
use super::pending::{Pending, sealed};
use super::private_data::{MAX_DATAGRAM_ANSWER, MAX_DATAGRAM_REQUEST, Message};
use crate::codes::cm_event_type::CmEventType;
use crate::codes::private_data::PrivateData;
use crate::datagram::DatagramQueuePair;
use crate::device::Context;
use crate::error::Result;
use crate::ffi::ret;
use crate::path::{AhAttr, DatagramEndpoint, QKey};

/// A new identifier for datagrams: to [find](Self::find) a service, to [listen](Self::listen) for peers that
/// look for one, or to [join](Self::join) a multicast group, after its options have been set.
///
/// Without options, [`DatagramService::find`], [`DatagramListener::bind`] and
/// [`MulticastGroup::join`](super::MulticastGroup::join) do the same. It has no time to wait for an acknowledgement, since datagrams
/// have none.
///
/// ```no_run
/// use std::time::Duration;
/// use verbs_core::rdmacm::DatagramConnector;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut connector = DatagramConnector::new()?;
/// connector.set_tos(0x68)?;
/// let second = Duration::from_secs(1);
/// let service = connector.find("192.0.2.1:7174".parse()?, second, b"")?.wait(Some(5 * second))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
#[doc(alias = "RDMA_PS_UDP")]
pub struct DatagramConnector {
    pub(super) id: Id,
}

/// A service that receives datagrams, found by its address and port: what is needed to send to it.
///
/// The service answers once (InfiniBand's service ID resolution, SIDR), and keeps nothing: there is no
/// connection, and nothing ends when this is dropped. iWARP has no datagrams.
///
/// ```no_run
/// use std::time::Duration;
/// use verbs_core::rdmacm::DatagramService;
/// use verbs_core::{CompletionQueue, Device};
/// use verbs_core::datagram::DatagramQueuePair;
/// use verbs_core::work_request::DatagramWorkRequest;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (second, server) = (Duration::from_secs(1), "192.0.2.1:7174".parse()?);
/// let service = DatagramService::find(server, second, b"")?.wait(Some(5 * second))?;
/// let context = Device::by_name(&service.device_name())?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, CompletionQueue::create(&context, 16)?);
/// let ah = pd.create_ah(&service.ah_attr())?;
/// let hello = pd.reg_mr(b"hello".to_vec())?;
/// let qp = DatagramQueuePair::builder(&pd, &cq, &cq)
///     .port_num(service.port_num())
///     .qkey(service.qkey())
///     .build()?;
/// let mut element = hello.gather_element(..)?;
/// let (to, key) = (service.qp_num(), service.qkey());
/// let mut request = DatagramWorkRequest::new(&mut element, &ah, to, key);
/// // The queue pair is dropped before `hello` and `ah`: nothing is in flight then.
/// unsafe { qp.post_send(&mut request)? };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
#[doc(alias = "rdma_ud_param")]
pub struct DatagramService {
    id: Id,
    path: DatagramPath,
    private_data: PrivateData,
}

/// Looks for a service, in three steps.
#[derive(Debug)]
#[expect(unnameable_types, reason = "the state of a sealed trait")]
pub struct Finding {
    id: Id,
    timeout: Duration,
    message: PrivateData,
    /// The event that ends the step.
    next: CmEventType,
}

impl DatagramConnector {
    /// Creates an identifier, with a descriptor of its own.
    ///
    /// # Errors
    ///
    /// The errno: `ENODEV` if the kernel has no RDMA device or lacks the module `rdma_ucm`, `EMFILE`.
    #[doc(alias = "rdma_create_id")]
    pub fn new() -> Result<Self> {
        let id = Id::new(RDMA_PS_UDP)?;
        Ok(Self { id })
    }

    /// Sets the type of service of the path to a service that it finds, as
    /// [`Connector::set_tos`](super::Connector::set_tos) does. For a listener it has no meaning.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&mut self, tos: u8) -> Result<()> {
        self.id.set_tos(tos)
    }

    /// Sets whether the local address can be used by several identifiers at once, as
    /// [`Connector::set_reuse_addr`](super::Connector::set_reuse_addr) does.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&mut self, on: bool) -> Result<()> {
        self.id.set_reuse_addr(on)
    }

    /// Sets whether the IPv6 address `[::]` is for IPv6 only, as
    /// [`Connector::set_ipv6_only`](super::Connector::set_ipv6_only) does.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_ipv6_only(&mut self, on: bool) -> Result<()> {
        self.id.set_ipv6_only(on)
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

    /// As [`DatagramService::find`], with the options, and from the address that it is bound to.
    ///
    /// # Errors
    ///
    /// As [`DatagramService::find`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_connect")]
    pub fn find<'m>(
        mut self,
        addr: SocketAddr,
        timeout: Duration,
        message: impl Into<Message<'m>>,
    ) -> Result<Pending<DatagramService>> {
        let message = message.into().encode(MAX_DATAGRAM_REQUEST)?;
        self.id.resolve_addr(addr, timeout)?;
        Ok(Pending::new(Finding {
            id: self.id,
            timeout,
            message,
            next: CmEventType::ADDR_RESOLVED,
        }))
    }

    /// Listens at the address that it is [bound](Self::bind) to, as [`DatagramListener::bind`] does.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE`.
    #[doc(alias = "rdma_listen")]
    pub fn listen(mut self, backlog: u16) -> Result<DatagramListener> {
        self.id.listen(backlog)?;
        Ok(DatagramListener { id: self.id })
    }
}

impl DatagramService {
    /// Begins to find the service at an address and port, with a [`Message`] of at most 179 bytes.
    ///
    /// The kernel gives up finding the device, and then finding the route, after `timeout`, which is
    /// rounded up to milliseconds. It asks a service that does not answer again for about a minute: give
    /// [`Pending::wait`] a timeout.
    ///
    /// The step fails with [`UNREACHABLE`](CmEventType::UNREACHABLE) if there is no service or it has
    /// rejected the request: its [status](super::CmFailure::status) is 1 for a service that is not
    /// there, and 2 for a rejection.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long, otherwise the errno: `ENETUNREACH` or `ENODEV` if no
    /// RDMA device has a route to the address.
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_connect")]
    pub fn find<'m>(
        addr: SocketAddr,
        timeout: Duration,
        message: impl Into<Message<'m>>,
    ) -> Result<Pending<Self>> {
        DatagramConnector::new()?.find(addr, timeout, message)
    }

    /// The service's endpoint, for [`DatagramQueuePair::address_handle`] and
    /// [`DatagramWorkRequest::to`](crate::work_request::DatagramWorkRequest::to). The MTU of its port is not known.
    ///
    /// A path that is made from it begins at the queue pair's own GID. The path that the connection
    /// manager has found is that of [`ah_attr`](Self::ah_attr): from the address with which it reaches the
    /// service.
    ///
    /// # Errors
    ///
    /// [`EndpointError`](crate::error::EndpointError): the service's answer has a number that is out of its range.
    pub fn endpoint(&self) -> Result<DatagramEndpoint> {
        self.path.endpoint()
    }

    /// Attributes of an address handle to the service.
    #[must_use]
    pub const fn ah_attr(&self) -> AhAttr {
        self.path.ah_attr
    }

    /// The number of the service's queue pair.
    #[must_use]
    pub const fn qp_num(&self) -> u32 {
        self.path.qp_num
    }

    /// The key of the service's queue pair.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "checked when it was found")]
    pub fn qkey(&self) -> QKey {
        QKey::new(self.path.qkey).expect("it was checked when the service was found")
    }

    /// Data of the service's answer.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }
}

with_a_device! { DatagramService DatagramRequest }
with_a_peer! { DatagramService DatagramRequest }

impl sealed::Step for DatagramService {
    type State = Finding;

    const NAME: &'static str = "finding the datagram service";

    fn advance(mut finding: Finding) -> Result<Result<Self, Finding>> {
        loop {
            let Some(event) = finding.id.next_event()? else {
                return Ok(Err(finding));
            };
            if event.kind != finding.next || event.status != 0 {
                return Err(failed(Self::NAME, &event));
            }
            match (event.kind, event.datagrams) {
                (CmEventType::ADDR_RESOLVED, _) => {
                    finding.id.resolve_route(finding.timeout)?;
                    finding.next = CmEventType::ROUTE_RESOLVED;
                }
                (CmEventType::ROUTE_RESOLVED, _) => {
                    finding.id.connect(&finding.message, &QpParam::default())?;
                    finding.next = CmEventType::ESTABLISHED;
                }
                (_, Some(path)) if QKey::new(path.qkey).is_ok() => {
                    return Ok(Ok(Self {
                        id: finding.id,
                        path,
                        private_data: event.private_data,
                    }));
                }
                _ => return Err(failed(Self::NAME, &event)),
            }
        }
    }
}

/// A listener for peers that look for a datagram service. Dropping it ends the service's address: its
/// queue pair goes on receiving.
///
/// Its descriptor ([`AsFd`]) is readable when there is a request.
///
/// ```no_run
/// use verbs_core::rdmacm::DatagramListener;
/// use verbs_core::{ProtectionDomain, CompletionQueue};
/// use verbs_core::datagram::DatagramQueuePair;
/// use verbs_core::path::QKey;
///
/// # fn serve(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
/// let qp = DatagramQueuePair::builder(pd, cq, cq).qkey(QKey::RDMA_UDP).build()?;
/// let mut listener = DatagramListener::bind("0.0.0.0:7174".parse()?, 16)?;
/// while let Some(request) = listener.request(None)? {
///     request.accept(&qp, b"")?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
// tidy: allow(unique): its users name it with its module, `rdmacm`
pub struct DatagramListener {
    id: Id,
}

/// A peer that looks for a datagram service. Dropping it rejects the peer.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct DatagramRequest {
    id: Id,
    private_data: PrivateData,
}

impl DatagramListener {
    /// Listens at an address. The port 0 is any free one: see [`local_addr`](Self::local_addr). The
    /// unspecified address (`0.0.0.0`, `[::]`) is that of all devices. Ports of datagrams are others than
    /// those of connections.
    ///
    /// `backlog` is as that of [`Listener::bind`](super::Listener::bind).
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE`, `EADDRNOTAVAIL` or `ENODEV` for an address of no RDMA device.
    #[doc(alias = "rdma_listen")]
    pub fn bind(addr: SocketAddr, backlog: u16) -> Result<Self> {
        let mut connector = DatagramConnector::new()?;
        connector.bind(addr)?;
        connector.listen(backlog)
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
    /// As [`Listener::poll_request`](super::Listener::poll_request).
    pub fn poll_request(&mut self) -> Result<Option<DatagramRequest>> {
        Ok(
            next_request(&mut self.id)?.map(|(event, id)| DatagramRequest {
                id,
                private_data: event.private_data,
            }),
        )
    }

    /// Waits for the next request; `None` if `timeout` passes first.
    ///
    /// # Errors
    ///
    /// As [`poll_request`](Self::poll_request).
    pub fn request(&mut self, timeout: Option<Duration>) -> Result<Option<DatagramRequest>> {
        wait_request(self, timeout, Self::poll_request)
    }
}

impl DatagramRequest {
    /// Data of the peer's request.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// Answers with this queue pair, to which the peer can send then, and a [`Message`] of at most 135
    /// bytes. One queue pair can serve any number of peers.
    ///
    /// The queue pair must be of the [device](Self::device_name) and the [port](Self::port_num) of
    /// the request, and have the key [`QKey::RDMA_UDP`], which is what peers get.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`](crate::Error::ForeignContext) if it is of another device, [`Error::OutOfRange`](crate::Error::OutOfRange) if it has another
    /// key, [`Error::Limit`](crate::Error::Limit) if the message is too long, otherwise the errno. The peer is rejected.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'m>(
        self,
        queue_pair: &DatagramQueuePair,
        message: impl Into<Message<'m>>,
    ) -> Result<()> {
        self.id.check_is_on(queue_pair.pd().context())?;
        self.accept_endpoint(&queue_pair.endpoint(), message)
    }

    /// [Accepts](Self::accept) the peer with the queue pair that has this endpoint, which may be another
    /// process's.
    ///
    /// It must be of the [device](Self::device_name) and the [port](Self::port_num) of the request. That is
    /// not checked: if it is not, the peer's datagrams do not reach it.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    #[doc(alias = "rdma_accept")]
    pub fn accept_endpoint<'m>(
        self,
        endpoint: &DatagramEndpoint,
        message: impl Into<Message<'m>>,
    ) -> Result<()> {
        let data = message.into().encode(MAX_DATAGRAM_ANSWER)?;
        endpoint.qkey().check_is(QKey::RDMA_UDP)?;
        let qp = QpParam {
            qp_num: endpoint.qp_num(),
            ..QpParam::default()
        };
        let mut param = Id::conn_param(&data, &qp);
        // SAFETY: the identifier is alive, and the parameters and the data are locals.
        let ret = unsafe { rdma_accept(self.id.as_ptr(), &raw mut param) };
        ret::minus_one("rdma_accept", ret)
    }

    /// Rejects the peer, with a [`Message`] of at most 135 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`](crate::Error::Limit) if the message is too long, otherwise the errno. The peer is rejected without a
    /// message.
    #[doc(alias = "rdma_reject")]
    pub fn reject<'m>(self, message: impl Into<Message<'m>>) -> Result<()> {
        let data = message.into().encode(MAX_DATAGRAM_ANSWER)?;
        self.id.reject(&data)
    }
}

impl AsFd for Finding {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl AsFd for DatagramListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}
