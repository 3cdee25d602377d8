//! Datagram endpoints that find each other by `rdma_cm`, with any notifier and any executor.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use verbs_channel::__private::{Attempts, CmDatagrams, HostAddress};
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::verbs_core::rdmacm::{
    DatagramListener, DatagramRequest, DatagramService, Message, PrivateData,
};

use super::super::deadline::Deadline;
use super::ended;
use super::requests::Requests;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::threads;
use crate::threads::on_thread::OnThread;

/// Listens for peers that look for a datagram service by `rdma_cm`, in async code. Needs the feature
/// `rdmacm`.
///
/// Its endpoint has the key [`QKey::RDMA_UDP`](verbs_channel::verbs_core::path::QKey::RDMA_UDP), and answers each
/// request with [`AsyncDatagrams::answer_cm`].
///
/// Dropping it rejects the peers that wait. To bind its port again, [`close`](Self::close) it first. The endpoint
/// continues to receive.
///
/// ```no_run
/// # async fn example(
/// #     pd: verbs_async::verbs_core::ProtectionDomain,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_async::verbs_channel::Datagrams;
/// use verbs_async::verbs_core::rdmacm;
/// use verbs_async::verbs_core::path::QKey;
/// use verbs_async::{AsyncDatagrams, CmDatagramListener, CqEvents};
///
/// // or create_tokio, create_async_io
/// let events = CqEvents::create_thread(pd.context())?;
/// let datagrams = AsyncDatagrams::create(Datagrams::builder(&pd).qkey(QKey::RDMA_UDP), &events)?;
/// let listener = rdmacm::DatagramListener::bind("0.0.0.0:7174".parse()?, 128)?;
/// let mut listener = CmDatagramListener::new(listener, &events)?;
/// loop {
///     // While other tasks receive:
///     let request = listener.request().await?;
///     datagrams.answer_cm(request, b"").await?;
/// }
/// # }
/// ```
#[doc(alias = "rdma_listen")]
pub struct CmDatagramListener {
    requests: Requests<DatagramListener, DatagramRequest>,
}

/// A peer that looks for a datagram service. Dropping it rejects the peer. Needs the feature `rdmacm`.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct CmDatagramRequest {
    request: OnThread<DatagramRequest>,
    peer: Option<SocketAddr>,
    private_data: PrivateData,
}

impl CmDatagramListener {
    /// Watches a listener with a notifier of the same kind as that of these events.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: its descriptor cannot be watched.
    pub fn new(listener: DatagramListener, events: &CqEvents) -> Result<Self> {
        let (local_addr, take) = (listener.local_addr(), DatagramListener::poll_request);
        let requests = Requests::new(listener, local_addr, take, events)?;
        Ok(Self { requests })
    }

    /// Waits for the next request.
    ///
    /// Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// Those of [`DatagramListener::poll_request`], and [`Error::Thread`]. The call can be repeated, unless
    /// the device was removed.
    pub async fn request(&mut self) -> Result<CmDatagramRequest> {
        poll_fn(|cx| self.poll_request(cx)).await
    }

    /// [`request`](Self::request) for a future of your own.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<CmDatagramRequest>> {
        self.requests
            .poll_request(cx)
            .map_ok(|request| CmDatagramRequest {
                peer: request.peer_addr(),
                private_data: *request.private_data(),
                request: OnThread::new(request),
            })
    }

    /// Closes the listener, and waits until a helper thread has done that: its port is free then. Peers that wait
    /// are rejected.
    ///
    /// Dropping the listener does the same without waiting, so a listener that is bound next may find the port in
    /// use (`EADDRINUSE`). Dropping the future has the same effect.
    pub async fn close(self) {
        self.requests.close().await;
    }

    /// The address that it listens at.
    #[must_use]
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.requests.local_addr()
    }
}

impl CmDatagramRequest {
    /// The address of the peer.
    #[must_use]
    pub const fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Data of the peer's request.
    #[must_use]
    pub const fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// Rejects the peer, with a message of at most 135 bytes, or 136 [raw](Message::raw) ones. Without any,
    /// drop the request.
    ///
    /// # Errors
    ///
    /// Those of [`DatagramRequest::reject`], and [`Error::Thread`].
    #[doc(alias = "rdma_reject")]
    pub async fn reject<'m>(self, message: impl Into<Message<'m>>) -> Result<()> {
        let message = OwnedMessage::of(message.into());
        let rejected = self
            .request
            .call(None, move |request| request.reject(message.get()));
        Ok(rejected.await?.map_err(verbs_channel::Error::from)?)
    }
}

