//! Clients of a listener over datagrams: their datagrams, handshakes and outcomes.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use log::Level;
use verbs_channel::__private::datagram_exchange::{Acceptor, Answer, Request, RequestId};
use verbs_channel::BufferPool;
use verbs_channel::connect::{Met, PeerAddr};
use verbs_channel::datagrams::Datagram;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::QueuePairEndpoint;

use super::callers::{Boxed, HandshakeResult, MAX_HANDSHAKES, Terms};
use super::datagrams::pool;
use super::deadline::{Deadline, FirstDue};
use crate::channel::AsyncChannel;
use crate::datagrams::AsyncDatagrams;
use crate::error::Result;
use crate::events::CqEvents;
use crate::task::wake;
use crate::threads::Source;

pub(super) struct Clients {
    datagrams: AsyncDatagrams,
    events: CqEvents,
    pool: BufferPool,
    acceptor: Acceptor,
    receiving: Option<Boxed<Result<Datagram>>>,
    // Each has a buffer of the pool: no more than those.
    sending: Vec<Boxed<()>>,
    handshakes: Vec<Boxed<Shaken>>,
    answered: Vec<Answered>,
    // For the first of those that were answered.
    timer: FirstDue,
}

/// A handshake that has completed or failed.
struct Shaken {
    request: Request,
    deadline: Deadline,
    met: Result<(QueuePairEndpoint, AsyncChannel)>,
}

/// A client that was sent this side's endpoint.
struct Answered {
    request: Request,
    deadline: Deadline,
    channel: AsyncChannel,
}

impl Clients {
    pub(super) async fn new(datagrams: AsyncDatagrams, events: &CqEvents) -> Result<Self> {
        Ok(Self {
            pool: pool(&datagrams, BUFFERS).await?,
            events: events.clone(),
            acceptor: Acceptor::new(datagrams.max_payload(), MAX_CLIENTS, Instant::now()),
            receiving: None,
            sending: Vec::new(),
            handshakes: Vec::new(),
            answered: Vec::new(),
            timer: FirstDue::default(),
            datagrams,
        })
    }

