//! The free items of a pool: a stack without a lock, which also finds out when all are back.
#![expect(unsafe_code, reason = "the last item to come back may free the list")]

use std::ptr::NonNull;

use super::atomic::{AtomicUsize, Ordering};

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
    // The bits of an index in `head`. All of them set is no item; the number below is a closed list.
    mask: usize,
    links: Box<[Link<T>]>,
    // Of a closed list: items that are not back. Below zero, in wrapping arithmetic, while it is being
    // closed.
    missing: AtomicUsize,
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
        // Two numbers are no indices.
        let mask = (items.len() + 2).next_power_of_two() - 1;
        let count = items.len();
        let link = |(index, item)| {
            let below = if index + 1 < count { index + 1 } else { mask };
            Link {
                below: AtomicUsize::new(below),
                item,
            }
        };
        Self {
            head: AtomicUsize::new(if count > 0 { 0 } else { mask }),
            mask,
            links: items.enumerate().map(link).collect(),
            missing: AtomicUsize::new(0),
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
    pub(crate) unsafe fn push(list: NonNull<Self>, index: usize) -> bool {
        // SAFETY: the caller's promise; it is not used after the exchange. It is not an argument, which
        // would have to stay valid until this returns.
        let list = unsafe { list.as_ref() };
        let mut head = list.head.load(Ordering::Relaxed);
        loop {
            let top = head & list.mask;
            if top == list.mask - 1 {
                // AcqRel: the last one sees what all others did to their items.
                return list.missing.fetch_sub(1, Ordering::AcqRel) == 1;
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

    /// Closes the list: no item is taken any more. Returns `true` if all items are free: then nothing
    /// else refers to the list. It is called once.
    pub(crate) fn close(&self) -> bool {
        let head = self.head.swap(self.mask - 1, Ordering::AcqRel);
        // Nothing changes the links of free items now.
        let missing = self.links.len() - self.count_from(head & self.mask);
        let before = self.missing.fetch_add(missing, Ordering::AcqRel);
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
