//! Completion queues, awaited by code that posts with `verbs_core`.

use std::fmt;
use std::future::{self, Future};
use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use verbs_channel::DownReason;
#[cfg(feature = "tokio")]
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::__private::Process;
use verbs_channel::verbs_core::device::AsyncEvent;
use verbs_channel::verbs_core::{CompletionQueue, PollSlot, PolledCompletions, WorkCompletion};

use crate::error::{Error, Result};
use crate::events::watcher::{DeviceListener, Failed};
use crate::events::{CqEvents, CqListener};
use crate::notifier;
use crate::task::coop;
use crate::task::deferred::Lock;
use state::{CqState, Failure, SharedCq, Waiter};

mod state;

/// A completion queue whose completions are awaited.
///
/// Cloning is cheap and shares the queue. Any number of tasks can wait at once: for any completion
/// ([`poll`](Self::poll)), or for that of one work request ([`poll_wr_id`](Self::poll_wr_id)). A
/// completion whose `wr_id` a task awaits is delivered to that task only. Other completions are
/// kept until a task takes them. Dropping a future loses no completion.
///
/// Kept completions take memory, and each new wait for a `wr_id` searches all of them. So code that
/// only waits by `wr_id` has to await every work request that completes, including unsignalled ones
/// that fail, or call [`poll`](Self::poll) from time to time.
///
/// The queue is armed only if it is empty and a task waits. It is then polled once more.
///
/// ```no_run
/// # async fn example() -> verbs_async::Result<()> {
/// use verbs_async::verbs_channel::verbs_core::{Context, PollSlot};
/// use verbs_async::{AsyncCq, CqEvents};
///
/// let context = Context::first_active()?;
/// let events = CqEvents::create_thread(&context)?; // or create_tokio, create_async_io
/// let cq = AsyncCq::create(&events, 64)?;
/// // … post with a queue pair that was created with `cq.cq()`, then:
/// let mut slots = [const { PollSlot::new() }; 16];
/// for completion in cq.poll(&mut slots).await? {
///     completion.result().ok();
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncCq {
    shared: Arc<SharedCq>,
}

/// The state of a wait in [`AsyncCq::poll_completions`], from one call to the next.
///
/// Each task that waits needs its own.
#[derive(Default)]
pub struct CqPollState {
    registration: Option<Registration>,
}

/// A registered waiter, removed on drop.
struct Registration {
    shared: Arc<SharedCq>,
    key: usize,
    process: Process,
}

impl AsyncCq {
    /// Creates a queue with room for at least `min_capacity` completions, on the completion channel
    /// of `events`.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionQueue::create`].
    pub fn create(events: &CqEvents, min_capacity: u32) -> Result<Self> {
        let channel = events.channel();
        let cq = CompletionQueue::builder(channel.context(), min_capacity)
            .channel(channel)
            .build()?;
        Self::new(cq, events)
    }

    /// Needs the feature `tokio`. Creates a queue on a completion channel of its own, with a
    /// notifier of the current tokio runtime.
    ///
    /// # Errors
    ///
    /// Those of [`CqEvents::create_tokio`] and [`CompletionQueue::create`].
    #[cfg(feature = "tokio")]
    pub fn create_tokio(context: &verbs_core::Context, min_capacity: u32) -> Result<Self> {
        Self::create(&CqEvents::create_tokio(context)?, min_capacity)
    }

    /// Makes the completions of this queue awaitable. It must have been created with the completion
    /// channel of `events`.
    ///
    /// Nothing else may poll the queue from now on.
    ///
    /// # Errors
    ///
    /// [`Error::NoCompletionChannel`], [`Error::ForeignChannel`], [`Error::AlreadyAwaited`].
    pub fn new(cq: CompletionQueue, events: &CqEvents) -> Result<Self> {
        let channel = cq.channel().ok_or(Error::NoCompletionChannel)?;
        if channel.as_ptr() != events.channel().as_ptr() {
            return Err(Error::ForeignChannel);
        }
        let subscription = events.subscribe(&cq)?;
        let shared = Arc::new_cyclic(|shared: &Weak<SharedCq>| {
            subscription.listen(Weak::<SharedCq>::clone(shared));
            let state = CqState::new(cq.clone(), subscription, Weak::clone(shared));
            let state = Lock::new(state);
            SharedCq { state, cq }
        });
        Ok(Self { shared })
    }

