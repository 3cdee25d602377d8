//! The requests of a listener of `rdma_cm`, taken on helper threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use verbs_channel::__private::HostAddress;
use verbs_channel::connect::PeerAddr;
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::rdmacm::{ConnectRequest, Listener};

use super::super::callers::{Caller, Entrance, Terms, not_accepted};
use super::super::deadline::{Boxed, Deadline};
use crate::error::Result;
use crate::events::CqEvents;
use crate::notifier::CqNotifier;
use crate::task::sync::Mutex;
use crate::threads::on_thread::OnThread;
use crate::threads::{self, Call};

/// A listener for connections or for datagrams, and the request that is being taken.
pub(in super::super) struct Requests<L: Send + 'static, R: Send + 'static> {
    listener: OnThread<Arc<Mutex<L>>>,
    take: fn(&mut L) -> verbs_core::Result<Option<R>>,
    local_addr: Option<SocketAddr>,
    notifier: Box<dyn CqNotifier>,
    taking: Option<Call<verbs_core::Result<Option<R>>>>,
    // There may be requests that the notifier does not report again.
    may_have_more: bool,
}

impl Requests<Listener, ConnectRequest> {
    /// Requests for connections.
    pub(in super::super) fn of(listener: OnThread<Listener>, events: &CqEvents) -> Result<Self> {
        let (listener, take) = (listener.into_inner(), Listener::poll_request);
        let local_addr = listener.local_addr();
        Self::new(listener, local_addr, take, events)
    }
}

impl Entrance for Requests<Listener, ConnectRequest> {
    fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    fn poll_caller(&mut self, _has_place: bool, cx: &mut Context<'_>) -> Poll<Result<Caller>> {
        let request = ready!(self.poll_request(cx));
        let request = OnThread::new(request.map_err(|error| not_accepted(error.into()))?);
        let peer = request.peer_addr().map(PeerAddr::Socket);
        let connect = async move |terms: Terms, deadline: Arc<Deadline>| {
            let prepared = terms.prepare(peer);
            let options = &terms.options;
            let met = (terms.group).accept_cm(request, options, prepared, &deadline);
            met.await
        };
        Poll::Ready(Ok(Caller::new(peer, Some("confirm"), connect)))
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
                match taken?? {
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

    pub(super) const fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
}

/// Listens at the first of these addresses that is free, on a helper thread.
pub(in super::super) async fn bind(address: HostAddress) -> Result<OnThread<Listener>> {
    let bound = threads::look_up(move || {
        let mut failed = None;
        for address in address.resolve()? {
            match Listener::bind(address, BACKLOG) {
                Ok(listener) => return Ok(OnThread::new(listener)),
                Err(error) => failed = Some(error),
            }
        }
        let none = || address.lookup(io::ErrorKind::NotFound.into()).into();
        Err(failed.map_or_else(none, verbs_channel::Error::from))
    });
    Ok(bound.await??)
}

/// How many requests of `rdma_cm` can wait: the same number as std's listeners of TCP.
const BACKLOG: u16 = 128;