    pub(super) fn poll_accept(
        &mut self,
        terms: &Terms,
        max_handshakes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<HandshakeResult>> {
        loop {
            let has_received = self.poll_datagrams(cx)?;
            self.poll_sends(cx);
            self.begin_handshakes(max_handshakes.saturating_sub(self.in_progress()), terms);
            let arrival = match self.poll_handshakes(terms.options.data(), cx) {
                None => self.next_outcome(),
                arrival => arrival,
            };
            // The answer that was sent just now has to be polled, too.
            self.poll_sends(cx);
            if let Some(arrival) = arrival {
                return Poll::Ready(Ok(arrival));
            }
            if !has_received {
                ready!(self.poll_timer(cx))?;
            }
        }
    }

    fn in_progress(&self) -> usize {
        self.handshakes.len() + self.answered.len()
    }

    /// Answers the datagrams that have arrived, up to a number. Returns whether there may be more.
    fn poll_datagrams(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        for _ in 0..AT_ONCE {
            let receiving = self.receiving.get_or_insert_with(|| {
                let datagrams = self.datagrams.clone();
                Box::pin(async move { datagrams.receive_from().await })
            });
            let Poll::Ready(received) = receiving.as_mut().poll(cx) else {
                return Ok(false);
            };
            self.receiving = None;
            let datagram = received?;
            let (from, now) = (datagram.from(), Instant::now());
            let answer = self.acceptor.received(&from, &datagram, now);
            self.send(answer);
        }
        Ok(true)
    }

    /// Sends a datagram, or loses it if there is no buffer: a client that is there repeats its message.
    fn send(&mut self, answer: Option<Answer>) {
        let Some(Answer { to, bytes, .. }) = answer else {
            return;
        };
        let Ok(Some(block)) = self.pool.take_with(&bytes) else {
            return;
        };
        let datagrams = self.datagrams.clone();
        self.sending.push(Box::pin(async move {
            if let Err(rejected) = datagrams.send_to(&to, block).await {
                let error = rejected.error();
                wake::log(Level::Debug, format_args!("cannot answer {to:?}: {error}"));
            }
        }));
    }

    fn poll_sends(&mut self, cx: &mut Context<'_>) {
        self.sending
            .retain_mut(|send| send.as_mut().poll(cx).is_pending());
    }

    fn begin_handshakes(&mut self, room: usize, terms: &Terms) {
        for _ in 0..room {
            let Some(request) = self.acceptor.next_request(Instant::now()) else {
                return;
            };
            let timeout = terms.options.timeout();
            let deadline = Deadline::after(timeout, &self.events);
            let terms = terms.clone();
            let datagrams = self.datagrams.endpoint().qp_num();
            self.handshakes.push(Box::pin(async move {
                let (len, max) = (terms.options.data().len(), request.max_private_data());
                let met = async {
                    if len > max {
                        let error = ExchangeError::PrivateDataBeyondMtu { len, max };
                        return Err(error.into());
                    }
                    let peer = PeerAddr::Datagram(request.from());
                    let prepared = terms.prepare(Some(peer)).await?;
                    let ours = prepared.endpoint();
                    let theirs = request.peer().endpoint;
                    let source = Some(Source::Datagrams(datagrams));
                    let shaken = terms
                        .group
                        .handshake_watched(prepared, theirs, None, source);
                    Ok((ours, shaken.await?))
                };
                let met = deadline.bound("answer", met).await;
                Shaken {
                    request,
                    deadline,
                    met,
                }
            }));
        }
    }

    /// Answers the clients whose handshake has completed. Returns the first whose handshake has failed.
    fn poll_handshakes(&mut self, data: &[u8], cx: &mut Context<'_>) -> Option<HandshakeResult> {
        let mut at = 0;
        while let Some(handshake) = self.handshakes.get_mut(at) {
            let Poll::Ready(shaken) = handshake.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            drop(self.handshakes.swap_remove(at));
            if let Some(arrival) = self.answer(shaken, data) {
                return Some(arrival);
            }
        }
        None
    }

    /// Accepts or refuses a client. If it does not connect, returns why.
    fn answer(&mut self, shaken: Shaken, data: &[u8]) -> Option<HandshakeResult> {
        let Shaken {
            request,
            deadline,
            met,
        } = shaken;
        let (id, peer) = (request.id(), Some(PeerAddr::Datagram(request.from())));
        let answered = met.and_then(|(ours, channel)| {
            let answer = self.acceptor.answer(id, &ours, data, Instant::now());
            Ok((answer?, channel))
        });
        match answered {
            Ok((answer, channel)) => {
                self.send(Some(answer));
                self.answered.push(Answered {
                    request,
                    deadline,
                    channel,
                });
                None
            }
            Err(error) => {
                let refusal = self.acceptor.refuse(id, &error);
                self.send(refusal);
                let outcome = Err(error);
                Some(HandshakeResult { peer, outcome })
            }
        }
    }

    /// The first client that was answered and has an outcome.
    fn next_outcome(&mut self) -> Option<HandshakeResult> {
        let now = Instant::now();
        let acceptor = &mut self.acceptor;
        let (at, outcome) = (0..).zip(&self.answered).find_map(|(at, client)| {
            let id: RequestId = client.request.id();
            let outcome = match client.deadline.left().is_zero() {
                false => acceptor.outcome(id, now)?,
                true => acceptor.abandon(id),
            };
            Some((at, outcome))
        })?;
        let Answered {
            request, channel, ..
        } = self.answered.swap_remove(at);
        let peer = Some(PeerAddr::Datagram(request.from()));
        let data = || request.peer().private_data.clone();
        Some(HandshakeResult {
            peer,
            outcome: match outcome {
                Ok(()) => Ok(Met::new(channel, data(), peer)),
                Err(error) => Err(error.into()),
            },
        })
    }

    /// Waits until the first client that was answered is due.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (acceptor, now) = (&self.acceptor, Instant::now());
        let due = self.answered.iter().filter_map(|client| {
            let end = now.checked_add(client.deadline.left());
            let due = acceptor.due(client.request.id());
            end.into_iter().chain(due).min()
        });
        self.timer.poll(due.min(), &self.events, cx)
    }
}

/// Datagrams in flight at once. One that finds no buffer is lost, as if by the network.
const BUFFERS: usize = 64;

/// How many datagrams are taken before anything else is done.
const AT_ONCE: usize = 64;

/// How many clients can wait at once, or be in progress.
const MAX_CLIENTS: usize = 2 * MAX_HANDSHAKES;
