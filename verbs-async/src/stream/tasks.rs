//! The two tasks of a stream, one that reads and one that writes, and how they are woken.
//!
//! A task that polls one half may find what the other half's task waits for. That task is woken
//! without a lock of this crate. If the stream is undivided, the caller may hold a lock of its own,
//! as in `tokio::io::split`. The other task takes that lock when it is polled, and a waker may poll
//! in place. So a helper thread wakes it, unless both are the same task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::half::{Half, Halves};
use crate::task::sync::Mutex;
use crate::task::wake;
use crate::threads;

/// An event of the operations of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Arrival,
    Sent,
}

/// The tasks that wait for a stream.
#[derive(Debug)]
pub(super) struct Tasks {
    inner: Mutex<Inner>,
    /// The stream is not split: both halves are polled by calls on the whole.
    is_undivided: AtomicBool,
    /// Whether data to be sent waits for operations in flight.
    is_urgent: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: [Slot; 2],
    /// The undivided stream is being polled.
    is_polled: bool,
    /// When a helper thread will drive the stream.
    drive_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Kept when no task waits: the next to wait may be the same.
    waker: Option<Waker>,
    waits: bool,
    /// It is woken when the poll in progress ends.
    is_due: bool,
}

impl Tasks {
    /// The tasks of a stream that sets `is_urgent` when what is to be sent waits for operations in
    /// flight.
    pub(super) fn new(is_urgent: Arc<AtomicBool>) -> Self {
        Self {
            inner: Mutex::default(),
            is_undivided: AtomicBool::new(true),
            is_urgent,
        }
    }

    /// Whether the halves are polled by calls on the whole stream.
    pub(super) fn set_undivided(&self, is_undivided: bool) {
        self.is_undivided.store(is_undivided, Ordering::Relaxed);
    }

    pub(super) fn is_undivided(&self) -> bool {
        self.is_undivided.load(Ordering::Relaxed)
    }

    /// Begins a poll. Its task is woken when something happens from now on.
    pub(super) fn begin_poll(&self, half: Half, waker: &Waker) {
        // A waker is not cloned or dropped under the lock: that runs foreign code.
        let waker = waker.clone();
        let mut inner = self.inner.lock();
        inner.is_polled = self.is_undivided();
        let slot = &mut inner.slots[half as usize];
        slot.waits = true;
        let replaced = slot.waker.replace(waker);
        drop(inner);
        wake::drop_guarded(replaced);
    }

    /// Begins a call of a task that does not wait, which lasts until [`end_poll`](Self::end_poll).
    pub(super) fn begin_call(&self) {
        self.inner.lock().is_polled = self.is_undivided();
    }

    /// Ends a poll of a task with this waker. If it is ready, the half's task does not wait.
    pub(super) fn end_poll(&self, ready: Option<Half>, waker: Option<&Waker>) {
        let mut inner = self.inner.lock();
        inner.is_polled = false;
        if let Some(half) = ready {
            let slot = &mut inner.slots[half as usize];
            (slot.waits, slot.is_due) = (false, false);
        }
        if !inner.slots.iter().any(|slot| slot.is_due) {
            return;
        }
        let due = inner.slots.each_mut().map(|slot| {
            let is_due = std::mem::take(&mut slot.is_due);
            slot.waker.take_if(|_| is_due)
        });
        drop(inner);
        for due in due.into_iter().flatten() {
            if waker.is_some_and(|waker| due.will_wake(waker)) {
                wake::wake_all([due]);
            } else {
                // On this thread if there is no other: that is better than never.
                threads::detach(move || wake::wake_all([due]));
            }
        }
    }

    /// Removes a half that was dropped: no task waits for it.
    pub(super) fn remove(&self, half: Half) {
        let slot = std::mem::take(&mut self.inner.lock().slots[half as usize]);
        wake::drop_guarded(slot);
    }

    /// Wakes the tasks of these halves.
    pub(super) fn wake(&self, halves: Halves) {
        let mut inner = self.inner.lock();
        let (wakers, _) = inner.take_wakers(halves);
        drop(inner);
        wake::wake_all(wakers.into_iter().flatten());
    }

    /// Handles an event, which the first task to be woken finds. Returns when a helper thread
    /// is to drive the stream, in case no task does.
    pub(super) fn on_event(&self, event: Event) -> Option<Instant> {
        let is_urgent = self.is_urgent.load(Ordering::Relaxed);
        let is_arrival = event == Event::Arrival;
        let mut inner = self.inner.lock();
        let (wakers, any) = inner.take_wakers(Halves {
            read: is_arrival || is_urgent,
            write: true,
        });
        let mut drive_at = None;
        if is_arrival || is_urgent {
            let delay = match any {
                true => LATER,
                false if is_urgent => Duration::ZERO,
                false => SOON,
            };
            let at = Instant::now() + delay;
            if inner.drive_at.is_none_or(|coming| at < coming) {
                drive_at = Some(at);
                inner.drive_at = drive_at;
            }
        }
        drop(inner);
        wake::wake_all(wakers.into_iter().flatten());
        drive_at
    }

    /// A helper thread begins to drive the stream.
    pub(super) fn background_drive_begins(&self) {
        self.inner.lock().drive_at = None;
    }
}

impl Inner {
    /// The wakers of those halves that wait, or will when the poll in progress ends; and whether
    /// there are any.
    fn take_wakers(&mut self, halves: Halves) -> ([Option<Waker>; 2], bool) {
        let (mut wakers, mut any) = ([None, None], false);
        for ((slot, waker), wanted) in self
            .slots
            .iter_mut()
            .zip(&mut wakers)
            .zip([halves.read, halves.write])
        {
            if !wanted || !(slot.waits || slot.is_due) {
                continue;
            }
            any = true;
            slot.waits = false;
            if self.is_polled {
                slot.is_due = true;
            } else {
                *waker = slot.waker.take();
            }
        }
        (wakers, any)
    }
}

/// The delay after which a helper thread drives a stream for which no task waits. A task that
/// is busy with the data it has read often does so earlier.
const SOON: Duration = Duration::from_millis(2);

/// The same for a stream whose tasks were woken: the future that waited may have been dropped.
const LATER: Duration = Duration::from_millis(100);
