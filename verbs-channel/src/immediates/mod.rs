//! Counters of immediates: how far a peer's writes have come.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use count::Count;

mod atomic;
mod count;

/// Counters of the immediates that peers send. They show when a whole transfer has been written to
/// this side's memory.
///
/// A counter's [`immediate`](ImmediateCounter::immediate) is sent to the peer, which puts it in each write
/// with immediate. The receiver [records](Self::record) the immediate of each completion, and tasks or
/// threads wait until a counter reaches a number. When a counter is dropped, its generation ends: an
/// immediate that arrives later is [stale](Self::record), and never counts for another counter.
///
/// An immediate has the counter's index in its lower bits: those that [`new`](Self::new) needs, and
/// at least 2. The other bits, 16 or more, are the generation. A counter that is dropped gives its
/// index to a later one, under the next generation. After the last generation, the 65,536th or a later one, the index
/// is retired: no immediate is used twice before [`recycle`](Self::recycle).
///
/// Recording takes no lock, unless it wakes a task, and allocates nothing. The counters need no
/// runtime, and can be awaited on any. Cloning is cheap, and shares the counters.
///
/// ```
/// use verbs_channel::immediates::ImmediateCounters;
///
/// let counters = ImmediateCounters::new(64);
/// let transfer = counters.begin().ok_or("too many at once")?;
/// let immediate = transfer.immediate(); // To the peer.
///
/// // For each completion of a write with immediate: `success.imm_data()`.
/// assert!(counters.record(immediate));
/// assert_eq!(transfer.count(), 1);
/// assert!(transfer.wait(1, None));
/// drop(transfer);
/// assert!(!counters.record(immediate), "it is stale");
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone)]
pub struct ImmediateCounters {
    shared: Arc<Shared>,
}

struct Shared {
    counts: Box<[Count]>,
    index_bits: u32,
    free: Mutex<Free>,
}

/// The indices that no counter has, and the next generation of each.
struct Free {
    indices: VecDeque<u32>,
    retired: Vec<u32>,
    next: Box<[u32]>,
}

/// A counter of the immediates of one transfer, from [`ImmediateCounters`].
///
/// Created by [`ImmediateCounters::begin`]. Dropping it ends its generation.
pub struct ImmediateCounter {
    shared: Arc<Shared>,
    index: u32,
    generation: u32,
}

impl ImmediateCounters {
    /// Creates `counters` counters, which can all be in use at once; 0 counts as 1.
    #[must_use]
    pub fn new(counters: u16) -> Self {
        let counters = u32::from(counters.max(1));
        let index_bits = (u32::BITS - (counters - 1).leading_zeros()).max(2);
        let free = Free {
            indices: (0..counters).collect(),
            retired: Vec::with_capacity(counters as usize),
            next: (0..counters).map(|_| 0).collect(),
        };
        let shared = Shared {
            counts: (0..counters).map(|_| Count::new()).collect(),
            index_bits,
            free: Mutex::new(free),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Begins a counter at 0; `None` if all counters are in use, or retired.
    #[must_use]
    pub fn begin(&self) -> Option<ImmediateCounter> {
        let mut free = self.shared.lock();
        let index = free.indices.pop_front()?;
        let next = free.next.get_mut(index as usize)?;
        let generation = *next;
        *next += 1;
        drop(free);
        self.shared.count(index)?.begin(generation);
        Some(ImmediateCounter {
            shared: Arc::clone(&self.shared),
            index,
            generation,
        })
    }

    /// Counts an immediate, and returns `true`; `false` if it is stale: there is no such counter, or it was dropped.
    ///
    /// Everything that is visible to this thread is visible to each thread that sees the new count.
    /// This includes the bytes that the device wrote before the completion that was polled.
    #[inline]
    #[must_use = "an immediate may be another's, or of a transfer that was given up"]
    pub fn record(&self, immediate: u32) -> bool {
        let index = immediate & ((1 << self.shared.index_bits) - 1);
        let generation = immediate >> self.shared.index_bits;
        let count = self.shared.count(index);
        count.is_some_and(|count| count.record(generation))
    }

    /// Makes retired counters available again, from their first generation.
    ///
    /// Call this only when no immediate of a dropped counter can arrive any more, for example when
    /// the channels of that time are closed. Such an immediate might count for a later counter.
    pub fn recycle(&self) {
        let mut free = self.shared.lock();
        let Free {
            indices,
            retired,
            next,
        } = &mut *free;
        for index in retired.drain(..) {
            if let Some(next) = next.get_mut(index as usize) {
                *next = 0;
                indices.push_back(index);
            }
        }
    }
}

impl Shared {
    #[inline]
    fn count(&self, index: u32) -> Option<&Count> {
        self.counts.get(index as usize)
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ImmediateCounter {
    /// The immediate that the peer puts in its writes.
    #[must_use]
    pub fn immediate(&self) -> u32 {
        (self.generation << self.shared.index_bits) | self.index
    }

    /// How many immediates have been recorded. Data that was written before them is visible.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.shared.count(self.index).map_or(0, Count::get)
    }

    /// Waits until this many immediates have been recorded; `false` if `deadline` passes first.
    ///
    /// Another thread records them: this one polls no queue.
    #[must_use = "the deadline may have passed"]
    pub fn wait(&self, count: u32, deadline: Option<Instant>) -> bool {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut reached = self.reached(count);
        let mut cx = Context::from_waker(&waker);
        loop {
            if Pin::new(&mut reached).poll(&mut cx).is_ready() {
                return true;
            }
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => return false,
                Some(left) => thread::park_timeout(left),
            }
        }
    }

    /// Waits until this many immediates have been recorded. Dropping the future has no effect, and
    /// any number of tasks can wait.
    pub const fn reached(&self, count: u32) -> impl Future<Output = ()> + Unpin {
        Reached {
            counter: self,
            count,
            key: None,
        }
    }
}

impl Drop for ImmediateCounter {
    fn drop(&mut self) {
        if let Some(count) = self.shared.count(self.index) {
            count.end();
        }
        let is_last = self.generation == u32::MAX >> self.shared.index_bits;
        let mut free = self.shared.lock();
        if is_last {
            free.retired.push(self.index);
        } else {
            free.indices.push_back(self.index);
        }
    }
}

/// Ready when a number of immediates has been recorded.
struct Reached<'c> {
    counter: &'c ImmediateCounter,
    count: u32,
    key: Option<u64>,
}

impl Future for Reached<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self {
            counter,
            count,
            key,
        } = &mut *self;
        match counter.shared.count(counter.index) {
            Some(counted) => counted.poll(*count, key, cx.waker()),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && let Some(count) = self.counter.shared.count(self.counter.index)
        {
            count.cancel(key);
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl fmt::Debug for ImmediateCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImmediateCounters")
            .field("counters", &self.shared.counts.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ImmediateCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImmediateCounter")
            .field("immediate", &self.immediate())
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
