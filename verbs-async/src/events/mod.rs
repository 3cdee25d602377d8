//! Events of completion queues: a completion channel, its notifier, and the queues on it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::__private::Process;
use verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_channel::verbs_core::{self, CompletionQueue};

use crate::error::{Error, Result};
use crate::notifier::{self, CqNotifier, ThreadNotifier};
use crate::task::sync::Mutex;
use crate::task::wake::{OnReadable, self_waker};
use queues::{Queues, take_events};
use watcher::Watch;

mod queues;
pub(crate) mod watcher;

/// A completion channel and the notifier that watches it, for one completion queue or many.
///
/// Cloning is cheap and shares both. Groups and queues keep a clone, and channels keep their group.
/// So this value can be dropped while they are in use.
///
/// The notifier wakes a waker of this crate, which takes the events, polls the queues that had an
/// event, and wakes the tasks whose operations completed. So completions are dispatched even if
/// all tasks sleep.
///
/// ```text
/// device ──► completion channel (fd) ──► notifier
///              │
///              └─► events taken ──► queue polled ──► tasks woken
/// ```
#[derive(Clone)]
pub struct CqEvents {
    inner: Arc<Inner>,
}

/// A weak reference to events.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakCqEvents(Weak<Inner>);

impl WeakCqEvents {
    pub(crate) fn upgrade(&self) -> Option<CqEvents> {
        self.0.upgrade().map(|inner| CqEvents { inner })
    }
}

/// The user of a completion queue, which is called when the queue has an event.
pub(crate) trait CqListener: Send + Sync {
    /// The queue had an event: it may have completions, and is not armed any more.
    fn on_event(&self);

    /// The notifier has failed: there will be no more events.
    fn on_notifier_failed(&self, error: &io::Error);
}

struct Inner {
    // First, so that it is dropped before the object: see `Watch::new`.
    _watch: Watch,
    channel: CompletionChannel,
    notifier: Box<dyn CqNotifier>,
    // The waker for the notifier: always the same, so nothing is allocated or replaced.
    notifier_waker: Waker,
    // Listeners by the handles of their queues.
    queues: Mutex<Queues<Weak<dyn CqListener>>>,
}

/// The registration of a queue, removed on drop.
#[derive(Debug)]
pub(crate) struct Subscription {
    events: CqEvents,
    cq: CompletionQueue,
    since: Instant,
    process: Process,
}

impl CqEvents {
    /// Watches a completion channel with a notifier, which must watch that channel's
    /// [`poll_fd`](CompletionChannel::poll_fd).
    ///
    /// Nothing else may take events from the channel after that.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyWatched`]: the channel, or a clone of it, is watched already.
    pub fn new(channel: CompletionChannel, notifier: impl CqNotifier + 'static) -> Result<Self> {
        let watch = Watch::new(channel.as_ptr())?;
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| Inner {
            _watch: watch,
            channel,
            notifier: Box::new(notifier),
            notifier_waker: self_waker(inner),
            queues: Mutex::new(Queues::new()),
        });
        // Registers the waker. After this it registers itself again whenever it is woken.
        inner.on_readable();
        Ok(Self { inner })
    }

    /// Needs the feature `tokio`. Creates a completion channel with a notifier of the current tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`] and [`TokioNotifier::new`]: there is no current
    /// runtime, or its I/O is not enabled.
    ///
    /// [`TokioNotifier::new`]: crate::notifier::TokioNotifier::new
    #[cfg(feature = "tokio")]
    pub fn create_tokio(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = notifier::TokioNotifier::new(channel.poll_fd()?)?;
        Self::new(channel, notifier)
    }

    /// Needs the feature `async-io`. Creates a completion channel with a notifier of async-io, for
    /// smol and any other executor.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`] and
    /// [`AsyncIoNotifier::new`](crate::notifier::AsyncIoNotifier::new).
    #[cfg(feature = "async-io")]
    pub fn create_async_io(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = notifier::AsyncIoNotifier::new(channel.poll_fd()?)?;
        Self::new(channel, notifier)
    }

    /// Creates a completion channel that is watched by a thread of this crate, for any executor.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`] and [`ThreadNotifier::new`].
    pub fn create_thread(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = ThreadNotifier::new(channel.poll_fd()?)?;
        Self::new(channel, notifier)
    }

    /// The completion channel. Create queues with it to await their completions.
    #[must_use]
    pub fn channel(&self) -> &CompletionChannel {
        &self.inner.channel
    }

    /// A notifier of the same kind, for another descriptor.
    pub(crate) fn another_notifier(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        self.inner.notifier.another(descriptor)
    }

    pub(crate) fn downgrade(&self) -> WeakCqEvents {
        WeakCqEvents(Arc::downgrade(&self.inner))
    }

    /// Whether the notifier has failed.
    pub(crate) fn have_failed(&self) -> bool {
        self.inner.queues.lock().failed.is_some()
    }

    /// Registers a queue of the channel.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyAwaited`].
    pub(crate) fn subscribe(&self, cq: &CompletionQueue) -> Result<Subscription> {
        if !self.inner.queues.lock().add(key(cq)) {
            return Err(Error::AlreadyAwaited);
        }
        Ok(Subscription {
            events: self.clone(),
            cq: cq.clone(),
            since: Instant::now(),
            process: Process::current(),
        })
    }
}

impl Subscription {
    pub(crate) const fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// When the queue was registered.
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    /// Sets the listener that is called for the events of the queue.
    pub(crate) fn listen(&self, listener: Weak<dyn CqListener>) {
        self.events
            .inner
            .queues
            .lock()
            .listen(key(&self.cq), listener);
    }

    /// Arms the queue: its next completion raises an event.
    pub(crate) fn arm(&self) -> Result<()> {
        // Locked until the queue is armed: if the notifier fails after that, `fail` calls its listener.
        let mut queues = self.events.inner.queues.lock();
        queues
            .arm(key(&self.cq))
            .map_err(|error| notifier::copy_of(&error))?;
        self.cq.req_notify(false)?;
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.process.is_current() {
            self.events.inner.queues.lock().remove(key(&self.cq));
        }
    }
}

impl OnReadable for Inner {
    fn on_readable(&self) {
        let mut cx = Context::from_waker(&self.notifier_waker);
        loop {
            let taken = match self.notifier.poll_readable(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => self.take_events(),
                Poll::Ready(Err(error)) => Err(error),
            };
            if let Err(error) = taken {
                return self.fail(Arc::new(error));
            }
        }
    }
}

impl Inner {
    fn take_events(&self) -> io::Result<()> {
        take_events(
            &self.queues,
            || Ok(self.channel.get_cq_event(Some(Duration::ZERO))?),
            |event| event.handle() as usize,
            |listener| {
                if let Some(listener) = listener.upgrade() {
                    listener.on_event();
                }
            },
        )
    }

    /// The notifier has failed: calls all listeners.
    fn fail(&self, error: Arc<io::Error>) {
        let listeners = self.queues.lock().fail(Arc::clone(&error));
        for listener in listeners {
            if let Some(listener) = listener.upgrade() {
                listener.on_notifier_failed(&error);
            }
        }
    }
}

fn key(cq: &CompletionQueue) -> usize {
    cq.handle() as usize
}

impl fmt::Debug for CqEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CqEvents")
            .field(&self.inner.channel)
            .finish()
    }
}
