//! A shared receive queue, its blocks when its engine is gone, and the queue pairs that have not joined.

#![expect(
    unsafe_code,
    reason = "makes queue pairs on which no receive is posted"
)]

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use verbs_core::{
    Error, ErrorChain, PreparedQueuePair, Process, QueuePairBuilder, SharedReceiveQueue,
};

use crate::buffer::OwnedBuffer;
use crate::contained::{log_error, panics};
use crate::error::Result;

/// A shared receive queue. Each queue pair on it that this crate has is kept with an `Arc` of this, and
/// is dropped before that: so the queue is destroyed here.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    process: Process,
    // `None` only while it is being destroyed.
    srq: Option<SharedReceiveQueue>,
    // The blocks that were posted when the engine was dropped.
    left: Mutex<Vec<OwnedBuffer>>,
    claims: Mutex<Claims>,
    // How many claims have ended, to be read without the lock.
    ended: AtomicUsize,
}

/// The numbers of queue pairs that have not joined.
///
/// ```text
/// claim ──► live ── dropped ──► ended ── the completion queue has been emptied since ──► forgotten
///             └──── joined
/// ```
#[derive(Debug, Default)]
struct Claims {
    // They were prepared, and may join.
    live: Vec<u32>,
    // They will not join any more, in the order in which they ended. The completion queue may still have messages
    // of them, so no other queue pair with such a number is used.
    ended: Vec<u32>,
    // Woken when one ends.
    waker: Option<Arc<Waker>>,
}

/// A queue pair on the queue that has not joined its engine. Its messages are kept until it has, or until
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    queue: Arc<SharedQueue>,
    qp_num: u32,
}

impl SharedQueue {
    pub(crate) fn new(srq: SharedReceiveQueue) -> Arc<Self> {
        Arc::new(Self {
            process: Process::current(),
            srq: Some(srq),
            left: Mutex::default(),
            claims: Mutex::default(),
            ended: AtomicUsize::new(0),
        })
    }

    /// A queue pair on the queue.
    ///
    /// It is kept with `self`, and dropped before it.
    pub(crate) fn prepare(&self, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
        let Some(srq) = &self.srq else {
            let object = "the shared receive queue";
            return Err(Error::Destroyed { object }.into());
        };
        let builder = builder.srq(srq);
        let mut prepared = builder.build()?;
        // They exist until another number is found, so that the device does not give theirs again.
        let mut unused = Vec::new();
        while self.is_taken(prepared.qp_num()) {
            unused.push(mem::replace(&mut prepared, builder.build()?));
        }
        // SAFETY: an engine posts a receive on a queue pair only with a credit of its receive queue, and
        // this one gets none.
        Ok(unsafe { prepared.assume_own_receives() })
    }

    /// Whether there may be messages of an earlier queue pair with this number.
    fn is_taken(&self, qp_num: u32) -> bool {
        let claims = lock(&self.claims);
        claims.live.contains(&qp_num) || claims.ended.contains(&qp_num)
    }

    pub(crate) const fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Keeps blocks that the device may write to until the queue is destroyed.
    pub(crate) fn keep(&self, blocks: Vec<OwnedBuffer>) {
        // In the child of a fork the device has none, and another thread may have had the lock.
        if self.process.is_current() {
            lock(&self.left).extend(blocks);
        }
    }

    /// Adds a queue pair that may join.
    pub(crate) fn claim(self: Arc<Self>, qp_num: u32) -> Claim {
        lock(&self.claims).live.push(qp_num);
        Claim {
            queue: self,
            qp_num,
        }
    }

    /// Has this woken whenever a claim ends.
    pub(crate) fn wake_when_claims_end(&self, waker: Waker) {
        // Under the lock, none is cloned or dropped: that runs foreign code.
        let replaced = lock(&self.claims).waker.replace(Arc::new(waker));
        drop(replaced);
    }

    /// How many claims have ended, and were not [forgotten](Self::forget_ended): their queue pairs have been
    /// destroyed, and will not join any more.
    #[inline]
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    /// Forgets those that ended first, as there are no messages of them in the completion queue any more. Returns
    /// their numbers, which other queue pairs may have from now on.
    pub(crate) fn forget_ended(&self, count: usize) -> Vec<u32> {
        let mut claims = lock(&self.claims);
        let forgotten = claims.ended.drain(..count).collect();
        self.ended.store(claims.ended.len(), Ordering::Release);
        forgotten
    }

    /// This queue pair has joined: the end of its claim means nothing.
    pub(crate) fn joined(&self, qp_num: u32) {
        lock(&self.claims).live.retain(|claimed| *claimed != qp_num);
    }

    /// Whether a queue pair with this number may still join.
    pub(crate) fn is_claimed(&self, qp_num: u32) -> bool {
        lock(&self.claims).live.contains(&qp_num)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.queue.process.is_current() {
            return;
        }
        let mut claims = lock(&self.queue.claims);
        let mut live = claims.live.iter();
        // It is not there if it has joined.
        if let Some(at) = live.position(|claimed| *claimed == self.qp_num) {
            claims.live.swap_remove(at);
            claims.ended.push(self.qp_num);
            self.queue
                .ended
                .store(claims.ended.len(), Ordering::Release);
            let waker = claims.waker.clone();
            drop(claims);
            if panics(|| waker.iter().for_each(|waker| waker.wake_by_ref())) {
                log_error(format_args!(
                    "the waker for channels that were dropped panicked"
                ));
            }
        }
    }
}

impl Drop for SharedQueue {
    /// Destroys the queue, and then releases its blocks; or leaks them, if the driver fails to
    /// destroy it.
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        let blocks = mem::take(left);
        let Some(srq) = self.srq.take() else {
            return;
        };
        if let Err(error) = srq.close()
            && self.process.is_current()
        {
            let (count, error) = (blocks.len(), ErrorChain::new(&error));
            log_error(format_args!(
                "leaked {count} blocks of a shared receive queue, which the device may still write \
                 to: {error}"
            ));
            #[expect(clippy::mem_forget, reason = "the device may still write to them")]
            mem::forget(blocks);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
