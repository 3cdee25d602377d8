//! Device events, awaited: changes of ports, queue pairs and the device itself.

use std::collections::VecDeque;
use std::fmt;
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::device::AsyncEvent;
use verbs_channel::verbs_core::error::ErrorChain;
use verbs_channel::{self, DownReason};

use crate::events::watcher::{DeviceListener, Failed, Watch};
use crate::task::sync::{Mutex, MutexGuard};
use crate::task::wake::{OnReadable, self_waker};
use crate::{AsyncCq, AsyncDatagrams, AsyncGroup, CqEvents, CqNotifier, Error, Result};

/// The events of a device, in order (`ibv_get_async_event`).
///
/// This is also a [`Stream`]. Events are taken from the device when they arrive, whether or not a
/// task waits here. So what was passed to [`watch`](Self::watch),
/// [`watch_datagrams`](Self::watch_datagrams) or [`watch_cq`](Self::watch_cq) fails at once when its device,
/// queue or queue pair fails, until this is dropped. That applies to a failure before the call to `watch`, too.
///
/// If the events end without being dropped, nothing would notice a failure any more. So what they watch goes down
/// then, as does what is watched later, no channel can join a watched group any more, and that is logged. The reason
/// is [`DownReason::Device`] if the device is gone (`EIO`), and [`DownReason::NotifierFailed`] if the notifier has
/// failed or its runtime has ended. So that runtime has to live as long as what they watch.
///
/// Each event is taken once, so a context can have only one such stream. A second one is an error.
/// Up to 64 events are kept until [`next`](Self::next) takes them. Beyond that the oldest is
/// dropped and logged.
///
/// ```no_run
/// # async fn example(
/// #     group: verbs_async::AsyncGroup,
/// #     events: verbs_async::CqEvents,
/// # ) -> verbs_async::Result<()> {
/// use verbs_async::DeviceEvents;
///
/// // With the runtime of the group's completion events.
/// let mut events = DeviceEvents::create(&events)?;
/// events.watch(&group)?;
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?.event_type());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
pub struct DeviceEvents {
    inner: Arc<Inner>,
}

struct Inner {
    // First, so that it is dropped before the object: see `Watch::new`.
    _watch: Watch,
    context: verbs_core::Context,
    notifier: Box<dyn CqNotifier>,
    notifier_waker: Waker,
    state: Mutex<EventState>,
}

#[derive(Default)]
struct EventState {
    // Not taken yet.
    events: VecDeque<AsyncEvent>,
    // Why there are no more events, until it is taken; and whether there are no more.
    error: Option<Error>,
    ended: bool,
    // The same for what is watched.
    down: Option<DownReason>,
    waker: Option<Waker>,
    listeners: Vec<Weak<dyn DeviceListener>>,
    // Failures, for objects that are watched later: each with an instant before it was taken.
    failed: Vec<(Instant, AsyncEvent)>,
}

