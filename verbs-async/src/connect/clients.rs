//! Clients of a listener over datagrams: their datagrams, handshakes and outcomes.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use log::Level;
use verbs_channel::__private::datagram_exchange::{Acceptor, Answer, Request, RequestId};
use verbs_channel::BufferPool;
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::datagrams::Datagram;
use verbs_channel::exchange::ExchangeError;

use super::callers::{Caller, Entrance, MAX_HANDSHAKES, Terms};
use super::datagrams::pool;
use super::deadline::{Boxed, Deadline, Timer};
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::{Error, Result};
use crate::task::sync::Mutex;
use crate::task::wake;
use crate::threads::Source;

/// The datagrams of a listener.
pub(super) struct Clients {
    shared: Arc<Shared>,
    receiving: Option<Boxed<Result<Datagram>>>,
    sending: Vec<Boxed<()>>,
}

/// Only polls of the listener use it, so no lock is waited for.
struct Shared {
    datagrams: AsyncDatagrams,
    pool: BufferPool,
    acceptor: Mutex<Acceptor>,
    // Each will have a buffer of the pool, or is lost.
    answers: Mutex<Vec<Answer>>,
}

impl Clients {
    pub(super) async fn new(datagrams: AsyncDatagrams) -> Result<Self> {
        let acceptor = Acceptor::new(datagrams.max_payload(), MAX_CLIENTS, Instant::now());
        let shared = Shared {
            pool: pool(&datagrams, BUFFERS).await?,
            acceptor: Mutex::new(acceptor),
            answers: Mutex::default(),
            datagrams,
        };
        Ok(Self {
            shared: Arc::new(shared),
            receiving: None,
            sending: Vec::new(),
        })
    }
}

impl Entrance for Clients {
    fn poll_messages(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let shared = &self.shared;
        // Pending after some, however many come: the task is woken, and the answers are sent first.
        loop {
            let receiving = self.receiving.get_or_insert_with(|| {
                let datagrams = shared.datagrams.clone();
                Box::pin(async move { datagrams.receive_from().await })
            });
            let Poll::Ready(received) = receiving.as_mut().poll(cx) else {
                return Ok(());
            };
            self.receiving = None;
            let datagram = received?;
            let mut acceptor = shared.acceptor.lock();
            let answer = acceptor.received(&datagram.from(), &datagram, Instant::now());
            shared.answers.lock().extend(answer);
        }
    }

    /// Takes a client, if there is a place for it.
    fn poll_caller(&mut self, has_place: bool, _cx: &mut Context<'_>) -> Poll<Result<Caller>> {
        let request = match has_place {
            true => self.shared.acceptor.lock().next_request(Instant::now()),
            false => None,
        };
        let Some(request) = request else {
            return Poll::Pending;
        };
        let (peer, shared) = (PeerAddr::Datagram(request.from()), Arc::clone(&self.shared));
        let connect = async move |terms: Terms, deadline: Arc<Deadline>| {
            shared.connect(&request, terms, &deadline).await
        };
        Poll::Ready(Ok(Caller::new(Some(peer), None, connect)))
    }

    /// Sends the answers, or loses those that find no buffer: a client that is there repeats its message.
    fn poll_sends(&mut self, cx: &mut Context<'_>) {
        let shared = &self.shared;
        let answers = mem::take(&mut *shared.answers.lock());
        for Answer { to, bytes, .. } in answers {
            let Ok(Some(block)) = shared.pool.take_with(&bytes) else {
                continue;
            };
            let datagrams = shared.datagrams.clone();
            self.sending.push(Box::pin(async move {
                if let Err(rejected) = datagrams.send_to(&to, block).await {
                    let error = rejected.error();
                    wake::log(Level::Debug, format_args!("cannot answer {to:?}: {error}"));
                }
            }));
        }
        self.sending
            .retain_mut(|send| send.as_mut().poll(cx).is_pending());
    }
}

impl Shared {
    /// Accepts the client, or refuses it, and waits until it is connected.
    async fn connect(
        &self,
        request: &Request,
        terms: Terms,
        deadline: &Deadline,
    ) -> Result<Met<AsyncChannel>> {
        let (id, peer) = (request.id(), PeerAddr::Datagram(request.from()));
        let options = &terms.options;
        let met = async {
            let (len, max) = (options.data().len(), request.max_private_data());
            if len > max {
                return Err(ExchangeError::PrivateDataBeyondMtu { len, max }.into());
            }
            let prepared = terms.prepare(Some(peer)).await?;
            let ours = prepared.endpoint();
            let source = Some(Source::Datagrams(self.datagrams.endpoint().qp_num()));
            let theirs = request.peer().endpoint;
            let channel = terms.group.handshake_with(prepared, theirs, source);
            Ok((ours, channel.await?))
        };
        let connected = async {
            let (ours, channel) = deadline.bound("answer", met).await?;
            let (data, now) = (options.data(), Instant::now());
            let answer = self.acceptor.lock().answer(id, &ours, data, now);
            self.answers.lock().push(answer?);
            self.outcome(id, deadline).await?;
            Ok::<_, Error>(channel)
        };
        let channel = connected.await.inspect_err(|error| {
            // Nothing is left of one that had an outcome.
            let refusal = self.acceptor.lock().refuse(id, error);
            self.answers.lock().extend(refusal);
        })?;
        let private_data = request.peer().private_data.clone();
        Ok(Met::new(channel, private_data, Some(peer)))
    }

    /// Waits until a client that was answered is connected.
    async fn outcome(&self, id: RequestId, deadline: &Deadline) -> Result<()> {
        let mut timer = Timer::default();
        let end = deadline.begun.checked_add(deadline.timeout);
        poll_fn(|cx| {
            loop {
                let mut acceptor = self.acceptor.lock();
                let outcome = match deadline.left().is_zero() {
                    false => acceptor.outcome(id, Instant::now()),
                    true => Some(acceptor.abandon(id)),
                };
                if let Some(outcome) = outcome {
                    return Poll::Ready(outcome.map_err(Into::into));
                }
                let due = acceptor.due(id).into_iter().chain(end).min();
                drop(acceptor);
                ready!(timer.poll(due, &deadline.events, cx))?;
            }
        })
        .await
    }
}

/// Datagrams in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 64;

/// How many clients can wait at once, or be in progress.
const MAX_CLIENTS: usize = 2 * MAX_HANDSHAKES;
