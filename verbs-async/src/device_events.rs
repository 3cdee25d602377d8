//! Device events, awaited: changes of ports, queue pairs and the device itself.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use verbs_channel::verbs_core;
use verbs_channel::verbs_core::device::AsyncEvent;
use verbs_channel::verbs_core::error::ErrorChain;
use verbs_channel::{self, DownReason};

use crate::events::WeakCqEvents;
use crate::events::watcher::{DeviceListener, Failed};
use crate::notifier;
use crate::task::sync::{Mutex, MutexGuard};
use crate::task::wake::{OnReadable, self_waker};
use crate::threads::per_process::PerProcess;
use crate::{AsyncCq, CqEvents, CqNotifier, Error, Result};

/// The events of a device, in order (`ibv_get_async_event`).
///
/// This is also a [`Stream`]. It is needed only to see the events: groups and datagram endpoints fail at once when
/// their device, queue or queue pair fails, [without it](crate#when-the-device-fails). So does a queue that was passed
/// to [`watch_cq`](Self::watch_cq).
///
/// Each event is taken once, so a context can have only one such stream at a time. A second one is an error.
/// Up to 64 events are kept until [`next`](Self::next) takes them, also before this is created if the context has
/// groups or datagram endpoints. Beyond that the oldest is dropped, which is logged.
///
/// ```no_run
/// # async fn example(events: verbs_async::CqEvents) -> verbs_async::Result<()> {
/// use verbs_async::DeviceEvents;
///
/// let mut events = DeviceEvents::create(&events)?;
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?.event_type());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
pub struct DeviceEvents {
    watcher: Arc<DeviceWatcher>,
}

/// Takes the events of a device, and fails what they concern. A context has one, while anything is watched.
///
/// A notifier of one runtime watches the device for all. When that runtime ends, a notifier of another listener's takes
/// its place.
pub(crate) struct DeviceWatcher {
    context: verbs_core::Context,
    notifier: Mutex<Arc<dyn CqNotifier>>,
    notifier_waker: Waker,
    state: Mutex<EventState>,
}

#[derive(Default)]
struct EventState {
    // Whether there is a stream.
    is_streamed: bool,
    // Not taken yet.
    events: VecDeque<AsyncEvent>,
    // Why there are no more events, until it is taken; and whether there are no more.
    error: Option<Error>,
    ended: bool,
    // The same for what is watched.
    down: Option<DownReason>,
    waker: Option<Waker>,
    listeners: Vec<(Weak<dyn DeviceListener>, WeakCqEvents)>,
    // Failures, for objects that are watched later: each with an instant before it was taken.
    failed: Vec<(Instant, AsyncEvent)>,
}

/// The watchers by the addresses of their contexts.
static WATCHERS: PerProcess<Mutex<BTreeMap<usize, Weak<DeviceWatcher>>>> =
    PerProcess::new(Mutex::default);

impl DeviceEvents {
    /// Takes the events of the device that `events` are of, with a notifier of the same kind.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`]: there is such a stream already. [`Error::Io`]: the descriptor cannot be watched.
    pub fn create(events: &CqEvents) -> Result<Self> {
        let watcher = DeviceWatcher::of(events)?;
        let mut state = watcher.state.lock();
        if mem::replace(&mut state.is_streamed, true) {
            return Err(Error::AlreadyWatched);
        }
        drop(state);
        Ok(Self { watcher })
    }

