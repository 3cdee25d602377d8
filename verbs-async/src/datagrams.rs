//! Datagrams: one endpoint for any number of peers, awaited.
#![expect(unsafe_code, reason = "polls the completion queue of an engine")]

use std::collections::HashMap;
use std::fmt;
use std::future::{self, Future};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use verbs_channel::datagrams::DatagramEngine;
use verbs_channel::verbs_core::{DatagramEndpoint, PollSlot, Rejected};
use verbs_channel::{
    BufferPool, Datagram, DatagramsBuilder, DownReason, OwnedBuffer, RejectReason,
};

use crate::blocking;
use crate::coop;
use crate::cq::{AsyncCq, CqPollState};
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::sync::{Mutex, MutexGuard};
use crate::wake;

/// A datagram endpoint whose operations are awaited: see
/// [`Datagrams`](verbs_channel::Datagrams) for what a datagram is, and how buffers are used.
///
/// Cloning is cheap and shares the endpoint. Any number of tasks can send and receive at once. Each
/// future that is polled polls the completion queue for all of them. While none is polled, nothing
/// is received beyond what the posted receives hold, and no buffer that was sent is released.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_async::AsyncDatagrams;
/// use verbs_async::verbs_channel::verbs_core::Context;
/// use verbs_async::verbs_channel::{BufferPool, Datagrams};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// // or create_tokio, create_async_io
/// let left = AsyncDatagrams::create_thread(&Datagrams::builder(&pd))?;
/// let right = AsyncDatagrams::create_thread(&Datagrams::builder(&pd))?;
///
/// let pool = BufferPool::new(&pd, 1024, 16)?;
/// let hello = pool.take_with(b"hello")?.ok_or("the pool is empty")?;
/// left.send_to(&right.endpoint(), hello).await?;
/// let datagram = right.receive_from().await?;
/// println!("{} bytes from {:?}", datagram.len(), datagram.from());
/// # Ok(())
/// # }
/// ```
///
/// # Channels over datagrams
///
/// The protocol that connects channels over datagrams,
/// [`datagram_exchange`](verbs_channel::datagram_exchange), has no I/O and no clock. So it runs over such an
/// endpoint with the timers of any runtime; the endpoint is not used for anything else meanwhile. The
/// other side can be a blocking [`DatagramListener`](verbs_channel::DatagramListener). For a client in tokio:
///
/// ```no_run
/// use std::time::{Duration, Instant};
/// use verbs_async::verbs_channel::datagram_exchange::{Connector, Step};
/// use verbs_async::verbs_channel::verbs_core::DatagramEndpoint;
/// use verbs_async::verbs_channel::BufferPool;
/// use verbs_async::{AsyncChannel, AsyncDatagrams, AsyncGroup};
///
/// # #[cfg(feature = "tokio")]
/// async fn connect(
///     group: &AsyncGroup,
///     datagrams: &AsyncDatagrams,
///     pool: &BufferPool,
///     server: &DatagramEndpoint,
/// ) -> Result<AsyncChannel, Box<dyn std::error::Error>> {
///     let prepared = group.prepare()?;
///     let (ours, max, now) = (prepared.endpoint(), datagrams.max_payload(), Instant::now());
///     let timeout = Duration::from_secs(5);
///     let mut connector = Connector::new(server, &ours, b"hello", max, now, timeout)?;
///     let (mut prepared, mut channel) = (Some(prepared), None);
///     loop {
///         match connector.step(Instant::now())? {
///             Step::Send(bytes) => {
///                 if let Some(block) = pool.take_with(bytes)? {
///                     datagrams.send_to(server, block).await?;
///                 }
///             }
///             Step::Wait(until) => {
///                 let received = tokio::time::timeout_at(until.into(), datagrams.receive_from());
///                 if let Ok(datagram) = received.await {
///                     connector.received(&datagram?);
///                 }
///             }
///             Step::Done(peer) => match prepared.take() {
///                 Some(prepared) => {
///                     channel = Some(group.handshake(prepared, &peer.endpoint).await?);
///                     connector.ready();
///                 }
///                 None => break,
///             },
///         }
///     }
///     // With the last datagram the server need not wait any longer.
///     datagrams.flush().await;
///     channel.ok_or_else(|| "there was no handshake".into())
/// }
/// ```
#[derive(Clone)]
pub struct AsyncDatagrams {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    cq: AsyncCq,
    /// Of the receives' blocks.
    pool: BufferPool,
    endpoint: DatagramEndpoint,
    max_payload: u32,
}

struct State {
    engine: DatagramEngine,
    /// Those that wait. Each is woken whenever another one has polled something.
    waiters: HashMap<u64, Waker>,
    next: u64,
}

/// Completions that are polled at once.
const POLLS: usize = 16;

