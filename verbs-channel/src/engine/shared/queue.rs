//! A shared receive queue, its blocks when its engine is gone, and the queue pairs that have not joined.

#![expect(
    unsafe_code,
    reason = "makes queue pairs on which no receive is posted"
)]

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs_core::{Error, ErrorChain, PreparedQueuePair, QueuePairBuilder, SharedReceiveQueue};

use crate::buffer::OwnedBuffer;
use crate::contained::log_error;
use crate::error::Result;

/// A shared receive queue. Each queue pair on it that this crate has is kept with an `Arc` of this, and
/// is dropped before that: so the queue is destroyed here.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    // `None` only while it is being destroyed.
    srq: Option<SharedReceiveQueue>,
    // The blocks that were posted when the engine was dropped.
    left: Mutex<Vec<OwnedBuffer>>,
    // The numbers of the queue pairs that were prepared and may join.
    claims: Mutex<Vec<u32>>,
    // A claim has ended since this was taken.
    has_ended_claims: AtomicBool,
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
            srq: Some(srq),
            left: Mutex::default(),
            claims: Mutex::default(),
            has_ended_claims: AtomicBool::new(false),
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
        let prepared = builder.srq(srq).build()?;
        // SAFETY: an engine posts a receive on a queue pair only with a credit of its receive queue, and
        // this one gets none.
        Ok(unsafe { prepared.assume_own_receives() })
    }

    pub(crate) const fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Keeps blocks that the device may write to until the queue is destroyed.
    pub(crate) fn keep(&self, blocks: Vec<OwnedBuffer>) {
        lock(&self.left).extend(blocks);
    }

    /// Adds a queue pair that may join.
    pub(crate) fn claim(self: Arc<Self>, qp_num: u32) -> Claim {
        lock(&self.claims).push(qp_num);
        Claim {
            queue: self,
            qp_num,
        }
    }

    /// Whether a claim has ended since the last call.
    pub(crate) fn take_ended_claims(&self) -> bool {
        self.has_ended_claims.swap(false, Ordering::AcqRel)
    }

    /// Whether a queue pair with this number may still join.
    pub(crate) fn is_claimed(&self, qp_num: u32) -> bool {
        lock(&self.claims).contains(&qp_num)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = lock(&self.queue.claims);
        if let Some(at) = claims.iter().position(|claimed| *claimed == self.qp_num) {
            claims.swap_remove(at);
        }
        drop(claims);
        self.queue.has_ended_claims.store(true, Ordering::Release);
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
        if let Err(error) = srq.close() {
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
