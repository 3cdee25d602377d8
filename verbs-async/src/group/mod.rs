//! Groups: async channels that share a completion queue.
#![expect(
    unsafe_code,
    reason = "takes a clone of the completion queue of an engine"
)]

mod shared_messages;

pub use shared_messages::SharedMessages;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

#[expect(unused_imports, reason = "named in documentation")]
use verbs_channel::ChannelGroup;
use verbs_channel::engine::{ConnectedMember, Counters, Engine};
use verbs_channel::error::{CloseError, Rejected};
use verbs_channel::group::MemberFactory;
use verbs_channel::verbs_core::{ProtectionDomain, QueuePairEndpoint};
use verbs_channel::{ChannelConfig, DownReason, PreparedChannel};

use crate::channel::{AsyncChannel, AsyncTransfer};
use crate::device_events::DeviceWatcher;
use crate::driver::Driver;
use crate::engine::SharedEngine;
use crate::engine::destroying::Destroyed;
use crate::error::Result;
use crate::events::CqEvents;
use crate::events::watcher::DeviceListener as _;
use crate::threads::on_thread::OnThread;
use crate::threads::{self, Source};

/// Async channels that share a completion queue, a completion channel and a notifier.
///
/// Cloning is cheap and shares the group. It lives as long as the last clone or the last channel.
/// For a single channel, make a group of one.
///
/// It watches the events of its device: see [when the device fails](crate#when-the-device-fails).
#[derive(Clone)]
pub struct AsyncGroup {
    shared: Arc<SharedEngine>,
}

impl AsyncGroup {
    /// Creates a group with room for this number of channels, and [more](ChannelConfig::group) if its completion queue
    /// can grow.
    ///
    /// `channels` are the settings of the channels: a builder, or a configuration, by value or by reference. Its `timeout` and
    /// `strategy` have no effect here.
    ///
    /// The completion queue raises its events on the completion channel of `events`, which other
    /// groups and queues may share.
    ///
    /// ```no_run
    /// # fn main() -> verbs_async::Result<()> {
    /// use verbs_async::{AsyncGroup, CqEvents};
    /// use verbs_async::verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let events = CqEvents::create_thread(pd.context())?;
    /// let group = AsyncGroup::new(Channel::builder(&pd).max_recv_wr(256), 100, &events)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::group`].
    pub fn new(
        channels: impl Into<ChannelConfig>,
        room_for: u32,
        events: &CqEvents,
    ) -> Result<Self> {
        let (engine, factory) = channels.into().engine(room_for, events.channel())?;
        Self::of_engine(engine, factory, events)
    }

    /// A group whose engine raises its events on the completion channel of `events`.
    pub(crate) fn of_engine(
        mut engine: Engine,
        factory: MemberFactory,
        events: &CqEvents,
    ) -> Result<Self> {
        // It is under a lock, and used by executors' threads.
        engine.defer_closing();
        let pd = engine.pd().clone();
        // SAFETY: the clone is only armed, moderated and compared, here and in `Subscription`.
        let cq = unsafe { engine.cq() }.clone();
        let subscription = events.subscribe(&cq)?;
        let device = DeviceWatcher::of(events)?;
        let shared = Arc::new_cyclic(|shared: &Weak<SharedEngine>| {
            subscription.listen(Weak::<SharedEngine>::clone(shared));
            SharedEngine {
                backlog: AtomicUsize::new(BACKLOG),
                driver: Driver::new(engine, subscription, Weak::<SharedEngine>::clone(shared)),
                factory,
                pd,
                events: events.clone(),
                destroyed: Arc::new(Destroyed::new()),
                peers: OnceLock::new(),
                device,
            }
        });
        let listener = Weak::<SharedEngine>::clone(&Arc::downgrade(&shared));
        shared.device.add(listener, events.downgrade());
        let lender = (shared.driver).with_engine(|engine| Arc::clone(engine.lender()));
        let failing = Arc::downgrade(&shared);
        lender.on_failed(move || {
            if let Some(shared) = failing.upgrade() {
                shared.driver.with(None, Engine::end_failed_leases);
            }
        });
        // Its listener was not there when they failed.
        if events.have_failed() {
            shared.on_events_ended(DownReason::NotifierFailed);
        }
        Ok(Self { shared })
    }

    /// Sets how long an operation polls the queue before its task sleeps.
    ///
    /// This lowers the latency of tasks that have a core to themselves. The default is zero: no busy
    /// polling.
    pub fn set_busy_poll(&self, busy_poll: Duration) {
        self.shared.driver.set_busy_poll(busy_poll);
    }