impl AsyncDatagrams {
    /// Creates an endpoint whose completions are announced by `events`.
    ///
    /// # Errors
    ///
    /// Those of [`DatagramsBuilder::build`] and [`AsyncCq::new`].
    pub fn create(builder: &DatagramsBuilder, events: &CqEvents) -> Result<Self> {
        let engine = builder
            .engine(Some(events.channel()))
            .map_err(Error::Channel)?;
        // SAFETY: it is used for one `AsyncCq`, which is polled in this file only. What that finds is
        // dispatched.
        let cq = AsyncCq::new(unsafe { engine.cq() }.clone(), events)?;
        let shared = Shared {
            pool: engine.receive_pool().clone(),
            endpoint: engine.endpoint(),
            max_payload: engine.max_payload(),
            state: Mutex::new(State {
                engine,
                waiters: HashMap::new(),
                next: 0,
            }),
            cq,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Needs the feature `tokio`. Creates an endpoint with a notifier of the current tokio runtime.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create) and [`CqEvents::create_tokio`].
    #[cfg(feature = "tokio")]
    pub fn create_tokio(builder: &DatagramsBuilder) -> Result<Self> {
        Self::create(builder, &CqEvents::create_tokio(builder.pd().context())?)
    }

    /// Needs the feature `async-io`. Creates an endpoint with a notifier of async-io, for smol and any
    /// other executor.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create) and [`CqEvents::create_async_io`].
    #[cfg(feature = "async-io")]
    pub fn create_async_io(builder: &DatagramsBuilder) -> Result<Self> {
        Self::create(builder, &CqEvents::create_async_io(builder.pd().context())?)
    }

    /// Creates an endpoint with a thread of this crate, for any executor.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create) and [`CqEvents::create_thread`].
    pub fn create_thread(builder: &DatagramsBuilder) -> Result<Self> {
        Self::create(builder, &CqEvents::create_thread(builder.pd().context())?)
    }

    /// The data that a peer needs to send to it.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.shared.endpoint
    }

    /// The most bytes in a datagram: the MTU of its port.
    #[must_use]
    pub fn max_payload(&self) -> u32 {
        self.shared.max_payload
    }

    /// Sends a datagram: waits for room in the send queue, and posts it.
    ///
    /// When it has left, its buffer is dropped. An address handle is made on a helper thread: on RoCE
    /// the kernel takes about a second if no host answers.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the datagram was not posted, and its buffer is
    /// dropped with the future: a block is free in its pool again.
    ///
    /// # Errors
    ///
    /// Those of [`Datagrams::send_to`](verbs_channel::Datagrams::send_to) except for backpressure, with
    /// the buffer; and [`Error::Io`] if no helper thread can be started.
    pub async fn send_to(
        &self,
        peer: &DatagramEndpoint,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, Error>> {
        let buffer = buffer.into();
        if let Err(error) = self.make_handle(peer).await {
            return Err(Rejected::new(error, buffer));
        }
        let mut buffer = Some(buffer);
        let post = |engine: &mut DatagramEngine| {
            let rejected = engine.send_to(peer, buffer.take()?).err();
            match rejected {
                None => Some(Ok(())),
                Some(rejected) if rejected.error().is_backpressure() => {
                    buffer = Some(rejected.into_given());
                    None
                }
                Some(rejected) => {
                    let (error, given) = rejected.into_parts();
                    Some(Err(Rejected::new(Error::from(error), given)))
                }
            }
        };
        self.wait(post).await
    }

    /// Makes the address handle to a peer's port, unless there is one.
    async fn make_handle(&self, peer: &DatagramEndpoint) -> Result<()> {
        let path = self.shared.state.lock().engine.path_to(peer);
        let Some((pd, attr)) = path.map_err(Error::from)? else {
            return Ok(());
        };
        let handle = blocking::run(move || pd.create_ah(&attr)).await?;
        let handle = handle.map_err(|error| Error::Channel(error.into()))?;
        let replaced = self.shared.state.lock().engine.add_handle(peer, handle);
        drop(replaced);
        Ok(())
    }

    /// Waits for a datagram.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no datagram is lost.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`]: the endpoint has failed or was closed, and all that had come before was
    /// taken.
    pub async fn receive_from(&self) -> Result<Datagram> {
        let take = |engine: &mut DatagramEngine| match (engine.received(), engine.down_reason()) {
            (Some(datagram), _) => Some(Ok(datagram)),
            (None, Some(reason)) => Some(Err(RejectReason::Down(reason).into())),
            (None, None) => None,
        };
        // First, so that all blocks that are free are posted before this waits for a datagram.
        let (mut refill, mut taken) = (pin!(self.refill()), pin!(self.wait(take)));
        let mut is_refilled = false;
        future::poll_fn(|cx| {
            is_refilled = is_refilled || refill.as_mut().poll(cx).is_ready();
            taken.as_mut().poll(cx)
        })
        .await
    }

    /// Posts receives into the blocks that come back, which no completion announces. It ends when the
    /// endpoint is down.
    async fn refill(&self) {
        loop {
            let block = self.shared.pool.take_when_free().await;
            let rejected = {
                let mut state = self.shared.state.lock();
                let rejected = state.engine.receive_into(block);
                settle(state, None);
                rejected
            };
            if rejected.is_some() {
                // Kept until this has returned: the pool would give it here again.
                return;
            }
        }
    }

    /// Waits until every datagram has left. After a failure nothing is in flight, so this returns.
    pub async fn flush(&self) {
        let is_done = |engine: &mut DatagramEngine| (engine.sends_in_flight() == 0).then_some(());
        self.wait(is_done).await;
    }

    /// Why it has failed; `None` while it works.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        self.shared.state.lock().engine.down_reason()
    }