    /// Waits for completions that no task awaits by their `wr_id`.
    ///
    /// Returns all that are available and fit, and at least one unless `slots` is empty.
    ///
    /// # Errors
    ///
    /// The queue cannot be polled, its device has failed, or the notifier has failed. No more
    /// completions are delivered then.
    pub async fn poll<'a>(&self, slots: &'a mut [PollSlot]) -> Result<PolledCompletions<'a>> {
        let mut state = CqPollState::default();
        let found = future::poll_fn(|cx| self.poll_completions(cx, &mut state, slots)).await?;
        let filled = slots.get(..found).unwrap_or_default();
        Ok(PollSlot::completions(filled))
    }

    /// Waits for the completion of one work request, which must be signalled.
    ///
    /// If the future is dropped, the completion is kept. So don't reuse a `wr_id` before its
    /// completion has been taken. If several work requests have the same `wr_id`, their completions
    /// are delivered in the order in which they arrive.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll). If the work request itself failed, its completion has the status.
    pub fn poll_wr_id(
        &self,
        wr_id: u64,
    ) -> impl Future<Output = Result<WorkCompletion>> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        let mut registration = None;
        future::poll_fn(move |cx| shared.poll_one(cx, wr_id, &mut registration))
    }

    /// [`poll`](Self::poll) for a future of your own: the number of slots that were filled.
    ///
    /// [`PollSlot::completions`] returns the completions in them.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn poll_completions(
        &self,
        cx: &mut Context<'_>,
        state: &mut CqPollState,
        slots: &mut [PollSlot],
    ) -> Poll<Result<usize>> {
        self.shared.poll_any(cx, &mut state.registration, slots)
    }

    pub(crate) fn device_listener(&self) -> Weak<dyn DeviceListener> {
        let shared: Weak<SharedCq> = Arc::downgrade(&self.shared);
        shared
    }

    /// The completion queue, to create queue pairs with.
    #[must_use]
    pub fn cq(&self) -> &CompletionQueue {
        &self.shared.cq
    }
}

impl SharedCq {
    fn poll_any(
        self: &Arc<Self>,
        cx: &Context<'_>,
        registration: &mut Option<Registration>,
        slots: &mut [PollSlot],
    ) -> Poll<Result<usize>> {
        if let Some(here) = registration
            && !Arc::ptr_eq(&here.shared, self)
        {
            // It waited for another queue. Deregistering takes that queue's lock, so it is done
            // before this one's is taken.
            *registration = None;
        }
        let poll = || {
            self.state.poll(cx, |state, waker| {
                if state.kept.is_empty() {
                    state.drive(|state| !state.kept.is_empty());
                }
                let found = state.take_kept(slots);
                match &state.failed {
                    _ if found > 0 || slots.is_empty() => (Poll::Ready(Ok(found)), [Some(waker)]),
                    Some(failure) => (Poll::Ready(Err(failure.into())), [Some(waker)]),
                    None => {
                        let key = self.register(state, registration, || Waiter::Any(None));
                        (Poll::Pending, [state.set_waker(key, waker)])
                    }
                }
            })
        };
        let polled = coop::poll(coop::must_yield(cx), cx, poll);
        if polled.is_ready() {
            *registration = None;
        }
        polled
    }

    fn poll_one(
        self: &Arc<Self>,
        cx: &Context<'_>,
        wr_id: u64,
        registration: &mut Option<Registration>,
    ) -> Poll<Result<WorkCompletion>> {
        let poll = || {
            self.state.poll(cx, |state, waker| {
                let key = self.register(state, registration, || Waiter::One {
                    wr_id,
                    waker: None,
                    found: None,
                });
                if !state.has_found(key) {
                    state.drive(|state| state.has_found(key));
                }
                match (state.take_found(key), &state.failed) {
                    (Some(found), _) => (Poll::Ready(Ok(found)), [Some(waker)]),
                    (None, Some(failure)) => (Poll::Ready(Err(failure.into())), [Some(waker)]),
                    (None, None) => (Poll::Pending, [state.set_waker(key, waker)]),
                }
            })
        };
        let polled = coop::poll(coop::must_yield(cx), cx, poll);
        if polled.is_ready() {
            *registration = None;
        }
        polled
    }

    /// The key of the waiter: the one it has, or a new one.
    fn register(
        self: &Arc<Self>,
        state: &mut CqState,
        registration: &mut Option<Registration>,
        waiter: impl FnOnce() -> Waiter,
    ) -> usize {
        match registration {
            Some(here) => here.key,
            None => {
                let key = state.add_waiter(waiter());
                let shared = Arc::clone(self);
                *registration = Some(Registration {
                    shared,
                    key,
                    process: Process::current(),
                });
                key
            }
        }
    }
}

impl CqListener for SharedCq {
    fn on_event(&self) {
        let mut state = self.state.lock();
        state.armed = false;
        // A task that has been woken, or comes later, polls first: only sleeping ones need the queue
        // armed.
        state.drive(|state| {
            state
                .waiters
                .iter()
                .all(|(_, waiter)| !waiter.is_sleeping())
        });
    }

    fn on_notifier_failed(&self, error: &io::Error) {
        let mut state = self.state.lock();
        state.fail(Failure::Io(Arc::new(notifier::copy_of(error))));
    }
}

impl DeviceListener for SharedCq {
    fn since(&self, _: Failed) -> Instant {
        self.state.lock().subscription.since()
    }

    fn on_device_event(&self, event: AsyncEvent) {
        let has_failed = match Failed::of(event) {
            Some(Failed::Device) => true,
            Some(Failed::Cq(handle)) => handle == self.cq.handle(),
            _ => false,
        };
        if has_failed {
            self.on_events_ended(DownReason::Event(event.event_type()));
        }
    }

    fn on_events_ended(&self, reason: DownReason) {
        let mut state = self.state.lock();
        state.fail(Failure::Down(reason));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.process.is_current() {
            (self.shared.state).end_wait(|state| state.remove_waiter(self.key));
        }
    }
}

impl fmt::Debug for AsyncCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCq").field(&self.shared.cq).finish()
    }
}

impl fmt::Debug for CqPollState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_waiting = self.registration.is_some();
        f.debug_struct("CqPollState")
            .field("is_waiting", &is_waiting)
            .finish()
    }
}
