//! Datagram endpoints that find each other by `rdma_cm`.

use std::thread;
use std::time::{Duration, Instant};

use verbs_core::path::DatagramEndpoint;
use verbs_core::rdmacm::{DatagramRequest, DatagramService, Message, PrivateData};

use super::attempts::{Attempt, Attempts};
use super::peer::HostAddress;
use crate::datagrams::Datagrams;
use crate::error::Result;
use crate::exchange::ExchangeFailure;
use crate::exchange::cm::CmDatagrams;

/// Finding each other by `rdma_cm`, at the address of an RDMA device and a port. Needs the feature `rdmacm`.
///
/// A service is an endpoint with the key [`QKey::RDMA_UDP`](verbs_core::path::QKey::RDMA_UDP) and a
/// [`DatagramListener`](verbs_core::rdmacm::DatagramListener), whose requests it answers. It may be a program
/// that does not use this crate. iWARP has no datagrams.
impl Datagrams {
    /// Finds the service at an address and port, within `timeout`: sends it a message of at most 179
    /// bytes, or 180 [raw](Message::raw) ones.
    ///
    /// Returns the service's endpoint, to send to, and its answer of at most 135 bytes, or 136 raw ones. The
    /// path to it begins at this side's address from which `rdma_cm` reaches the service, until its address
    /// handle is [forgotten](Self::forget), or evicted by those of many others. While there is no
    /// service yet, this tries again. A name is resolved first by the system's resolver, which has timeouts
    /// of its own.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::verbs_core::Context;
    /// use verbs_channel::{BufferPool, Datagrams};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let mut datagrams = Datagrams::builder(&pd).build()?;
    /// let timeout = Duration::from_secs(5);
    /// let (service, answer) = datagrams.find_cm("192.0.2.1:7174", timeout, b"")?;
    ///
    /// let pool = BufferPool::new(&pd, 1024, 16)?;
    /// let hello = pool.take_with(b"hello")?.ok_or("the pool is empty")?;
    /// datagrams.send_to(&service, hello)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`](crate::Error::Exchange): there is no service, it did not answer in time or it has
    /// rejected the request ([`Manager`](crate::exchange::ExchangeError::Manager), with its message); its address is that of
    /// [another device](crate::exchange::ExchangeError::OtherDevice) or port; the message is too long.
    /// [`RejectReason::Down`](crate::RejectReason::Down): the endpoint has failed.
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_connect")]
    pub fn find_cm<'m>(
        &mut self,
        service: impl Into<HostAddress>,
        timeout: Duration,
        message: impl Into<Message<'m>>,
    ) -> Result<(DatagramEndpoint, PrivateData)> {
        let (message, begun) = (message.into(), Instant::now());
        let ours = self.by_manager()?;
        let mut attempts = Attempts::new(service.into().resolve()?, begun, timeout);
        let (service, address) = loop {
            let left = |until: Instant| until.saturating_duration_since(Instant::now());
            match attempts.step()? {
                Attempt::Pause(until) => thread::sleep(left(until)),
                Attempt::Try(address, until) => {
                    let finding = DatagramService::find(address, left(until), message);
                    match finding.and_then(|finding| finding.wait(Some(left(until)))) {
                        Ok(service) => break (service, address),
                        Err(error) => attempts.failed(CmDatagrams::explain(error, timeout)),
                    }
                }
            }
        };
        let found = ours.found(&service);
        let (endpoint, handle) =
            found.map_err(|error| ExchangeFailure::new(Some(address), error))?;
        drop(self.engine_mut().add_handle(&endpoint, handle));
        Ok((endpoint, *service.private_data()))
    }

    pub(super) fn by_manager(&self) -> Result<CmDatagrams> {
        let (port_num, endpoint) = (self.port_num(), self.endpoint());
        Ok(CmDatagrams::new(self.pd()?.clone(), port_num, endpoint))
    }

    /// Answers a peer that looks for this endpoint: with a message of at most 135 bytes, or 136
    /// [raw](Message::raw) ones. The peer can send then.
    ///
    /// To reject it, drop the request, or call [`DatagramRequest::reject`]. A thread that does not have the
    /// endpoint calls [`DatagramRequest::accept_endpoint`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::Datagrams;
    /// use verbs_channel::verbs_core::{Context, rdmacm};
    /// use verbs_channel::verbs_core::path::QKey;
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let mut datagrams = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP).build()?;
    /// let mut listener = rdmacm::DatagramListener::bind("0.0.0.0:7174".parse()?, 16)?;
    /// loop {
    ///     while let Some(request) = listener.poll_request()? {
    ///         datagrams.answer_cm(request, b"")?;
    ///     }
    ///     if let Some(datagram) = datagrams.receive_from(Some(Duration::from_millis(100)))? {
    ///         // …
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`](crate::Error::Exchange), and the peer is rejected: it has reached
    /// [another device](crate::exchange::ExchangeError::OtherDevice) or port (it is sent that);
    /// this endpoint has [another key](crate::exchange::ExchangeError::OtherKey); the errno
    /// ([`Manager`](crate::exchange::ExchangeError::Manager)); the message is too long. [`RejectReason::Down`](crate::RejectReason::Down): the endpoint has failed.
    #[doc(alias = "rdma_accept")]
    pub fn answer_cm<'m>(
        &self,
        request: DatagramRequest,
        message: impl Into<Message<'m>>,
    ) -> Result<()> {
        let peer = request.peer_addr();
        let answered = self.by_manager()?.answer(request, message.into());
        Ok(answered.map_err(|error| ExchangeFailure::new(peer, error))?)
    }
}