    /// Fails the tasks that wait on this queue, when the queue or its device fails.
    ///
    /// # Errors
    ///
    /// [`ForeignContext`](verbs_core::Error::ForeignContext): the queue belongs to another device context, whose events these are not.
    pub fn watch_cq(&self, cq: &AsyncCq) -> Result<()> {
        if !cq.cq().context().is(&self.watcher.context) {
            let child = "the completion queue";
            return Err(verbs_core::Error::ForeignContext { child }.into());
        }
        self.watcher
            .add(cq.device_listener(), WeakCqEvents::default());
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
        let mut state = self.watcher.state.lock();
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

impl Drop for DeviceEvents {
    fn drop(&mut self) {
        let mut state = self.watcher.state.lock();
        state.is_streamed = false;
        let waker = state.waker.take();
        drop(state);
        crate::task::wake::drop_guarded(waker);
    }
}

impl OnReadable for DeviceWatcher {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.notifier_waker);
        loop {
            if let Err(error) = self.take_events() {
                return self.end(error);
            }
            let notifier = Arc::clone(&self.notifier.lock());
            match notifier.poll_readable(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    if !self.replace_notifier() {
                        return self.end(error.into());
                    }
                }
            }
        }
    }
}

impl DeviceWatcher {
    /// The watcher of the device that `events` are of, which these events start unless there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the descriptor cannot be watched.
    pub(crate) fn of(events: &CqEvents) -> Result<Arc<Self>> {
        let context = events.channel().context();
        let key = context.as_ptr().addr();
        let running = |watchers: &BTreeMap<usize, Weak<Self>>| {
            let watcher = watchers.get(&key)?.upgrade()?;
            // Without a notifier, another takes its place; without a device, none can.
            let is_replaced = watcher.state.lock().down == Some(DownReason::NotifierFailed);
            (!is_replaced).then_some(watcher)
        };
        let watcher = running(&WATCHERS.get().lock());
        if let Some(watcher) = watcher {
            return Ok(watcher);
        }
        let notifier = events.another_notifier(context.poll_fd()?.try_clone_to_owned()?)?;
        let made = Arc::new_cyclic(|watcher: &Weak<Self>| Self {
            context: context.clone(),
            notifier: Mutex::new(notifier.into()),
            notifier_waker: self_waker(watcher),
            state: Mutex::default(),
        });
        let mut watchers = WATCHERS.get().lock();
        if let Some(watcher) = running(&watchers) {
            drop(watchers);
            return Ok(watcher);
        }
        watchers.retain(|_, watcher| watcher.strong_count() > 0);
        watchers.insert(key, Arc::downgrade(&made));
        drop(watchers);
        made.on_readable();
        Ok(made)
    }

    /// Fails this listener when its device, or a part of it, does. The device can be watched through its events.
    pub(crate) fn add(&self, listener: Weak<dyn DeviceListener>, events: WeakCqEvents) {
        let mut state = self.state.lock();
        state
            .listeners
            .retain(|(other, _)| other.strong_count() > 0);
        let (failed, down) = (state.failed.clone(), state.down);
        state.listeners.push((Weak::clone(&listener), events));
        drop(state);
        let Some(listener) = listener.upgrade() else {
            return;
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
    }

    /// Has the events of another listener watch the device. Each is asked once, so this ends.
    fn replace_notifier(&self) -> bool {
        loop {
            let mut state = self.state.lock();
            let next = state
                .listeners
                .iter_mut()
                .find_map(|(_, events)| mem::take(events).upgrade());
            drop(state);
            let Some(events) = next else {
                return false;
            };
            let descriptor = self.context.poll_fd().map_err(io::Error::from);
            let descriptor = descriptor.and_then(|fd| fd.try_clone_to_owned());
            if let Ok(notifier) = descriptor.and_then(|fd| events.another_notifier(fd)) {
                *self.notifier.lock() = notifier.into();
                return true;
            }
        }
    }

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
            let is_streamed = state.is_streamed;
            state.events.push_back(event);
            wake(state);
            if let Some(lost) = lost.filter(|_| is_streamed) {
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
            .filter_map(|(listener, _)| listener.upgrade())
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
        let has_ended = matches!(&error, Error::Io(error) if notifier::has_ended(error));
        if !watched.is_empty() && !has_ended {
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
            .field("context", &self.watcher.context)
            .finish_non_exhaustive()
    }
}

/// The most events that are kept until they are taken.
const MAX_UNTAKEN: usize = 64;
