//! Readiness by a thread of our own, for programs without a runtime.
//!
//! One thread serves all notifiers: it begins with the first and ends with the last. It sleeps in
//! `epoll_wait(2)`, where a descriptor is watched for one event at a time and only while somebody
//! waits for it: one that is readable and that nobody reads costs nothing.

use std::collections::HashMap;
use std::future::{self, Future};
use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::{process, thread};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::CqNotifier;
use super::relay::Relay;
use crate::sync::Mutex;

/// Tells by a thread that all notifiers of this kind share; needs no runtime.
///
/// The thread runs as long as there is such a notifier. It runs the wakers that it wakes: one that
/// does work, and does not just say that there is some, holds up the others.
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
    /// `EMFILE` and the like; `EAGAIN` if no thread can be had.
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
            // Held while the event is asked for, so that what comes of it is noted afterwards.
            let mut interest = entry.interest.lock();
            match *interest {
                Interest::Asked => Poll::Pending,
                Interest::Told => {
                    *interest = Interest::None;
                    Poll::Ready(Ok(()))
                }
                Interest::None => {
                    watcher.shared.ask(*id, entry)?;
                    *interest = Interest::Asked;
                    Poll::Pending
                }
                Interest::Over => Poll::Ready(Err(over())),
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
        // The child of a fork shares the parent's epoll: it would be the parent's that is forgotten.
        if self.watcher.process == process::id() {
            self.watcher.shared.forget(self.id, &self.entry);
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
    /// Nobody waits.
    None,
    /// The thread watches it, for one event.
    Asked,
    /// The event came.
    Told,
    /// There is no thread any more.
    Over,
}

impl Entry {
    fn tell(&self, news: Interest) {
        *self.interest.lock() = news;
        self.relay.wake();
    }
}

/// The thread, as its notifiers hold it.
#[derive(Debug)]
struct Watcher {
    shared: Arc<Shared>,
    process: u32,
    // The thread ends when this is closed, which the last notifier does.
    _open: PipeWriter,
}

static WATCHER: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());

impl Watcher {
    /// The one that runs, or a new one.
    fn current() -> io::Result<Arc<Self>> {
        let mut current = WATCHER.lock();
        if let Some(watcher) = current.upgrade() {
            // The child of a fork has its parent's memory, but not its threads.
            if watcher.process == process::id() && watcher.shared.entries.lock().is_some() {
                return Ok(watcher);
            }
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
        // That the other end was closed is told without being asked for.
        let data = EventData::new_u64(CLOSED);
        epoll::add(&shared.epoll, &reader, data, EventFlags::empty())?;
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("verbs-notifier".to_owned());
        thread.spawn(move || watch(&watched, &reader))?;
        Ok(Self {
            shared,
            process: process::id(),
            _open: writer,
        })
    }
}

/// What the thread and its notifiers share.
#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    // None once the thread has ended.
    entries: Mutex<Option<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    // Of the last that was registered.
    id: u64,
    by_id: HashMap<u64, Arc<Entry>>,
}

/// The event that ends the thread; no entry has this number.
const CLOSED: u64 = 0;

impl Shared {
    fn register(&self, entry: &Arc<Entry>) -> io::Result<u64> {
        let mut entries = self.entries.lock();
        let entries = entries.as_mut().ok_or_else(over)?;
        let id = entries.id + 1;
        let data = EventData::new_u64(id);
        // Even then a hang-up is told, but once at most.
        epoll::add(&self.epoll, &entry.descriptor, data, EventFlags::ONESHOT)?;
        entries.id = id;
        entries.by_id.insert(id, Arc::clone(entry));
        Ok(id)
    }

    fn ask(&self, id: u64, entry: &Entry) -> io::Result<()> {
        let data = EventData::new_u64(id);
        let once = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::modify(&self.epoll, &entry.descriptor, data, once)?)
    }

    fn forget(&self, id: u64, entry: &Entry) {
        let known = self
            .entries
            .lock()
            .as_mut()
            .and_then(|entries| entries.by_id.remove(&id));
        // The descriptor is a duplicate: closing it alone would leave it watched.
        if let Err(error) = epoll::delete(&self.epoll, &entry.descriptor) {
            log::error!("a descriptor is still watched: {error}");
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
        let told = match epoll::wait(&shared.epoll, &mut events, None) {
            Ok((told, _)) => told,
            Err(Errno::INTR) => continue,
            Err(error) => {
                log::error!("the notifiers' thread cannot wait: {error}");
                return;
            }
        };
        for event in told {
            match event.data.u64() {
                CLOSED => return,
                // One that was dropped meanwhile is told nothing.
                id => {
                    if let Some(entry) = shared.find(id) {
                        entry.tell(Interest::Told);
                    }
                }
            }
        }
    }
}

/// Tells who still waits that the thread has ended.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let entries = self.0.entries.lock().take();
        for entry in entries
            .into_iter()
            .flat_map(|left| left.by_id.into_values())
        {
            entry.tell(Interest::Over);
        }
    }
}

fn over() -> io::Error {
    io::Error::other("the notifiers' thread has ended")
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
    fn who_waits_when_the_thread_ends_is_told() {
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