    /// Sets how many operations can wait in the backlog of each queue, for channels that join after
    /// this call.
    ///
    /// The default is 1,024 and the minimum 1. Operations beyond that are rejected: see
    /// [`AsyncChannel::ready`].
    pub fn set_backlog(&self, operations: usize) {
        let operations = operations.max(1);
        self.shared.backlog.store(operations, Ordering::Relaxed);
    }

    /// Delays events until `cq_count` completions have arrived, or `cq_period` microseconds have
    /// passed since the first of them.
    ///
    /// This causes fewer but later wake-ups. With both zero, the default, there is no delay. With a
    /// count and no period, the last few completions of a burst may be delayed forever.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionQueue::moderate`]: most software devices do not support it.
    ///
    /// [`CompletionQueue::moderate`]: verbs_channel::verbs_core::CompletionQueue::moderate
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, cq_count: u16, cq_period: u16) -> Result<()> {
        let state = self.shared.driver.state().lock();
        Ok(state.subscription.cq().moderate(cq_count, cq_period)?)
    }

    /// Prepares another channel, to be connected by a [`handshake`](Self::handshake),
    /// [`connect_prepared`](Self::connect_prepared), `accept_prepared` (feature `rdmacm`), or over a stream by
    /// [`exchange_prepared`](Self::exchange_prepared).
    ///
    /// Receives can be [started](PreparedChannel::start_receive) on it. They are posted when the channel joins,
    /// before the peer may send, and then are operations of the channel: [`AsyncChannel::prepared_receives`]. If
    /// the channel cannot be connected, or the future is dropped, a helper thread destroys the queue pair, and
    /// then drops the buffers. **If you drop the prepared channel itself, this thread does so,** and the driver may
    /// take a while.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelGroup::prepare`].
    pub fn prepare(&self) -> Result<PreparedChannel<ConnectedMember>> {
        Ok(self.shared.factory.prepare()?)
    }

    /// Adds a connected channel to the group, and posts its
    /// [prepared receives](PreparedChannel::start_receive).
    ///
    /// # Errors
    ///
    /// The error of [`ChannelGroup::join`], with the channel: the group is full and does not grow, or [has failed](Self::failure), another group prepared the
    /// channel, or its peer cannot be watched, because too many descriptors are open, or because the runtime of the
    /// group's notifier has ended. Dropping the error drops the channel: this thread destroys its queue pair. A
    /// dropped channel belongs to the group until a helper thread has destroyed its queue pair. [`handshake`](Self::handshake) and all
    /// functions that connect wait for that, and [`AsyncChannel::close`] returns after it.
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    pub fn join(
        &self,
        member: ConnectedMember,
    ) -> Result<AsyncChannel, Rejected<ConnectedMember, verbs_channel::Error>> {
        self.try_join(member).map_err(|(rejected, _)| rejected)
    }

    /// [`join`](Self::join), and waits while a full group has channels whose queue pairs are being
    /// destroyed.
    pub(crate) async fn join_when_free(
        &self,
        member: OnThread<ConnectedMember>,
    ) -> Result<AsyncChannel> {
        let mut given = Some(member);
        let join = || match self.try_join(given.take()?.into_inner()) {
            Ok(channel) => Some(Ok(channel)),
            Err((rejected, will_be_free)) => {
                let (error, member) = rejected.into_parts();
                given = Some(OnThread::new(member));
                (!will_be_free).then_some(Err(error))
            }
        };
        Ok(self.shared.when_destroyed(None, join).await?)
    }

    /// [`join`](Self::join). With a rejection, it returns whether there will be a place.
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    fn try_join(
        &self,
        member: ConnectedMember,
    ) -> Result<AsyncChannel, (Rejected<ConnectedMember, verbs_channel::Error>, bool)> {
        // First: a channel that has joined cannot be given back.
        if member.is_watched()
            && let Err(error) = self.shared.watch_peers()
        {
            return Err((Rejected::new(error, member), false));
        }
        let joined = self.shared.driver.join(member)?;
        let backlog = self.shared.backlog.load(Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        Ok(AsyncChannel::new(
            shared,
            joined.at,
            backlog,
            joined.receives,
        ))
    }

    /// Connects a prepared channel to its peer's endpoint, and adds it to the group. The peer must do
    /// the same with the endpoint of this channel.
    ///
    /// [`PreparedChannel::handshake`] blocks while the kernel resolves the peer's address: on RoCE
    /// for about a second if the peer does not answer. So it runs on one of up to 64 helper
    /// threads. If all of them wait for peers that do not answer, the next handshake is queued.
    /// Dropping the future drops the channel, on a helper thread.
    ///
    /// # Errors
    ///
    /// Those of the handshake and of [`join`](Self::join); [`Error::Thread`](crate::Error::Thread).
    #[doc(alias = "ibv_modify_qp")]
    pub fn handshake(
        &self,
        member: PreparedChannel<ConnectedMember>,
        remote: &QueuePairEndpoint,
    ) -> impl Future<Output = Result<AsyncChannel>> {
        // Not in the future: it may never be polled.
        self.handshake_with(OnThread::new(member), *remote, None)
    }

    /// [`handshake`](Self::handshake) with a peer that may be a source of others.
    pub(crate) async fn handshake_with(
        &self,
        member: Prepared,
        remote: QueuePairEndpoint,
        source: Option<Source>,
    ) -> Result<AsyncChannel> {
        let connected = member.call(source, move |member| member.handshake(&remote));
        let connected = OnThread::new(connected.await??);
        self.join_when_free(connected).await
    }

    /// [`prepare`](Self::prepare), on a helper thread.
    pub(crate) async fn prepare_elsewhere(&self) -> Result<Prepared> {
        let factory = self.shared.factory.clone();
        let prepared = threads::run(move || factory.prepare()).await??;
        Ok(OnThread::new(prepared))
    }

    /// Creates two channels of the group that are connected to each other: for tests and first
    /// steps.
    ///
    /// Each watches the other, like channels that are connected over TCP. On iWARP they are connected by
    /// `rdma_cm`, which needs the feature `rdmacm`. This call then blocks: for at most ten seconds, and
    /// somewhat longer if it fails.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare), the handshake and [`join`](Self::join); on iWARP also those of
    /// a step of `rdma_cm`.
    pub fn loopback(&self) -> Result<(AsyncChannel, AsyncChannel)> {
        let (left, right) = self.prepare()?.pair(self.prepare()?)?;
        Ok((self.join(left)?, self.join(right)?))
    }

    /// Takes all channels down at once, for this reason. Helper threads destroy their queue pairs, and
    /// then the operations in flight are aborted.
    ///
    /// It does not wait for that: [`closed`](Self::closed) does. Other channels can join, unless the reason is
    /// a [failure](Self::failure) of the group.
    pub fn abort_all(&self, reason: DownReason) {
        self.shared.destroy_all(reason);
    }

    /// Why no channel can join the group any more; `None` if it has not failed: see [`Engine::group_failure`].
    ///
    /// Its device or completion queue may fail, or the notifier of the group, or its runtime may end. Then connecting and [`join`](Self::join) fail, and listeners end, with
    /// [`GroupFailed`](verbs_channel::Error::GroupFailed).
    #[must_use]
    pub fn failure(&self) -> Option<DownReason> {
        self.shared.failure()
    }

    /// Waits until helper threads have destroyed the queue pairs of the channels that were
    /// dropped, or that [`abort_all`](Self::abort_all) took down. The device is then done
    /// with all of their memory. Dropping the future has no effect.
    ///
    /// A channel that went down after a failure, and was not dropped, keeps its queue pair: drop it or
    /// [abort](AsyncChannel::abort) it first. This also waits for channels that end meanwhile: it does not return
    /// while any queue pair is being destroyed. It does not wait for channels whose handshake failed.
    ///
    /// Await this before the program ends if the device has to be done by then: helper threads end with the
    /// process.
    ///
    /// # Errors
    ///
    /// [`CloseError::Stuck`]: during this call or before, the driver failed to destroy the queue pair of a channel. **The device may still access its memory**, and owned buffers in
    /// flight have been leaked, which is logged.
    #[doc(alias = "ibv_destroy_qp")]
    pub async fn closed(&self) -> Result<(), CloseError> {
        self.shared.until_all_destroyed().await
    }

    pub(crate) const fn shared(&self) -> &Arc<SharedEngine> {
        &self.shared
    }

    /// An empty set of operations on channels of this group, with room for `operations` of them.
    pub fn transfer(&self, operations: usize) -> AsyncTransfer {
        AsyncTransfer::new(&self.shared, operations)
    }

    /// The counters of all channels together, those included that were closed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.driver.with_engine(|engine| engine.counters())
    }

    /// The protection domain of the channels: buffers must be registered in it.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.shared.pd
    }
}

/// A channel to connect.
pub(crate) type Prepared = OnThread<PreparedChannel<ConnectedMember>>;

/// The default length of the backlog of each queue.
const BACKLOG: usize = 1024;

/// A line for the group, and one for each open channel: as of a [`ChannelGroup`].
impl fmt::Display for AsyncGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The formatter may be the program's own: it is not called under the lock.
        let text = self.shared.driver.with_engine(|engine| engine.to_string());
        f.write_str(&text)
    }
}

impl fmt::Debug for AsyncGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncGroup").field(&self.shared.pd).finish()
    }
}
