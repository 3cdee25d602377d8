//! The requests of a listener of `rdma_cm`, taken on helper threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use verbs_channel::__private::HostAddress;
use verbs_channel::verbs_core::rdmacm::{
    ConnectRequest, DatagramListener, DatagramRequest, Listener,
};
use verbs_channel::verbs_core::{self};

use super::super::arrival::Bind;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads::drop_on_thread::Elsewhere;
use crate::threads::{self, Call};

/// A listener, and the request that is being taken.
pub(in super::super) struct Requests<L: Takes> {
    listener: Elsewhere<Arc<Mutex<L>>>,
    local_addr: Option<SocketAddr>,
    notifier: Box<dyn CqNotifier>,
    taking: Option<Call<verbs_core::Result<Option<L::Request>>>>,
    // There may be requests that the notifier does not report again.
    may_have_more: bool,
}

/// A listener for connections, or for datagrams.
pub(in super::super) trait Takes: AsFd + Send + 'static {
    type Request: Send + 'static;

    fn take(&mut self) -> verbs_core::Result<Option<Self::Request>>;

    fn addr(&self) -> Option<SocketAddr>;
}

impl Takes for Listener {
    type Request = ConnectRequest;

    fn take(&mut self) -> verbs_core::Result<Option<ConnectRequest>> {
        self.poll_request()
    }

    fn addr(&self) -> Option<SocketAddr> {
        self.local_addr()
    }
}

impl Takes for DatagramListener {
    type Request = DatagramRequest;

    fn take(&mut self) -> verbs_core::Result<Option<DatagramRequest>> {
        self.poll_request()
    }

    fn addr(&self) -> Option<SocketAddr> {
        self.local_addr()
    }
}

impl Bind {
    /// An address of an RDMA device at which to listen with `rdma_cm`; the unspecified one for all devices. Needs the
    /// feature `rdmacm`.
    #[doc(alias = "rdma_listen")]
    pub fn cm(address: impl Into<HostAddress>) -> Self {
        Self::CmAddress(address.into())
    }
}

impl From<Listener> for Bind {
    fn from(listener: Listener) -> Self {
        Self::Cm(listener)
    }
}

impl Requests<Listener> {
    /// Those of a listener, or at an address, which is looked up on a helper thread.
    pub(in super::super) async fn bind(on: Bind, events: &CqEvents) -> Result<Self> {
        let listener = match on {
            Bind::CmAddress(address) => {
                let bound = threads::look_up(move || bind(&address).map(Elsewhere::new));
                bound.await.map_err(Error::Thread)??.into_inner()
            }
            Bind::Cm(listener) => listener,
            _ => return Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        };
        Self::new(listener, events)
    }
}

impl<L: Takes> Requests<L> {
    pub(super) fn new(listener: L, events: &CqEvents) -> Result<Self> {
        let local_addr = listener.addr();
        let descriptor = listener.as_fd().try_clone_to_owned();
        let listener = Elsewhere::new(Arc::new(Mutex::new(listener)));
        Ok(Self {
            listener,
            local_addr,
            notifier: events.another_notifier(descriptor?)?,
            taking: None,
            may_have_more: true,
        })
    }

    pub(in super::super) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<L::Request>> {
        loop {
            if let Some(taking) = &mut self.taking {
                let taken = ready!(Pin::new(taking).poll(cx));
                self.taking = None;
                let taken = taken.map_err(Error::Thread)?;
                match taken.map_err(verbs_channel::Error::from)? {
                    Some(request) => return Poll::Ready(Ok(request)),
                    None => self.may_have_more = false,
                }
            }
            if !self.may_have_more {
                ready!(self.notifier.poll_readable(cx))?;
                self.may_have_more = true;
            }
            let listener = Arc::clone(&self.listener);
            self.taking = Some(threads::run(move || listener.lock().take()));
        }
    }

    /// Destroys the listener on a helper thread, and waits for that.
    pub(in super::super) async fn close(self) {
        if let Some(taking) = self.taking {
            // It has the listener until then. Its request is rejected.
            drop(Elsewhere::new(taking.await));
        }
        let listener = self.listener.into_inner();
        // It is made in any case, so it has no error.
        let _closed = threads::run_always(move || drop(listener)).await;
    }

    pub(in super::super) const fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
}

/// Listens at the first of these addresses that is free.
fn bind(address: &HostAddress) -> verbs_channel::Result<Listener> {
    let mut failed = None;
    for address in address.resolve()? {
        match Listener::bind(address, BACKLOG) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some(error),
        }
    }
    let none = || address.lookup(io::ErrorKind::NotFound.into()).into();
    Err(failed.map_or_else(none, Into::into))
}

/// How many requests of `rdma_cm` can wait: the same number as std's listeners of TCP.
const BACKLOG: u16 = 128;
