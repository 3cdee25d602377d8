//! A notifier that uses a thread, for programs without a runtime.
//!
//! One thread serves all notifiers. It starts with the first and ends with the last. It sleeps in
//! `epoll_wait(2)`, where a descriptor is watched for one event at a time, and only while a waker
//! is registered for it. A readable descriptor that is not read costs nothing.

use std::collections::HashMap;
use std::future::{self, Future};
use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use verbs_channel::verbs_core::__private::Process;

use super::CqNotifier;
use super::relay::Relay;
use crate::task::sync::Mutex;
use crate::task::wake;
use crate::threads::per_process::PerProcess;

/// A notifier that uses a thread, which all notifiers of this kind share. It needs no runtime.
///
/// The thread runs as long as there is such a notifier. It runs the code of the wakers that it
/// wakes: a waker that does work instead of scheduling it delays the other wakers.
#[derive(Debug)]
pub struct ThreadNotifier {
    id: u64,
    entry: Arc<Entry>,
    watcher: Arc<Watcher>,
}

impl ThreadNotifier {
    /// Watches a duplicate of `descriptor`.
    ///
    /// # Errors
    ///
    /// The descriptor cannot be duplicated or registered, for example for lack of descriptors
    /// (`EMFILE`); `EAGAIN` if the thread cannot be started.
    pub fn new(descriptor: impl AsFd) -> io::Result<Self> {
        Self::watched_by(Watcher::current()?, &descriptor)
    }

    fn watched_by(watcher: Arc<Watcher>, descriptor: &impl AsFd) -> io::Result<Self> {
        let descriptor = descriptor.as_fd().try_clone_to_owned()?;
        let entry = Arc::new(Entry {
            descriptor,
            interest: Mutex::new(Interest::None),
            relay: Relay::new(),
        });
        let id = watcher.shared.register(&entry)?;
        Ok(Self { id, entry, watcher })
    }
}

impl CqNotifier for ThreadNotifier {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { id, entry, watcher } = self;
        entry.relay.poll(cx, |_| {
            // Held while the descriptor is armed, so that its event is recorded after that.
            let mut interest = entry.interest.lock();
            match *interest {
                Interest::Armed => Poll::Pending,
                Interest::Ready => {
                    *interest = Interest::None;
                    Poll::Ready(Ok(()))
                }
                Interest::None => {
                    watcher.shared.arm(*id, entry)?;
                    *interest = Interest::Armed;
                    Poll::Pending
                }
                Interest::Failed => Poll::Ready(Err(ended())),
            }
        })
    }

    fn readable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async {
            let own = Self::new(&self.entry.descriptor)?;
            future::poll_fn(|cx| own.poll_readable(cx)).await
        })
    }
}

impl Drop for ThreadNotifier {
    fn drop(&mut self) {
        // The child of a fork shares the parent's epoll set, and would deregister the parent's descriptor.
        if self.watcher.process.is_current() {
            self.watcher.shared.deregister(self.id, &self.entry);
        }
    }
}

/// One descriptor.
#[derive(Debug)]
struct Entry {
    descriptor: OwnedFd,
    interest: Mutex<Interest>,
    relay: Relay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    /// No waker is registered.
    None,
    /// The thread watches the descriptor, for one event.
    Armed,
    /// The event came.
    Ready,
    /// The thread has ended.
    Failed,
}

impl Entry {
    fn set(&self, interest: Interest) {
        *self.interest.lock() = interest;
        self.relay.wake();
    }
}

/// The thread, as seen by its notifiers.
#[derive(Debug)]
struct Watcher {
    shared: Arc<Shared>,
    process: Process,
    // The thread ends when this is closed: when the last notifier is dropped.
    _open: PipeWriter,
}

static WATCHER: PerProcess<Mutex<Weak<Watcher>>> = PerProcess::new(Mutex::default);

