//! The requests of a listener of `rdma_cm`, taken on helper threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use verbs_channel::__private::HostAddress;
use verbs_channel::Connect;
use verbs_channel::connect::PeerAddr;
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::rdmacm::{ConnectRequest, Listener};

use super::super::callers::{Bind, Boxed, Caller, Callers};
use super::super::errors::exchange_error;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads::on_thread::OnThread;
use crate::threads::{self, Call};

/// A listener for connections or for datagrams, and the request that is being taken.
pub(super) struct Requests<L: Send + 'static, R: Send + 'static> {
    listener: OnThread<Arc<Mutex<L>>>,
    take: fn(&mut L) -> verbs_core::Result<Option<R>>,
    local_addr: Option<SocketAddr>,
    notifier: Box<dyn CqNotifier>,
    taking: Option<Call<verbs_core::Result<Option<R>>>>,
    // There may be requests that the notifier does not report again.
    may_have_more: bool,
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

/// Requests of a listener, or at an address, which is looked up on a helper thread.
pub(in super::super) async fn requests(
    on: Bind,
    options: &Connect,
    events: &CqEvents,
) -> Result<(Box<dyn Callers>, Option<SocketAddr>)> {
    let on = OnThread::new(on);
    options.check_cm().map_err(exchange_error)?;
    let listener = match on.into_inner() {
        Bind::CmAddress(address) => {
            let bound = threads::look_up(move || bind(&address).map(OnThread::new));
            bound.await.map_err(Error::Thread)??.into_inner()
        }
        Bind::Cm(listener) => listener,
        _ => return Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    };
    let local_addr = listener.local_addr();
    let requests = Requests::new(listener, local_addr, Listener::poll_request, events)?;
    Ok((Box::new(requests), local_addr))
}

impl Callers for Requests<Listener, ConnectRequest> {
    fn poll_caller(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Caller>> {
        let request = ready!(self.poll_request(cx))?;
        let peer = request.peer_addr();
        let request = OnThread::new(request);
        Poll::Ready(Ok(Caller {
            peer,
            connect: Box::new(move |terms, progress| {
                Box::pin(async move {
                    let prepared = terms.prepare(peer.map(PeerAddr::Socket));
                    let (group, options) = (&terms.group, &terms.options);
                    group.accept_cm(request, options, prepared, &progress).await
                })
            }),
        }))
    }

    fn late(&self, _has_shown: bool) -> &'static str {
        "confirm"
    }

    fn close(self: Box<Self>) -> Boxed<()> {
        Box::pin(Self::close(*self))
    }
}

impl<L: AsFd + Send, R: Send> Requests<L, R> {
    pub(super) fn new(
        listener: L,
        local_addr: Option<SocketAddr>,
        take: fn(&mut L) -> verbs_core::Result<Option<R>>,
        events: &CqEvents,
    ) -> Result<Self> {
        let descriptor = listener.as_fd().try_clone_to_owned();
        let listener = OnThread::new(Arc::new(Mutex::new(listener)));
        Ok(Self {
            listener,
            take,
            local_addr,
            notifier: events.another_notifier(descriptor?)?,
            taking: None,
            may_have_more: true,
        })
    }

    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<R>> {
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
            let (listener, take) = (Arc::clone(&self.listener), self.take);
            self.taking = Some(threads::run(move || take(&mut listener.lock())));
        }
    }

    /// Destroys the listener on a helper thread, and waits for that.
    pub(super) async fn close(self) {
        if let Some(taking) = self.taking {
            // It has the listener until then. Its request is rejected.
            drop(OnThread::new(taking.await));
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
