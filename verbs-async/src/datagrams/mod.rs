//! Datagrams: one endpoint for any number of peers, awaited.
#![expect(
    unsafe_code,
    reason = "takes a clone of the completion queue of an engine"
)]

#[cfg(feature = "rdmacm")]
mod memberships;
mod state;
#[cfg(test)]
#[cfg(feature = "rdmacm")]
mod tests;
mod wait_queue;

use std::fmt;
use std::future::{self, Future};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use verbs_channel::__private::DatagramEngine;
#[expect(unused_imports, reason = "named in documentation")]
use verbs_channel::RejectReason;
use verbs_channel::datagrams::{Datagram, DatagramFailure, DatagramsConfig};
use verbs_channel::error::CloseError;
use verbs_channel::verbs_core::__private::Process;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::error::Rejected;
use verbs_channel::verbs_core::path::{AddressHandle, AhAttr, DatagramEndpoint};
use verbs_channel::{DownReason, OwnedBuffer};

use crate::device_events::DeviceWatcher;
use crate::error::{Error, Result};
use crate::events::CqEvents;
use crate::task::coop;
use crate::task::deferred::Lock;
use crate::task::sync::Mutex;
use crate::threads::{self, Source};
use state::{Awaited, End, Shared, State};

/// A datagram endpoint whose operations are awaited: see
/// [`Datagrams`](verbs_channel::Datagrams) for what a datagram is, and how buffers are used.
///
/// Cloning is cheap and shares the endpoint. Any number of tasks can send and receive at once.
/// Polling any of their futures polls the completion queue for all of them. An event wakes only
/// tasks that can continue, those that have waited longest first. If one does not come within some milliseconds, such
/// as a future that is kept and not polled, the next is woken, too. While no task waits, nothing is
/// received beyond the capacity of the posted receives, and no sent buffer is released.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_async::verbs_channel::verbs_core::Context;
/// use verbs_async::verbs_channel::{BufferPool, Datagrams};
/// use verbs_async::{AsyncDatagrams, CqEvents};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let events = CqEvents::create_thread(pd.context())?; // or create_tokio, create_async_io
/// let left = AsyncDatagrams::create(Datagrams::builder(&pd), &events)?;
/// let right = AsyncDatagrams::create(Datagrams::builder(&pd), &events)?;
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
/// It goes down when its device, completion queue or queue pair [fails](crate#when-the-device-fails). When its address
/// moves in the port's table of GIDs, it looks up the index again before the next datagram is sent.
///
/// # Channels over datagrams
///
/// [`AsyncGroup::connect`] with `Peer::Datagrams` and [`AsyncGroup::listen`] connect channels over such an endpoint,
/// without TCP. The endpoint cannot be used for anything else meanwhile.
///
/// [`AsyncGroup::connect`]: crate::AsyncGroup::connect
/// [`AsyncGroup::listen`]: crate::AsyncGroup::listen
#[derive(Clone)]
pub struct AsyncDatagrams {
    shared: Arc<Shared>,
}