    /// Forgets the address handle to a peer's port: the next datagram to it resolves the address
    /// again.
    pub fn forget(&self, peer: &DatagramEndpoint) {
        self.shared.state.lock().engine.forget(peer);
    }

    /// Destroys the queue pair, for all clones. Operations that wait end: see
    /// [`receive_from`](Self::receive_from). It does not wait for datagrams that have not left.
    ///
    /// # Errors
    ///
    /// The errno. The buffers in flight are leaked then.
    pub fn close(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        let closed = state.engine.close();
        settle(state, None);
        closed.map_err(Error::from)
    }

    /// Waits until `ready` returns something. Whoever waits polls the completion queue.
    fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut DatagramEngine) -> Option<T>,
    ) -> impl Future<Output = T> {
        let mut waiter = Waiter {
            shared: Arc::clone(&self.shared),
            key: None,
        };
        let mut polling = CqPollState::default();
        future::poll_fn(move |cx| {
            if coop::must_yield(cx) {
                return Poll::Pending;
            }
            let polled = waiter.poll(cx, &mut polling, &mut ready);
            if polled.is_ready() {
                coop::count_ready(cx);
            }
            polled
        })
    }
}

/// A future that waits; it is forgotten when this is dropped.
struct Waiter {
    shared: Arc<Shared>,
    key: Option<u64>,
}

impl Waiter {
    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        polling: &mut CqPollState,
        ready: &mut impl FnMut(&mut DatagramEngine) -> Option<T>,
    ) -> Poll<T> {
        let mut slots = [const { PollSlot::new() }; POLLS];
        loop {
            // A waker is cloned and dropped without the lock: it is foreign code.
            let waker = cx.waker().clone();
            let mut state = self.shared.state.lock();
            let found = ready(&mut state.engine);
            // Registered before the queue is polled: what another task polls meanwhile wakes this one.
            let spare = match &found {
                Some(_) => Some(waker),
                None => state.register(&mut self.key, waker),
            };
            settle(state, self.key);
            wake::drop_guarded(spare);
            if let Some(found) = found {
                return Poll::Ready(found);
            }
            let polled = self.shared.cq.poll_completions(cx, polling, &mut slots);
            let count = match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => {
                    let mut state = self.shared.state.lock();
                    state.engine.fail(reason(&error));
                    settle_all(state, self.key);
                    continue;
                }
            };
            let filled = slots.get(..count).unwrap_or_default();
            let mut state = self.shared.state.lock();
            // SAFETY: they were polled above, from this engine's queue.
            unsafe {
                let engine = &mut state.engine;
                engine.dispatch(PollSlot::completions(filled).as_slice());
            }
            settle_all(state, self.key);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.shared.state.lock().waiters.remove(&key);
            wake::drop_guarded(waker);
        }
    }
}

impl State {
    /// Keeps the waker of a future. Returns the one that it replaces.
    fn register(&mut self, key: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let key = *key.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.waiters.insert(key, waker)
    }
}

/// Unlocks, then releases what has left, and logs what was leaked. If any has left, or the endpoint is
/// down, all but one are woken.
fn settle(mut state: MutexGuard<'_, State>, but: Option<u64>) {
    let mut sent = Vec::new();
    state.engine.take_sent(&mut sent);
    if !sent.is_empty() || state.engine.down_reason().is_some() {
        return finish(state, sent, but);
    }
    drop(state);
}

/// As [`settle`], and all but one are woken.
fn settle_all(mut state: MutexGuard<'_, State>, but: Option<u64>) {
    let mut sent = Vec::new();
    state.engine.take_sent(&mut sent);
    finish(state, sent, but);
}

fn finish(mut state: MutexGuard<'_, State>, sent: Vec<OwnedBuffer>, but: Option<u64>) {
    let leak = state.engine.take_leak();
    let (own, others): (Vec<_>, Vec<_>) = state
        .waiters
        .drain()
        .partition(|(key, _)| Some(*key) == but);
    state.waiters.extend(own);
    drop(state);
    wake::wake_all(others.into_iter().map(|(_, waker)| waker));
    drop(sent);
    if let Some(leak) = leak {
        wake::log_error(format_args!("{leak}"));
    }
}

/// Why an endpoint is down whose queue cannot be polled.
fn reason(error: &Error) -> DownReason {
    match error {
        Error::Poll(error) => DownReason::Poll(*error),
        Error::Down(reason) => *reason,
        _ => DownReason::NotifierFailed,
    }
}

impl fmt::Debug for AsyncDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDatagrams")
            .field("endpoint", &self.shared.endpoint)
            .finish_non_exhaustive()
    }
}