/// Finding each other by `rdma_cm`, at the address of an RDMA device and a port. Needs the feature `rdmacm`.
///
/// A service may be a program that does not use this crate. iWARP has no datagrams.
impl AsyncDatagrams {
    /// Finds the service at an address and port, within `timeout`: sends it a message of at most 179
    /// bytes, or 180 [raw](Message::raw) ones.
    ///
    /// Returns the service's endpoint, to send to, and its answer of at most 135 bytes, or 136 raw ones. The
    /// path to it begins at this side's address from which `rdma_cm` reaches the service. While there is no
    /// service yet, this tries again. A name is resolved on a helper thread.
    ///
    /// Dropping the future ends the search.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(
    /// #     datagrams: verbs_async::AsyncDatagrams,
    /// #     hello: verbs_async::verbs_channel::OwnedBuffer,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let timeout = Duration::from_secs(5);
    /// let (service, answer) = datagrams.find_cm("192.0.2.1:7174", timeout, b"").await?;
    /// datagrams.send_to(&service, hello).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Datagrams::find_cm`](verbs_channel::Datagrams::find_cm).
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_connect")]
    pub async fn find_cm<'m>(
        &self,
        service: impl Into<HostAddress>,
        timeout: Duration,
        message: impl Into<Message<'m>>,
    ) -> Result<(DatagramEndpoint, PrivateData)> {
        self.check_is_up()?;
        let message = Arc::new(OwnedMessage::of(message.into()));
        let service = service.into();
        let deadline = Deadline::after(timeout, self.events());
        let attempt = |address, left| self.ask_cm(address, Arc::clone(&message), (left, timeout));
        let answer = |attempts: &mut Attempts, asked| match asked {
            Err(Error::Channel(verbs_channel::Error::Exchange(failure))) => {
                attempts.failed(failure.error);
                None
            }
            asked => Some(asked),
        };
        let found = deadline.first_that_answers(service, attempt, answer);
        let (found, address) = found.await?;
        let (service, private_data) = found?;
        let ours = self.by_manager();
        let found = async {
            Ok(service
                .call(None, move |service| ours.found(&service))
                .await??)
        };
        let found = deadline.bound("answer", found).await;
        let (endpoint, handle) = found.map_err(|error| error.with_peer(Some(address)))?;
        self.add_handle(&endpoint, handle);
        Ok((endpoint, private_data))
    }

    pub(super) fn by_manager(&self) -> CmDatagrams {
        CmDatagrams::new(self.pd().clone(), self.port_num(), self.endpoint())
    }

    /// Asks at one address.
    async fn ask_cm(
        &self,
        address: SocketAddr,
        message: Arc<OwnedMessage>,
        (left, timeout): (Duration, Duration),
    ) -> Result<(OnThread<DatagramService>, PrivateData)> {
        let explained = |error| CmDatagrams::explain(error, timeout);
        let begun = threads::run(move || DatagramService::find(address, left, message.get()));
        let finding = begun.await?.map_err(explained)?;
        let service = ended(self.events(), finding, timeout).await?;
        let private_data = *service.private_data();
        Ok((service, private_data))
    }

    /// Answers a peer that looks for this endpoint: with a message of at most 135 bytes, or 136
    /// [raw](Message::raw) ones. The peer can send then.
    ///
    /// To reject it, drop the request, or call [`CmDatagramRequest::reject`]. Dropping the future rejects the
    /// peer, or has answered it.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::answer_cm`](verbs_channel::Datagrams::answer_cm), and [`Error::Thread`].
    #[doc(alias = "rdma_accept")]
    pub async fn answer_cm<'m>(
        &self,
        request: CmDatagramRequest,
        message: impl Into<Message<'m>>,
    ) -> Result<()> {
        self.check_is_up()?;
        let ours = self.by_manager();
        let (message, peer) = (OwnedMessage::of(message.into()), request.peer);
        let answered = request
            .request
            .call(None, move |request| ours.answer(request, message.get()));
        let answered = answered.await?;
        answered.map_err(|error| Error::from(error).with_peer(peer))
    }
}

impl fmt::Debug for CmDatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_tuple("CmDatagramListener");
        debug.field(&self.local_addr()).finish()
    }
}

/// A message with its bytes, which is sent on a helper thread.
struct OwnedMessage {
    bytes: Vec<u8>,
    is_raw: bool,
}

impl OwnedMessage {
    fn of(message: Message<'_>) -> Self {
        Self {
            bytes: message.as_bytes().to_vec(),
            is_raw: message.is_raw(),
        }
    }

    fn get(&self) -> Message<'_> {
        if self.is_raw {
            Message::raw(&self.bytes)
        } else {
            self.bytes[..].into()
        }
    }
}
