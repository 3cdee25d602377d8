//! The queues of a completion channel: their listeners, and how many events to expect.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::task::sync::Mutex;

/// The queues of a completion channel by their keys, each with a listener.
pub(crate) struct Queues<L> {
    entries: HashMap<usize, Entry<L>>,
    // How many entries are armed.
    armed: usize,
    // Why there are no more events.
    pub(super) failed: Option<Arc<io::Error>>,
}

struct Entry<L> {
    // `None` until it is set.
    listener: Option<L>,
    armed: bool,
}

impl<L: Clone> Queues<L> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            armed: 0,
            failed: None,
        }
    }

    /// Registers a queue. `false` if it is registered already.
    #[must_use]
    pub(crate) fn add(&mut self, key: usize) -> bool {
        let known = self.entries.contains_key(&key);
        self.entries.entry(key).or_insert(Entry {
            listener: None,
            armed: false,
        });
        !known
    }

    /// Sets the listener of a queue.
    pub(crate) fn listen(&mut self, key: usize, listener: L) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.listener = Some(listener);
        }
    }

    pub(crate) fn remove(&mut self, key: usize) {
        let entry = self.entries.remove(&key);
        if entry.is_some_and(|entry| entry.armed) {
            self.armed -= 1;
        }
    }

    /// Records that a queue is about to be armed. This is done first, so that its event does not
    /// find it unarmed.
    pub(crate) fn arm(&mut self, key: usize) -> Result<(), Arc<io::Error>> {
        if let Some(error) = &self.failed {
            return Err(Arc::clone(error));
        }
        if let Some(entry) = self.entries.get_mut(&key)
            && !entry.armed
        {
            entry.armed = true;
            self.armed += 1;
        }
        Ok(())
    }

    /// Records that there are no more events; returns all listeners.
    pub(crate) fn fail(&mut self, error: Arc<io::Error>) -> Vec<L> {
        self.failed = Some(error);
        let entries = self.entries.values();
        entries.filter_map(|entry| entry.listener.clone()).collect()
    }

    /// Records an event; returns the listener of its queue, and how many queues are still armed.
    fn take_event(&mut self, key: usize) -> (Option<L>, usize) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return (None, self.armed);
        };
        if entry.armed {
            entry.armed = false;
            self.armed -= 1;
        }
        (entry.listener.clone(), self.armed)
    }
}

/// Takes an event for each armed queue, or all there are.
///
/// An armed queue raises one event, so looking for more would be a wasted system call. If a queue
/// is armed meanwhile, the notifier reports its event again.
pub(crate) fn take_events<L: Clone, Q>(
    queues: &Mutex<Queues<L>>,
    next: impl Fn() -> io::Result<Option<Q>>,
    key: impl Fn(&Q) -> usize,
    dispatch: impl Fn(L),
) -> io::Result<()> {
    // A queue may be removed before its event is taken, and a later one may have its key. That one's
    // listener is called once too often, and the notifier reports its own event again.
    while let Some(queue) = next()? {
        let (listener, left) = queues.lock().take_event(key(&queue));
        if let Some(listener) = listener {
            dispatch(listener);
        }
        if left == 0 {
            break;
        }
    }
    Ok(())
}