impl AsyncDatagrams {
    /// Creates an endpoint whose completions are announced by `events`.
    ///
    /// # Errors
    ///
    /// Those of [`DatagramsConfig::build`].
    pub fn create(config: impl Into<DatagramsConfig>, events: &CqEvents) -> Result<Self> {
        let config = config.into();
        let engine =
            DatagramEngine::create(&config, Some(events.channel())).map_err(Error::Channel)?;
        // SAFETY: the clone is only armed and compared, in `Subscription`.
        let cq = unsafe { engine.cq() }.clone();
        let subscription = events.subscribe(&cq)?;
        let device = DeviceWatcher::of(events)?;
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            subscription.listen(Weak::<Shared>::clone(shared));
            let end = End::new();
            Shared {
                process: Process::current(),
                pool: engine.receive_pool().clone(),
                pd: config.pd().clone(),
                endpoint: engine.endpoint(),
                port_num: engine.port_num(),
                events: events.clone(),
                max_payload: engine.max_payload(),
                state: Lock::new(State::new(
                    subscription,
                    engine,
                    Arc::clone(&end),
                    Weak::clone(shared),
                )),
                end,
                changes: Mutex::new(()),
                device,
            }
        });
        let listener = Weak::<Shared>::clone(&Arc::downgrade(&shared));
        shared.device.add(listener, events.downgrade());
        Ok(Self { shared })
    }

    /// Sends a datagram: waits for room in the send queue, and posts it.
    ///
    /// When it has left, its buffer is dropped. A helper thread creates the address handle: on RoCE the
    /// kernel takes about a second if no host answers.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the datagram was not posted, and its buffer is
    /// dropped with the future: a block is free in its pool again.
    ///
    /// # Errors
    ///
    /// Those of [`Datagrams::send_to`](verbs_channel::Datagrams::send_to) except for backpressure, with
    /// the buffer; and [`Error::Thread`] if no helper thread can be started.
    pub async fn send_to(
        &self,
        peer: &DatagramEndpoint,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, Error>> {
        let mut given = Some(buffer.into());
        loop {
            let post = |state: &mut State| state.post(peer, &mut given);
            let error = match self.wait(Awaited::Room, post).await {
                Sent::Posted => return Ok(()),
                Sent::Rejected(rejected) => return Err(rejected),
                Sent::Failed(error) => error,
                Sent::NeedsHandle(path) => match self.make_handle(peer, path).await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            return Err(Rejected::new(error, given.take().unwrap_or_default()));
        }
    }

    /// Makes the address handle to a peer's port.
    async fn make_handle(
        &self,
        peer: &DatagramEndpoint,
        (pd, attr): (ProtectionDomain, AhAttr),
    ) -> Result<()> {
        // The addresses of those who make it send may be forged: no host answers then.
        let source = Some(Source::Datagrams(self.shared.endpoint.qp_num()));
        let handle = threads::run_for(source, move || pd.create_ah(&attr)).await?;
        let handle = handle.map_err(|error| Error::Channel(error.into()))?;
        self.add_handle(peer, handle);
        Ok(())
    }

    /// Keeps the address handle to a peer's port.
    pub(crate) fn add_handle(&self, peer: &DatagramEndpoint, handle: AddressHandle) {
        let replaced = self.shared.state.lock().engine.add_handle(peer, handle);
        self.retire(replaced.into_iter().flatten());
    }

    /// Has a helper thread destroy the handles that no datagram in flight needs. The others stay until the next
    /// call: otherwise their last clones would be dropped under the lock.
    fn retire(&self, handles: impl IntoIterator<Item = Arc<AddressHandle>>) {
        let mut state = self.shared.state.lock();
        state.retired.extend(handles);
        let is_unused = |handle: &mut Arc<AddressHandle>| Arc::strong_count(handle) == 1;
        let unused: Vec<_> = state.retired.extract_if(.., is_unused).collect();
        drop(state);
        if !unused.is_empty() {
            threads::detach(move || drop(unused));
        }
    }

    /// An error if it has failed or was closed.
    pub(crate) fn check_is_up(&self) -> Result<()> {
        match self.down_reason() {
            Some(reason) => Err(verbs_channel::RejectReason::Down(reason).into()),
            None => Ok(()),
        }
    }

    pub(crate) fn port_num(&self) -> u8 {
        self.shared.port_num
    }

    pub(crate) fn events(&self) -> &CqEvents {
        &self.shared.events
    }

    /// Waits for a datagram.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no datagram is lost.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Down`]: the endpoint has failed or was closed, and all datagrams that arrived
    /// before were taken. [`RejectReason::NoCapacity`]: `max_recv_wr` is 0, so none can arrive.
    pub async fn receive_from(&self) -> Result<Datagram> {
        let take = |State { engine, .. }: &mut State| match engine.received() {
            Some(datagram) => Some(Ok(datagram)),
            None => engine
                .check_receives()
                .err()
                .map(|reason| Err(reason.into())),
        };
        // First, so that all blocks that are free are posted before this waits for a datagram.
        let (mut refill, mut taken) = (
            pin!(self.refill()),
            pin!(self.wait(Awaited::Datagram, take)),
        );
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
            let mut state = self.shared.state.lock();
            let rejected = state.engine.receive_into(block);
            drop(state);
            if rejected.is_some() {
                // Kept until this has returned: the pool would give it here again.
                return;
            }
        }
    }

    /// The protection domain in which buffers must be registered.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// The data that a peer needs to send to this endpoint.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.shared.endpoint
    }

    /// The maximum number of bytes in a datagram: the MTU of its port.
    #[must_use]
    pub fn max_payload(&self) -> u32 {
        self.shared.max_payload
    }

    /// Waits until every datagram has left and its buffer is released. After a failure nothing is in
    /// flight, so this returns.
    pub async fn flush(&self) {
        let is_done = |state: &mut State| (state.available(Awaited::Flushed) > 0).then_some(());
        self.wait(Awaited::Flushed, is_done).await;
    }

    /// The oldest failure of a posted datagram that was not taken; `None` if there is none: see
    /// [`Datagrams::take_failed`](verbs_channel::Datagrams::take_failed). It polls, and does not wait.
    #[must_use]
    pub fn take_failed(&self) -> Option<DatagramFailure> {
        let mut state = self.shared.state.lock();
        state.drive();
        state.engine.take_failed()
    }

    /// Why it has failed; `None` while it works.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        self.shared.state.lock().engine.down_reason()
    }

    /// Forgets the address handle to a peer's port: the next datagram to it resolves the address
    /// again. A helper thread destroys the handle.
    pub fn forget(&self, peer: &DatagramEndpoint) {
        let forgotten = self.shared.state.lock().engine.forget(peer);
        self.retire(forgotten);
    }

    /// Takes the endpoint down, for all clones, and waits until a helper thread has destroyed the queue pair.
    /// Operations that wait end: see [`receive_from`](Self::receive_from). It does not wait for datagrams that
    /// have not left.
    ///
    /// When this returns `Ok`, the device is done with all memory of the endpoint, whether this call, another one
    /// or a failure took it down.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the endpoint is closed.
    ///
    /// # Errors
    ///
    /// [`CloseError::Stuck`]: the driver failed to destroy the queue pair, and its error is logged. **The device may still access this memory**, and the buffers in flight have been leaked.
    #[doc(alias = "ibv_destroy_qp")]
    pub async fn close(&self) -> Result<(), CloseError> {
        self.shared.state.lock().engine.fail(DownReason::Closed);
        self.shared.end.wait().await
    }

    /// Waits until `ready` returns something. The task sleeps in the line of those that wait for the
    /// same.
    fn wait<T>(
        &self,
        what: Awaited,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> impl Future<Output = T> {
        let mut waiter = Waiter {
            shared: Arc::clone(&self.shared),
            what,
            key: None,
        };
        future::poll_fn(move |cx| {
            let must_yield = coop::must_yield(cx);
            coop::poll(must_yield, cx, || waiter.poll(cx, &mut ready))
        })
    }
}

