//! Where completions are announced: a completion channel, its notifier, and the queues on it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use verbs_channel::verbs_core::{self, CompletionChannel, CompletionQueue};

use crate::error::Result;
use crate::notifier::{CqNotifier, ThreadNotifier};

/// A completion channel and what tells that it is readable, for one completion queue or for many.
///
/// Cloning is cheap and shares both. The notifier's waker is always registered: when it is woken,
/// the events are taken right there, and the queues that had one are polled. So no task has to be
/// awake for another one's completion.
///
/// ```text
/// card ──► completion channel (fd) ──► notifier ──► events taken ──► queue polled ──► tasks woken
/// ```
#[derive(Clone)]
pub struct CqEvents {
    hub: Arc<Hub>,
}

/// Somebody whose queue is announced.
pub(crate) trait Announced: Send + Sync {
    /// There may be something in the queue, and the next completion will not be announced.
    fn announced(&self);

    /// Nothing will be announced any more.
    fn unwatched(&self, error: &io::Error);
}

struct Hub {
    channel: CompletionChannel,
    notifier: Box<dyn CqNotifier>,
    queues: Mutex<Queues>,
}

/// The queues on the channel, by their addresses.
#[derive(Default)]
struct Queues {
    entries: HashMap<usize, Entry>,
    // How many of them are.
    armed: usize,
    // Why nothing is announced any more.
    lost: Option<io::ErrorKind>,
}

struct Entry {
    listener: Weak<dyn Announced>,
    armed: bool,
}

/// A queue's place among those that are announced.
#[derive(Debug)]
pub(crate) struct Subscription {
    events: CqEvents,
    cq: CompletionQueue,
}

impl CqEvents {
    /// Watches a completion channel with a notifier, which must be one of that channel's descriptor.
    ///
    /// Nobody else may take events from the channel after that.
    #[must_use]
    pub fn new(channel: CompletionChannel, notifier: impl CqNotifier + 'static) -> Self {
        let hub = Arc::new(Hub {
            channel,
            notifier: Box::new(notifier),
            queues: Mutex::default(),
        });
        // Registers the waker; from here on it is registered again whenever it was woken.
        hub.look();
        Self { hub }
    }

    /// Creates a completion channel, watched by the tokio runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`] and [`TokioNotifier::new`]: outside a runtime, or in
    /// one whose I/O is not enabled.
    ///
    /// [`TokioNotifier::new`]: crate::notifier::TokioNotifier::new
    #[cfg(feature = "tokio")]
    pub fn create_tokio(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = crate::notifier::TokioNotifier::new(&channel)?;
        Ok(Self::new(channel, notifier))
    }

    /// Creates a completion channel, watched by async-io: for smol and any other executor.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`]; the errno.
    #[cfg(feature = "async-io")]
    pub fn create_async_io(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = crate::notifier::AsyncIoNotifier::new(&channel)?;
        Ok(Self::new(channel, notifier))
    }

    /// Creates a completion channel, watched by a thread of this crate's: for any executor.
    ///
    /// # Errors
    ///
    /// Those of [`CompletionChannel::create`]; the errno, if the thread can't be started.
    pub fn create_thread(context: &verbs_core::Context) -> Result<Self> {
        let channel = CompletionChannel::create(context)?;
        let notifier = ThreadNotifier::new(&channel)?;
        Ok(Self::new(channel, notifier))
    }

    /// The completion channel: queues that are to be announced are made with it.
    #[must_use]
    pub fn channel(&self) -> &CompletionChannel {
        &self.hub.channel
    }

    /// From now on the listener hears of the queue, which is one of the channel's.
    pub(crate) fn subscribe(
        &self,
        cq: &CompletionQueue,
        listener: Weak<dyn Announced>,
    ) -> Subscription {
        let armed = false;
        let entry = Entry { listener, armed };
        self.hub.queues().entries.insert(key(cq), entry);
        Subscription {
            events: self.clone(),
            cq: cq.clone(),
        }
    }
}

impl Subscription {
    /// Has the queue's next completion announced.
    pub(crate) fn arm(&self) -> Result<()> {
        let mut queues = self.events.hub.queues();
        if let Some(kind) = queues.lost {
            return Err(io::Error::from(kind).into());
        }
        let queues = &mut *queues;
        if let Some(entry) = queues.entries.get_mut(&key(&self.cq))
            && !entry.armed
        {
            // Before the queue is: its event must not come to a queue that awaits none.
            entry.armed = true;
            queues.armed += 1;
        }
        self.cq.req_notify(false)?;
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut queues = self.events.hub.queues();
        let entry = queues.entries.remove(&key(&self.cq));
        if entry.is_some_and(|entry| entry.armed) {
            queues.armed -= 1;
        }
    }
}

impl Hub {
    /// Takes what is there, until the notifier has the waker.
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(Arc::new(Bell(Arc::downgrade(self))));
        let mut cx = Context::from_waker(&waker);
        loop {
            let taken = match self.notifier.poll_readable(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => self.take_events(),
                Poll::Ready(Err(error)) => Err(error),
            };
            if let Err(error) = taken {
                self.lose(&error);
                return;
            }
        }
    }

    /// Takes as many events as queues are armed, or all there are.
    ///
    /// An armed queue has one event, so looking for more would be a system call for nothing.
    fn take_events(&self) -> io::Result<()> {
        loop {
            let Some(cq) = self.channel.get_cq_event(Some(Duration::ZERO))? else {
                return Ok(());
            };
            let (listener, left) = self.queues().had_event(&cq);
            if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
                listener.announced();
            }
            // Of those that were armed before. One that was armed since then is announced anew.
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Tells all that nothing will be announced any more.
    fn lose(&self, error: &io::Error) {
        let mut queues = self.queues();
        queues.lost = Some(error.kind());
        let listeners: Vec<_> = queues.entries.values().map(Entry::listener).collect();
        drop(queues);
        for listener in listeners {
            if let Some(listener) = listener.upgrade() {
                listener.unwatched(error);
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn listener(&self) -> Weak<dyn Announced> {
        Weak::clone(&self.listener)
    }
}

impl Queues {
    /// Whose queue it is, and how many others are still armed.
    fn had_event(&mut self, cq: &CompletionQueue) -> (Option<Weak<dyn Announced>>, usize) {
        let Some(entry) = self.entries.get_mut(&key(cq)) else {
            return (None, self.armed);
        };
        if entry.armed {
            entry.armed = false;
            self.armed -= 1;
        }
        (Some(entry.listener()), self.armed)
    }
}

fn key(cq: &CompletionQueue) -> usize {
    cq.as_ptr().addr()
}

/// The waker that a hub gives its notifier, which the hub owns.
struct Bell(Weak<Hub>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(hub) = self.0.upgrade() {
            hub.look();
        }
    }
}

impl fmt::Debug for CqEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CqEvents").field(&self.hub.channel).finish()
    }
}
