//! The free items of a pool: a stack without a lock, which also finds out when all are back.
//!
//! A lock is taken only while tasks wait for an item: then there is none on the stack, and those that
//! come back are given to the tasks, in the order in which they came.
#![expect(unsafe_code, reason = "the last item to come back may free the list")]

use std::ptr::NonNull;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use super::atomic::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, discard, wake};
use super::wait_queue::Waiting;

/// The free items of a pool, by their index.
///
/// The items are copies of pointers or the like; each is with one owner, or free. When the pool has no
/// user any more the list is [closed](Self::close). From then on it counts the items that come back,
/// instead of keeping a count of those that are taken: to take and to give back an item is one atomic
/// operation each.
#[derive(Debug)]
pub(crate) struct FreeList<T> {
    // The index of the top, and above it how often an item was taken: if others take items while a
    // thread is about to, its exchange fails, even if the same item is on top again.
    head: AtomicUsize,
    // The bits of an index in `head`. All of them set is no item, and tasks that wait for one. The
    // number below is a closed list, and the number below that is no item.
    mask: usize,
    links: Box<[Link<T>]>,
    // Items of a closed list that are not back. Below zero, in wrapping arithmetic, while it is
    // being closed.
    missing: AtomicUsize,
    // The task that waits first changes `head` from no item, and the last one changes it back: both
    // while it is locked. Who gives an item to a task keeps it alive: the list may be freed then.
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
struct Link<T> {
    // The index of the item below, of one that is free.
    below: AtomicUsize,
    item: T,
}

impl<T: Copy> FreeList<T> {
    /// A list of which all items are free. The first is taken first.
    pub(crate) fn new(items: impl ExactSizeIterator<Item = T>) -> Self {
        // Three numbers are no indices.
        let mask = (items.len() + 3).next_power_of_two() - 1;
        let (count, none) = (items.len(), mask - 2);
        let link = |(index, item)| {
            let below = if index + 1 < count { index + 1 } else { none };
            Link {
                below: AtomicUsize::new(below),
                item,
            }
        };
        Self {
            head: AtomicUsize::new(if count > 0 { 0 } else { none }),
            mask,
            links: items.enumerate().map(link).collect(),
            missing: AtomicUsize::new(0),
            waiting: Arc::new(Mutex::new(Waiting::new())),
        }
    }

