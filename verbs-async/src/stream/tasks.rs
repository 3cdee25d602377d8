//! The two tasks of a stream, one that reads and one that writes, and who wakes them.
//!
//! A task that polls one half may find what the other half's task waits for. That task is woken when
//! nothing of ours is locked. If the stream is undivided there may be a lock of the caller's, as in
//! `tokio::io::split`, which the other task takes when it is polled, and a waker may poll in place:
//! so the keeper wakes it, unless both are one task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::keeper;
use crate::sync::Mutex;
use crate::wake;

/// Half of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Read = 0,
    Write = 1,
}

/// What happens to the operations of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Arrival,
    Sent,
}

/// Who waits for a stream.
#[derive(Debug)]
pub(super) struct Tasks {
    inner: Mutex<Inner>,
    /// Its halves are polled by calls on the whole.
    is_undivided: AtomicBool,
    /// What is to be sent waits for what is in flight.
    is_urgent: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: [Slot; 2],
    /// The undivided stream is being polled.
    is_polled: bool,
    /// When the keeper is going to drive the stream.
    kick: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Kept when nobody waits: the next to wait may be the same.
    waker: Option<Waker>,
    waits: bool,
    /// It is to be woken when the poll in progress ends.
    is_due: bool,
}

impl Tasks {
    /// Those of a stream that says in `is_urgent` whether what is to be sent waits for what is in
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

    /// A poll begins, whose task is woken when something happens from now on.
    pub(super) fn begin(&self, half: Half, waker: &Waker) {
        if self.waits(
            half,
            |known| known.is_some_and(|known| known.will_wake(waker)),
            None,
        ) {
            return;
        }
        // A waker is not cloned or dropped under a lock: that is code of others.
        let waker = waker.clone();
        self.waits(half, |_| true, Some(waker));
    }

    fn waits(
        &self,
        half: Half,
        is_known: impl FnOnce(Option<&Waker>) -> bool,
        mut replace: Option<Waker>,
    ) -> bool {
        let mut inner = self.inner.lock();
        inner.is_polled = self.is_undivided();
        let slot = &mut inner.slots[half as usize];
        slot.waits = true;
        if replace.is_some() {
            std::mem::swap(&mut slot.waker, &mut replace);
        }
        let is_known = is_known(slot.waker.as_ref());
        drop(inner);
        wake::drop_guarded(replace);
        is_known
    }

    /// Something is done for a task that does not wait, until [`end`](Self::end).
    pub(super) fn enter(&self) {
        self.inner.lock().is_polled = self.is_undivided();
    }

    /// A poll ends, of a task with this waker; if it is ready, the half's task does not wait.
    pub(super) fn end(&self, ready: Option<Half>, waker: Option<&Waker>) {
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
                keeper::wake(due);
            }
        }
    }

    /// A half is gone: nobody waits for it.
    pub(super) fn forget(&self, half: Half) {
        let slot = std::mem::take(&mut self.inner.lock().slots[half as usize]);
        wake::drop_guarded(slot);
    }

    /// Something was found that these may wait for.
    pub(super) fn found(&self, halves: [bool; 2]) {
        let mut inner = self.inner.lock();
        let (wakers, _) = inner.wake(halves);
        drop(inner);
        wake::wake_all(wakers.into_iter().flatten());
    }

    /// Something has happened to the stream, which the first to be woken finds. When the keeper is
    /// to drive it, in case that nobody else does.
    pub(super) fn happened(&self, event: Event) -> Option<Instant> {
        let is_urgent = self.is_urgent.load(Ordering::Relaxed);
        let is_arrival = event == Event::Arrival;
        let mut inner = self.inner.lock();
        let (wakers, any) = inner.wake([is_arrival || is_urgent, true]);
        let mut kick = None;
        if is_arrival || is_urgent {
            let delay = match any {
                true => LATER,
                false if is_urgent => Duration::ZERO,
                false => SOON,
            };
            let at = Instant::now() + delay;
            if inner.kick.is_none_or(|coming| at < coming) {
                kick = Some(at);
                inner.kick = kick;
            }
        }
        drop(inner);
        wake::wake_all(wakers.into_iter().flatten());
        kick
    }

    /// The keeper drives it now.
    pub(super) fn kicked(&self) {
        self.inner.lock().kick = None;
    }
}

impl Inner {
    /// The wakers of those halves that wait, or will when the poll in progress ends; whether there
    /// are any.
    fn wake(&mut self, halves: [bool; 2]) -> ([Option<Waker>; 2], bool) {
        let (mut wakers, mut any) = ([None, None], false);
        for ((slot, waker), wanted) in self.slots.iter_mut().zip(&mut wakers).zip(halves) {
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

/// A stream whose messages no task waits for is driven by the keeper so much later, for the peer's
/// sake: a task that is busy with what it has read will often do so before.
const SOON: Duration = Duration::from_millis(2);

/// And one whose tasks were woken, after so long: the future that waited may have been dropped.
const LATER: Duration = Duration::from_millis(100);