impl Watcher {
    /// The running thread, or a new one.
    fn current() -> io::Result<Arc<Self>> {
        let mut current = WATCHER.get().lock();
        if let Some(watcher) = current.upgrade()
            && watcher.shared.entries.lock().is_some()
        {
            return Ok(watcher);
        }
        let watcher = Arc::new(Self::start()?);
        *current = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let shared = Arc::new(Shared {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            entries: Mutex::new(Some(Entries::default())),
        });
        // No flags are needed: `EPOLLHUP` is always reported.
        let data = EventData::new_u64(CLOSED);
        epoll::add(&shared.epoll, &reader, data, EventFlags::empty())?;
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("verbs-notifier".to_owned());
        thread.spawn(move || watch(&watched, &reader))?;
        Ok(Self {
            shared,
            process: Process::current(),
            _open: writer,
        })
    }
}

/// State shared by the thread and its notifiers.
#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    // `None` once the thread has ended.
    entries: Mutex<Option<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    // The last id that was given out.
    id: u64,
    by_id: HashMap<u64, Arc<Entry>>,
}

/// The event that ends the thread; no entry has this number.
const CLOSED: u64 = 0;

impl Shared {
    fn register(&self, entry: &Arc<Entry>) -> io::Result<u64> {
        let mut entries = self.entries.lock();
        let entries = entries.as_mut().ok_or_else(ended)?;
        let id = entries.id + 1;
        let data = EventData::new_u64(id);
        // Without flags a hang-up is still reported, but once at most.
        epoll::add(&self.epoll, &entry.descriptor, data, EventFlags::ONESHOT)?;
        entries.id = id;
        entries.by_id.insert(id, Arc::clone(entry));
        Ok(id)
    }

    fn arm(&self, id: u64, entry: &Entry) -> io::Result<()> {
        let data = EventData::new_u64(id);
        let once = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::modify(&self.epoll, &entry.descriptor, data, once)?)
    }

    fn deregister(&self, id: u64, entry: &Entry) {
        let known = self
            .entries
            .lock()
            .as_mut()
            .and_then(|entries| entries.by_id.remove(&id));
        // The descriptor is a duplicate: closing it alone would leave it in the epoll set.
        if let Err(error) = epoll::delete(&self.epoll, &entry.descriptor) {
            wake::log_error(format_args!(
                "cannot remove a descriptor from an epoll set: {error}"
            ));
        }
        drop(known);
    }

    fn find(&self, id: u64) -> Option<Arc<Entry>> {
        let entries = self.entries.lock();
        entries.as_ref()?.by_id.get(&id).map(Arc::clone)
    }
}

fn watch(shared: &Shared, _closed: &PipeReader) {
    let _ended = Ended(shared);
    let mut events = [const { MaybeUninit::uninit() }; 64];
    loop {
        let events = match epoll::wait(&shared.epoll, &mut events, None) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => continue,
            Err(error) => {
                wake::log_error(format_args!(
                    "the notifier thread fails, since it cannot wait for events: {error}"
                ));
                return;
            }
        };
        for event in events {
            match event.data.u64() {
                CLOSED => return,
                // `None` if the notifier was dropped meanwhile.
                id => {
                    if let Some(entry) = shared.find(id) {
                        entry.set(Interest::Ready);
                    }
                }
            }
        }
    }
}

/// Reports to all waiters, on drop, that the thread has ended.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let entries = self.0.entries.lock().take();
        for entry in entries
            .into_iter()
            .flat_map(|left| left.by_id.into_values())
        {
            entry.set(Interest::Failed);
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the notifier thread has ended")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll sets")]
    fn waiters_get_an_error_when_the_thread_ends() {
        let (reader, _writer) = io::pipe().unwrap();
        let watcher = Arc::new(Watcher::start().unwrap());
        let notifier = ThreadNotifier::watched_by(Arc::clone(&watcher), &reader).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(notifier.poll_readable(&mut cx).is_pending());
        drop(Ended(&watcher.shared));
        assert!(woken.0.load(Ordering::Relaxed));
        for _ in 0..2 {
            let polled = notifier.poll_readable(&mut cx);
            assert!(matches!(polled, Poll::Ready(Err(_))));
        }
        ThreadNotifier::watched_by(watcher, &reader).unwrap_err();
    }
}