    /// Takes a free item; `None` if there is none.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<T> {
        // Acquire: the item is as it was when it was given back. Every later change of `head` is a
        // read-modify-write, so it continues the release sequence of the push.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = self.links.get(head & self.mask)?;
            // If the item was taken meanwhile this is any number, and the exchange fails.
            let below = top.below.load(Ordering::Relaxed);
            let next = (head | self.mask).wrapping_add(1) | below;
            let taken =
                self.head
                    .compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire);
            match taken {
                Ok(_) => return Some(top.item),
                Err(now) => head = now,
            }
        }
    }

    /// Gives back the item with this index. Returns `true` if the list is closed and this was the last
    /// item: then nothing else refers to the list.
    ///
    /// # Safety
    ///
    /// - The list is alive. Another thread may free it as soon as the item is back.
    /// - The item was taken, and has not been given back since.
    #[inline(always)]
    pub(crate) unsafe fn push(this: NonNull<Self>, index: usize) -> bool {
        // SAFETY: the caller promises that the list is alive; it is not used after the exchange. It
        // is not an argument, which would have to stay valid until this returns.
        let list = unsafe { this.as_ref() };
        let mut head = list.head.load(Ordering::Relaxed);
        loop {
            let top = head & list.mask;
            if top >= list.mask - 1 {
                // SAFETY: the caller promises a living list, and that the item has not been given
                // back yet.
                match unsafe { Self::push_off_stack(this, index) } {
                    Some(is_last) => return is_last,
                    None => {
                        head = list.head.load(Ordering::Relaxed);
                        continue;
                    }
                }
            }
            if let Some(link) = list.links.get(index) {
                link.below.store(top, Ordering::Relaxed);
            }
            // Release: who takes it sees what was done to it, and the link.
            let given = list.head.compare_exchange_weak(
                head,
                head - top + index,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match given {
                Ok(_) => return false,
                Err(now) => head = now,
            }
        }
    }

    /// Gives back an item to a closed list, or gives it to a task that waits: as
    /// [`push`](Self::push). `None` if neither is the case any more.
    ///
    /// # Safety
    ///
    /// - Those of [`push`](Self::push).
    #[cold]
    #[inline(never)]
    unsafe fn push_off_stack(this: NonNull<Self>, index: usize) -> Option<bool> {
        // SAFETY: the caller promises that the list is alive; it is not used after the item is
        // back, or the lock is free.
        let list = unsafe { this.as_ref() };
        if list.head.load(Ordering::Relaxed) & list.mask == list.mask - 1 {
            // AcqRel: the last one sees what all others did to their items.
            return Some(list.missing.fetch_sub(1, Ordering::AcqRel) == 1);
        }
        let waiting = Arc::clone(&list.waiting);
        let mut waiting = lock(&waiting);
        let waker = waiting.give(index)?;
        list.settle(&waiting);
        drop(waiting);
        wake(waker);
        Some(false)
    }

    /// Takes a free item, or waits for one. The place is `None` at first, and is of this call and those
    /// that follow it.
    #[inline]
    pub(crate) fn poll_pop(&self, place: &mut Option<u64>, context: &Context<'_>) -> Poll<T> {
        if place.is_none()
            && let Some(item) = self.pop()
        {
            return Poll::Ready(item);
        }
        self.wait(place, context)
    }

    #[cold]
    fn wait(&self, place: &mut Option<u64>, context: &Context<'_>) -> Poll<T> {
        // Wakers are cloned and dropped without the lock.
        let mut waker = context.waker().clone();
        let mut waiting = lock(&self.waiting);
        if let Some(number) = *place {
            if !waiting.is_given(number, &mut waker) {
                drop(waiting);
                drop(waker);
                return Poll::Pending;
            }
            *place = None;
            let given = waiting.remove(number).and_then(|(item, _)| item);
            drop(waiting);
            // With the item in hand, which a panic would lose.
            discard(waker);
            let link = given.and_then(|index| self.links.get(index));
            return link.map_or(Poll::Pending, |link| Poll::Ready(link.item));
        }
        loop {
            let head = self.head.load(Ordering::Relaxed);
            let (top, none) = (head & self.mask, self.mask - 2);
            if top >= self.mask - 1 {
                break;
            }
            if top == none {
                let waits = head | self.mask;
                let waits =
                    self.head
                        .compare_exchange(head, waits, Ordering::Relaxed, Ordering::Relaxed);
                if waits.is_ok() {
                    break;
                }
            } else if let Some(item) = self.pop() {
                drop(waiting);
                discard(waker);
                return Poll::Ready(item);
            }
        }
        *place = Some(waiting.add(waker));
        Poll::Pending
    }

    /// Ends the wait of a task. Returns the index of the item that it was given, which is to be given
    /// back.
    pub(crate) fn stop_waiting(&self, place: u64) -> Option<usize> {
        let mut waiting = lock(&self.waiting);
        let (item, waker) = waiting.remove(place)?;
        self.settle(&waiting);
        drop(waiting);
        discard(waker);
        item
    }

    /// If no task waits any more, items are put on the stack again.
    fn settle(&self, waiting: &MutexGuard<'_, Waiting>) {
        let head = self.head.load(Ordering::Relaxed);
        if waiting.is_over() && head & self.mask == self.mask {
            // It fails if the list is closed meanwhile.
            let _is_open =
                self.head
                    .compare_exchange(head, head - 2, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Closes the list: no item is taken any more. Returns `true` if all items are free: then nothing
    /// else refers to the list.
    ///
    /// # Safety
    ///
    /// - The list is alive. Another thread may free it as soon as this has counted the items.
    /// - This is the first call.
    pub(crate) unsafe fn close(this: NonNull<Self>) -> bool {
        // SAFETY: the caller promises that the list is alive; it is not used after the addition. It
        // is not an argument, which would have to stay valid until this returns.
        let list = unsafe { this.as_ref() };
        let head = list.head.swap(list.mask - 1, Ordering::AcqRel);
        // Nothing changes the links of free items now.
        let missing = list.links.len() - list.count_from(head & list.mask);
        let before = list.missing.fetch_add(missing, Ordering::AcqRel);
        before.wrapping_add(missing) == 0
    }

    /// How many items are free: by counting them, while other threads may take some.
    pub(crate) fn len(&self) -> usize {
        self.count_from(self.head.load(Ordering::Acquire) & self.mask)
    }

    fn count_from(&self, first: usize) -> usize {
        let first = self.links.get(first);
        let all = std::iter::successors(first, |link| {
            self.links.get(link.below.load(Ordering::Relaxed))
        });
        // Links that change meanwhile may form a ring.
        all.take(self.links.len()).count()
    }

    /// How many items there are.
    pub(crate) const fn capacity(&self) -> usize {
        self.links.len()
    }

    /// All items, free or taken.
    pub(crate) fn items(&self) -> impl Iterator<Item = T> {
        self.links.iter().map(|link| link.item)
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
