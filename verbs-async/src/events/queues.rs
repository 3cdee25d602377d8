//! Which queues await an event: whom to tell, and how many events to look for.

use std::collections::HashMap;
use std::io;

use crate::sync::Mutex;

/// The queues on a completion channel, by their keys, each with a listener.
pub(crate) struct Queues<L> {
    entries: HashMap<usize, Entry<L>>,
    // How many of them are.
    armed: usize,
    // Why nothing is announced any more.
    lost: Option<io::ErrorKind>,
}

struct Entry<L> {
    // None until it listens.
    listener: Option<L>,
    armed: bool,
}

impl<L: Clone> Queues<L> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            armed: 0,
            lost: None,
        }
    }

    /// Takes a queue in. `false` if it is here already.
    #[must_use]
    pub(crate) fn add(&mut self, key: usize) -> bool {
        let known = self.entries.contains_key(&key);
        self.entries.entry(key).or_insert(Entry {
            listener: None,
            armed: false,
        });
        !known
    }

    /// Says who is to hear of a queue's events.
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

    /// Notes that a queue is going to be armed: before it is, so that its event does not come to one
    /// that awaits none.
    pub(crate) fn arm(&mut self, key: usize) -> io::Result<()> {
        if let Some(kind) = self.lost {
            return Err(kind.into());
        }
        if let Some(entry) = self.entries.get_mut(&key)
            && !entry.armed
        {
            entry.armed = true;
            self.armed += 1;
        }
        Ok(())
    }

    /// Notes that nothing will be announced any more; all who are to hear of it.
    pub(crate) fn lose(&mut self, kind: io::ErrorKind) -> Vec<L> {
        self.lost = Some(kind);
        let entries = self.entries.values();
        entries.filter_map(|entry| entry.listener.clone()).collect()
    }

    /// Who hears of a queue's event, and how many others are still armed.
    fn had_event(&mut self, key: usize) -> (Option<L>, usize) {
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

/// Takes as many events as queues are armed, or all there are.
///
/// An armed queue has one event, so looking for more would be a system call for nothing. What comes
/// for one that is armed meanwhile is told by the notifier once more.
pub(crate) fn take_events<L: Clone, Q>(
    queues: &Mutex<Queues<L>>,
    next: impl Fn() -> io::Result<Option<Q>>,
    key: impl Fn(&Q) -> usize,
    tell: impl Fn(L),
) -> io::Result<()> {
    // A queue may end before its event is dealt with, and a later one have its key: that one is told
    // once for nothing, and its own event is told by the notifier once more.
    while let Some(queue) = next()? {
        let (listener, left) = queues.lock().had_event(key(&queue));
        if let Some(listener) = listener {
            tell(listener);
        }
        if left == 0 {
            break;
        }
    }
    Ok(())
}
