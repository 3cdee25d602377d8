//! Who waits for a stream: one task that reads, and one that writes.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::sync::Mutex;

/// A task that waits, woken once each time.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Option<Waker>>);

/// Both tasks: what the peer says can concern either.
struct Both {
    reader: Arc<Waiting>,
    writer: Arc<Waiting>,
}

/// The two tasks of a stream, and what wakes them.
#[derive(Debug)]
pub(super) struct Tasks {
    pub(super) reader: Arc<Waiting>,
    pub(super) writer: Arc<Waiting>,
    /// For messages of the peer's.
    pub(super) on_arrival: Waker,
    /// For messages that were sent.
    pub(super) on_sent: Waker,
}

impl Tasks {
    pub(super) fn new() -> Self {
        let (reader, writer) = (Arc::<Waiting>::default(), Arc::<Waiting>::default());
        let both = Both {
            reader: Arc::clone(&reader),
            writer: Arc::clone(&writer),
        };
        let on_sent = Waker::from(Arc::clone(&writer));
        Self {
            reader,
            writer,
            on_arrival: Waker::from(Arc::new(both)),
            on_sent,
        }
    }
}

impl Waiting {
    pub(super) fn set(&self, waker: &Waker) {
        let waker = Some(waker.clone());
        let replaced = std::mem::replace(&mut *self.0.lock(), waker);
        drop(replaced);
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One that panics does not leave the other asleep.
        let wakers = [&self.reader, &self.writer].map(|task| task.0.lock().take());
        crate::wake::all(wakers.into_iter().flatten());
    }
}
