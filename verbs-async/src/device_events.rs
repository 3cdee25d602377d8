//! Device events, awaited: what happens to ports, queue pairs and the device itself.

use std::collections::VecDeque;
use std::fmt;
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use verbs_channel::verbs_core::{self, AsyncEvent, EventType};

use crate::notifier::ThreadNotifier;
use crate::sync::{Mutex, MutexGuard};
use crate::wake::{OnReadable, self_waker};
use crate::watched::Watch;
use crate::{AsyncCq, AsyncGroup, CqNotifier, Error, Result};

/// The events of a device, one after the other (`ibv_get_async_event`).
///
/// A [`Stream`] too. They are taken when the notifier tells of them, whether anybody waits here or
/// not. So what [`watch`](Self::watch) and [`watch_cq`](Self::watch_cq) name fails at once when the
/// device, its queue or its queue pair breaks, whatever other tasks do.
///
/// Each event is taken once: one such stream per context, a second is an error. Events that nobody takes from it are kept,
/// the last 64 of them.
///
/// ```no_run
/// # async fn example(group: verbs_async::AsyncGroup) -> verbs_async::Result<()> {
/// use verbs_async::DeviceEvents;
///
/// let mut events = DeviceEvents::create_thread(group.pd().context())?;
/// events.watch(&group);
/// while let Some(event) = events.next().await {
///     println!("{:?}", event?.event_type());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
pub struct DeviceEvents {
    hub: Arc<Hub>,
}

/// Somebody who ends when a device, or a part of it, does.
pub(crate) trait Watched: Send + Sync {
    /// This has happened to the device, or to something on it.
    fn happened(&self, event: AsyncEvent);
}

struct Hub {
    // First: see there.
    _watch: Watch,
    context: verbs_core::Context,
    notifier: Box<dyn CqNotifier>,
    bell: Waker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    // What nobody has taken.
    events: VecDeque<AsyncEvent>,
    // Why no more come, once; and that none do.
    error: Option<Error>,
    ended: bool,
    waker: Option<Waker>,
    watched: Vec<Weak<dyn Watched>>,
    // The end of the device, for those who are watched after it.
    fatal: Option<AsyncEvent>,
}

impl DeviceEvents {
    /// Takes the events of `context`, whose [`poll_fd`](verbs_core::Context::poll_fd) `notifier`
    /// watches.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`]: they are taken already.
    pub fn new(context: &verbs_core::Context, notifier: impl CqNotifier + 'static) -> Result<Self> {
        let watch = Watch::new(context.as_ptr())?;
        let hub = Arc::new_cyclic(|hub: &Weak<Hub>| Hub {
            _watch: watch,
            context: context.clone(),
            notifier: Box::new(notifier),
            bell: self_waker(hub),
            state: Mutex::default(),
        });
        hub.on_readable();
        Ok(Self { hub })
    }

    /// Takes the events of `context`, watched by the tokio runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Those of [`TokioNotifier::new`](crate::notifier::TokioNotifier::new).
    #[cfg(feature = "tokio")]
    pub fn create_tokio(context: &verbs_core::Context) -> Result<Self> {
        let notifier = crate::notifier::TokioNotifier::new(context.poll_fd()?)?;
        Self::new(context, notifier)
    }

    /// Takes the events of `context`, watched by async-io: for smol and any other executor.
    ///
    /// # Errors
    ///
    /// The errno.
    #[cfg(feature = "async-io")]
    pub fn create_async_io(context: &verbs_core::Context) -> Result<Self> {
        let notifier = crate::notifier::AsyncIoNotifier::new(context.poll_fd()?)?;
        Self::new(context, notifier)
    }

    /// Takes the events of `context`, watched by a thread of this crate's: for any executor.
    ///
    /// # Errors
    ///
    /// The errno, if the thread can't be started.
    pub fn create_thread(context: &verbs_core::Context) -> Result<Self> {
        let notifier = ThreadNotifier::new(context.poll_fd()?)?;
        Self::new(context, notifier)
    }

    /// When the device breaks, or the group's queue, or a queue pair of one of its channels without
    /// a completion that says so, then those channels go down with
    /// [`DownReason::Event`](verbs_channel::DownReason::Event), and their operations end.
    pub fn watch(&self, group: &AsyncGroup) {
        self.add(group.watched());
    }

    /// When the device breaks, or the queue, then whoever waits for its completions gets an error.
    pub fn watch_cq(&self, cq: &AsyncCq) {
        self.add(cq.watched());
    }

    fn add(&self, watched: Weak<dyn Watched>) {
        let mut state = self.hub.state.lock();
        state.watched.retain(|other| other.strong_count() > 0);
        let fatal = state.fatal;
        state.watched.push(Weak::clone(&watched));
        drop(state);
        if let (Some(event), Some(watched)) = (fatal, watched.upgrade()) {
            watched.happened(event);
        }
    }

    /// Waits for the next event. `None` after an error: a device that is gone, or a notifier that
    /// no longer watches it, has no more.
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<AsyncEvent>> {
        future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// What [`next`](Self::next) does, by hand.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncEvent>>> {
        // What a waker does as it is cloned or dropped is not done under the lock.
        let waker = cx.waker().clone();
        let mut state = self.hub.state.lock();
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
        crate::wake::drop_guarded(spare);
        polled
    }
}

impl OnReadable for Hub {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.bell);
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

impl Hub {
    fn take_events(&self) -> Result<()> {
        while let Some(event) = self.context.get_async_event(Some(Duration::ZERO))? {
            if event.event_type() == EventType::DEVICE_FATAL {
                self.state.lock().fatal = Some(event);
            }
            // Before it is told: who hears of it finds what it has ended.
            self.watched().for_each(|watched| watched.happened(event));
            let mut state = self.state.lock();
            let is_full = state.events.len() == KEPT;
            let lost = is_full.then(|| state.events.pop_front()).flatten();
            state.events.push_back(event);
            wake(state);
            if let Some(lost) = lost {
                crate::wake::log_error(format_args!(
                    "a device event that nobody took is dropped: {lost:?}"
                ));
            }
        }
        Ok(())
    }

    /// Those who are still there, called with nothing locked.
    fn watched(&self) -> impl Iterator<Item = Arc<dyn Watched>> {
        let watched = self.state.lock().watched.clone();
        watched.into_iter().filter_map(|watched| watched.upgrade())
    }

    fn end(&self, error: Error) {
        let mut state = self.state.lock();
        if !state.ended {
            state.ended = true;
            state.error = Some(error);
        }
        wake(state);
    }
}

/// Unlocks, and wakes who waits.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    crate::wake::wake_all(waker);
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
            .field("context", &self.hub.context)
            .finish_non_exhaustive()
    }
}

/// How many events are kept that nobody takes.
const KEPT: usize = 64;
