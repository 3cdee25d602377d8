//! The free items of a pool, and the tasks that wait for one.
#![expect(unsafe_code, reason = "sends pointers that stand for their items")]

use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::task::{Context, Poll};

use super::atomic::{
    ArrayQueue, AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, discard, fence, wake,
};
use super::wait_queue::Waiting;

/// An item that is free, which the list that has this owns.
#[derive(Debug)]
pub(crate) struct Free<T>(pub(crate) NonNull<T>);

// SAFETY: it owns its item, as a box does.
unsafe impl<T: Send> Send for Free<T> {}

/// The free items of a pool, taken and given back without a lock unless tasks wait for one.
#[derive(Debug)]
pub(crate) struct FreeList<T> {
    // The item that came back last, which the processor still has in its cache.
    last: AtomicPtr<T>,
    // The others.
    items: ArrayQueue<Free<T>>,
    // Tasks that wait and have not been given an item: the first of them has the next one that comes back.
    waiters: AtomicUsize,
    tasks: Mutex<Waiting<Free<T>>>,
}

impl<T> FreeList<T> {
    /// A list of which all items are free. The first is taken first.
    pub(crate) fn new(items: impl ExactSizeIterator<Item = Free<T>>) -> Self {
        let queue = ArrayQueue::new(items.len().max(1));
        // It has room for each.
        let all_fit = items
            .map(|item| queue.push(item))
            .all(|pushed| pushed.is_ok());
        debug_assert!(all_fit, "one of them was left out");
        Self {
            last: AtomicPtr::new(ptr::null_mut()),
            items: queue,
            waiters: AtomicUsize::new(0),
            tasks: Mutex::new(Waiting::new()),
        }
    }

    /// Takes a free item; `None` if there is none, or tasks wait for it.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Free<T>> {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.free()
    }

    #[inline]
    fn free(&self) -> Option<Free<T>> {
        self.replace_last(ptr::null_mut())
            .or_else(|| self.items.pop())
    }

    #[inline]
    fn replace_last(&self, by: *mut T) -> Option<Free<T>> {
        // AcqRel: who takes an item sees what was done to it.
        NonNull::new(self.last.swap(by, Ordering::AcqRel)).map(Free)
    }

    /// Gives back an item that was taken, which may wake a task.
    #[inline]
    pub(crate) fn push(&self, Free(item): Free<T>) {
        if let Some(before) = self.replace_last(item.as_ptr()) {
            let pushed = self.items.push(before);
            debug_assert!(pushed.is_ok(), "it has room for all");
        }
        // Either this thread sees the task, or the task the item.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.serve();
        }
    }

    /// Gives free items to tasks that wait, in the order in which they came.
    #[cold]
    #[inline(never)]
    fn serve(&self) {
        loop {
            let mut tasks = self.lock();
            let Some(waker) = tasks.give(|| self.free()) else {
                return;
            };
            self.count(&tasks);
            drop(tasks);
            wake(waker);
        }
    }

    /// Takes a free item, or waits for one. The place is `None` at first, and is of this call and those
    /// that follow it.
    #[inline]
    pub(crate) fn poll_pop(&self, place: &mut Option<u64>, context: &Context<'_>) -> Poll<Free<T>> {
        if place.is_none()
            && let Some(item) = self.pop()
        {
            return Poll::Ready(item);
        }
        self.wait(place, context)
    }

    #[cold]
    fn wait(&self, place: &mut Option<u64>, context: &Context<'_>) -> Poll<Free<T>> {
        // Wakers are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut tasks = self.lock();
        let (number, before) = match *place {
            Some(number) => (number, tasks.replace_waker(number, waker)),
            None => (tasks.add(waker), None),
        };
        self.count(&tasks);
        drop(tasks);
        *place = Some(number);
        before.into_iter().for_each(discard);
        // Either who gives an item back sees this task, or the task the item.
        fence(Ordering::SeqCst);
        self.serve();
        let Some((item, waker)) = self.lock().remove_given(number) else {
            return Poll::Pending;
        };
        *place = None;
        discard(waker);
        Poll::Ready(item)
    }

    /// Ends the wait of a task. An item that it was given goes to the next one, or is free.
    pub(crate) fn stop_waiting(&self, place: u64) {
        let mut tasks = self.lock();
        let removed = tasks.remove(place);
        self.count(&tasks);
        drop(tasks);
        if let Some((item, waker)) = removed {
            discard(waker);
            item.into_iter().for_each(|item| self.push(item));
        }
    }

    /// Notes how many tasks wait; for who does not lock them.
    fn count(&self, tasks: &MutexGuard<'_, Waiting<Free<T>>>) {
        self.waiters.store(tasks.len(), Ordering::Relaxed);
    }

    /// Removes the free items.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Free<T>> {
        std::iter::from_fn(|| self.free())
    }

    /// How many items there are, free or taken.
    pub(crate) fn capacity(&self) -> usize {
        self.items.capacity()
    }

    /// How many items are free.
    pub(crate) fn len(&self) -> usize {
        self.items.len() + usize::from(!self.last.load(Ordering::Relaxed).is_null())
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<Free<T>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