impl DeviceEvents {
    /// Takes the events of `context`. `notifier` must watch its
    /// [`poll_fd`](verbs_core::Context::poll_fd).
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`]: the events of the context are taken already.
    pub fn new(context: &verbs_core::Context, notifier: impl CqNotifier + 'static) -> Result<Self> {
        let watch = Watch::new(context.as_ptr())?;
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| Inner {
            _watch: watch,
            context: context.clone(),
            notifier: Box::new(notifier),
            notifier_waker: self_waker(inner),
            state: Mutex::default(),
        });
        inner.on_readable();
        Ok(Self { inner })
    }

    /// Takes the events of the device that `events` are of, with a notifier of the same kind.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or [`Error::Io`]: the descriptor cannot be watched.
    pub fn create(events: &CqEvents) -> Result<Self> {
        let context = events.channel().context();
        let descriptor = context.poll_fd()?.try_clone_to_owned()?;
        let notifier = events.another_notifier(descriptor)?;
        Self::new(context, notifier)
    }

    /// Takes the channels of a group down when their device, completion queue, shared receive queue or queue
    /// pair fails.
    ///
    /// The reason is [`DownReason::Event`](verbs_channel::DownReason::Event), and the operations in
    /// flight end. Without this, a failure that raises an event but no completion may go unnoticed.
    ///
    /// # Errors
    ///
    /// [`ForeignContext`](verbs_core::Error::ForeignContext): the group belongs to another device context, whose events these are not.
    pub fn watch(&self, group: &AsyncGroup) -> Result<()> {
        let context = group.pd().context();
        self.add("the group", context, group.device_listener())
    }

    /// Takes a datagram endpoint down when its device, completion queue or queue pair fails.
    ///
    /// The reason is [`DownReason::Event`](verbs_channel::DownReason::Event), and the operations that wait
    /// end. Without this, they may wait forever.
    ///
    /// After a [`GID_CHANGE`](verbs_core::device::EventType::GID_CHANGE), the endpoint looks up the index of its address
    /// again. Without this, the next datagram is lost if the address has moved in the port's table.
    ///
    /// # Errors
    ///
    /// [`ForeignContext`](verbs_core::Error::ForeignContext): the endpoint belongs to another device context, whose events these are not.
    pub fn watch_datagrams(&self, datagrams: &AsyncDatagrams) -> Result<()> {
        let context = datagrams.pd().context();
        self.add(
            "the datagram endpoint",
            context,
            datagrams.device_listener(),
        )
    }

    /// Fails the tasks that wait on this queue, when the queue or its device fails.
    ///
    /// # Errors
    ///
    /// [`ForeignContext`](verbs_core::Error::ForeignContext): the queue belongs to another device context, whose events these are not.
    pub fn watch_cq(&self, cq: &AsyncCq) -> Result<()> {
        let context = cq.cq().context();
        self.add("the completion queue", context, cq.device_listener())
    }

    fn add(
        &self,
        child: &'static str,
        context: &verbs_core::Context,
        listener: Weak<dyn DeviceListener>,
    ) -> Result<()> {
        if !context.is(&self.inner.context) {
            return Err(verbs_core::Error::ForeignContext { child }.into());
        }
        let mut state = self.inner.state.lock();
        state.listeners.retain(|other| other.strong_count() > 0);
        let (failed, down) = (state.failed.clone(), state.down);
        state.listeners.push(Weak::clone(&listener));
        drop(state);
        let Some(listener) = listener.upgrade() else {
            return Ok(());
        };
        for (at, event) in failed {
            if let Some(part) = Failed::of(event)
                && (part == Failed::Device || at >= listener.since(part))
            {
                listener.on_device_event(event);
            }
        }
        if let Some(reason) = down {
            listener.on_events_ended(reason);
        }
        Ok(())
    }

    /// Waits for the next event. `None` after an error: the device is gone, or the notifier has
    /// failed.
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<AsyncEvent>> {
        future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next) for a future of your own.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncEvent>>> {
        // A waker is not cloned or dropped under the lock: that runs foreign code.
        let waker = cx.waker().clone();
        let mut state = self.inner.state.lock();
        let (polled, spare) = if let Some(event) = state.events.pop_front() {
            (Poll::Ready(Some(Ok(event))), Some(waker))
        } else if let Some(error) = state.error.take() {
            (Poll::Ready(Some(Err(error))), Some(waker))
        } else if state.ended {
            (Poll::Ready(None), Some(waker))
        } else {
            (Poll::Pending, state.waker.replace(waker))
        };
        drop(state);
        crate::task::wake::drop_guarded(spare);
        polled
    }
}

impl OnReadable for Inner {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.notifier_waker);
        loop {
            let taken = self.take_events();
            let readable = match taken {
                Ok(()) => self.notifier.poll_readable(&mut cx),
                Err(error) => return self.end(error),
            };
            match readable {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return self.end(error.into()),
            }
        }
    }
}

impl Inner {
    fn take_events(&self) -> Result<()> {
        loop {
            let at = Instant::now();
            let Some(event) = self.context.get_async_event(Some(Duration::ZERO))? else {
                return Ok(());
            };
            if let Some(failed) = Failed::of(event) {
                self.state.lock().remember(at, event, failed);
            }
            // Before the event is queued: a task that gets it finds the channels down.
            self.listeners()
                .for_each(|listener| listener.on_device_event(event));
            let mut state = self.state.lock();
            let is_full = state.events.len() == MAX_UNTAKEN;
            let lost = is_full.then(|| state.events.pop_front()).flatten();
            state.events.push_back(event);
            wake(state);
            if let Some(lost) = lost {
                crate::task::wake::log_error(format_args!(
                    "too many device events wait to be taken, dropping the oldest: {lost:?}"
                ));
            }
        }
    }

    /// The listeners that still exist; the lock is not held while they are used.
    fn listeners(&self) -> impl Iterator<Item = Arc<dyn DeviceListener>> {
        let listeners = self.state.lock().listeners.clone();
        listeners
            .into_iter()
            .filter_map(|listener| listener.upgrade())
    }

    /// There are no more events: without them, what is watched may wait forever.
    fn end(&self, error: Error) {
        let reason = match &error {
            Error::Channel(verbs_channel::Error::Core(error)) => error
                .errno()
                .map_or(DownReason::NotifierFailed, DownReason::Device),
            _ => DownReason::NotifierFailed,
        };
        // First, so that what is watched from now on goes down, too.
        self.state.lock().down = Some(reason);
        let watched: Vec<_> = self.listeners().collect();
        if !watched.is_empty() {
            crate::task::wake::log_error(format_args!(
                "there are no more events of {}, taking down what they watch: {}",
                self.context.device().name(),
                ErrorChain::new(&error)
            ));
        }
        for listener in watched {
            listener.on_events_ended(reason);
        }
        let mut state = self.state.lock();
        if !state.ended {
            state.ended = true;
            state.error = Some(error);
        }
        wake(state);
    }
}

impl EventState {
    /// Keeps a failure for what is watched later. Beyond [`MAX_UNTAKEN`] the oldest is forgotten, of queue pairs
    /// first: peers can cause those.
    fn remember(&mut self, at: Instant, event: AsyncEvent, failed: Failed) {
        let what = |event: &AsyncEvent| Failed::of(*event);
        self.failed.retain(|(_, other)| what(other) != Some(failed));
        if self.failed.len() == MAX_UNTAKEN {
            let is_of_qp = |(_, event): &_| matches!(what(event), Some(Failed::Qp(_)));
            let oldest = self.failed.iter().position(is_of_qp);
            self.failed.remove(oldest.unwrap_or_default());
        }
        self.failed.push((at, event));
    }
}

/// Unlocks, and wakes the waiter.
fn wake(mut state: MutexGuard<'_, EventState>) {
    let waker = state.waker.take();
    drop(state);
    crate::task::wake::wake_all(waker);
}

impl Stream for DeviceEvents {
    type Item = Result<AsyncEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), cx)
    }
}

impl fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvents")
            .field("context", &self.inner.context)
            .finish_non_exhaustive()
    }
}

/// The most events that are kept until they are taken.
const MAX_UNTAKEN: usize = 64;