/// State of a datagram.
enum Sent {
    Posted,
    Rejected(Rejected<OwnedBuffer, Error>),
    /// It was not given to the engine: first, an address handle is to be made from this.
    NeedsHandle((ProtectionDomain, AhAttr)),
    /// It was not given to the engine: there is no path, or the endpoint is down.
    Failed(Error),
}

impl State {
    /// Posts a datagram; `None` while there is no room.
    fn post(&mut self, peer: &DatagramEndpoint, given: &mut Option<OwnedBuffer>) -> Option<Sent> {
        match self.engine.path_to(peer) {
            Ok(None) => {}
            Ok(Some(path)) => return Some(Sent::NeedsHandle(path)),
            Err(error) => return Some(Sent::Failed(error.into())),
        }
        let Err(rejected) = self.engine.send_to(peer, given.take()?) else {
            return Some(Sent::Posted);
        };
        if rejected.error().is_backpressure() {
            *given = Some(rejected.into_given());
            return None;
        }
        let (error, buffer) = rejected.into_parts();
        Some(Sent::Rejected(Rejected::new(error.into(), buffer)))
    }
}

/// A future that waits. When it is dropped, what it was woken for goes to the next in its line.
struct Waiter {
    shared: Arc<Shared>,
    what: Awaited,
    key: Option<u64>,
}

impl Waiter {
    fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        ready: &mut impl FnMut(&mut State) -> Option<T>,
    ) -> Poll<T> {
        self.shared.state.poll(cx, |state, waker| {
            let mut found = ready(state);
            if found.is_none() {
                state.drive();
                found = ready(state);
            }
            if let Some(found) = found {
                let own = state.leave(self.what, self.key.take());
                return (Poll::Ready(found), [Some(waker), own]);
            }
            let replaced = state.sleep(self.what, &mut self.key, waker);
            // Only now: what is found in the queue after it was armed wakes this task, too.
            state.arm();
            (Poll::Pending, [replaced, None])
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.key.is_some() && !self.shared.is_in_child() {
            (self.shared.state).end_wait(|state| state.leave(self.what, self.key.take()));
        }
    }
}

impl fmt::Debug for AsyncDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDatagrams")
            .field("endpoint", &self.shared.endpoint)
            .finish_non_exhaustive()
    }
}
