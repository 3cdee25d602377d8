//! A shared receive queue, its blocks when its engine is gone, and the queue pairs that have not joined.

#![expect(
    unsafe_code,
    reason = "makes queue pairs on which no receive is posted"
)]

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Waker;

use verbs_core::__private::Process;
use verbs_core::queue_pair::QueuePairConfig;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{Error, PreparedQueuePair, QueuePair};

use crate::buffer::OwnedBuffer;
use crate::engine::Leak;
use crate::error::Result;
use crate::panics::{log_error, panics};

/// A shared receive queue. Each queue pair on it that this crate has is kept with an `Arc` of this, and
/// is dropped before that: so the queue is destroyed here.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    process: Process,
    // `None` only while it is being destroyed. A queue pair is made on it, and claimed, with the lock.
    srq: RwLock<Option<SharedReceiveQueue>>,
    // The blocks that were posted when the engine was dropped.
    left: Mutex<Vec<OwnedBuffer>>,
    claims: Mutex<Claims>,
    // How many claims have ended, to be read without the lock.
    ended: AtomicUsize,
}

/// The numbers of queue pairs that have not joined.
///
/// ```text
/// claim ──► live ── dropped ──► ended ── polled ──► destroyed ── the completion queue was emptied ──► forgotten
///             └──── joined
/// ```
///
/// A queue pair that was connected may have taken a receive. Some drivers remove the completions of a queue pair
/// when it is destroyed, so it is kept in `ERR` until its engine has polled.
#[derive(Debug, Default)]
struct Claims {
    // They were prepared, and may join.
    live: Vec<u32>,
    // They will not join any more. The completion queue may still have messages of them, so no other queue pair with
    // such a number is used.
    ended: Vec<Ended>,
    // The engine is gone: nobody polls for them.
    is_closed: bool,
    // Woken when one ends.
    waker: Option<Arc<Waker>>,
}

#[derive(Debug)]
struct Ended {
    qp_num: u32,
    state: EndedState,
}

#[derive(Debug)]
enum EndedState {
    /// In `ERR`.
    Kept(Box<QueuePair>),
    /// It is being destroyed elsewhere.
    Closing,
    Destroyed,
}

/// A queue pair on the queue that has not joined its engine. Its messages are kept until it has, or until
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    queue: Arc<SharedQueue>,
    qp_num: u32,
    // Its queue pair may have taken receives.
    has_begun: bool,
}

impl SharedQueue {
    pub(crate) fn new(srq: SharedReceiveQueue) -> Arc<Self> {
        Arc::new(Self {
            process: Process::current(),
            srq: RwLock::new(Some(srq)),
            left: Mutex::default(),
            claims: Mutex::default(),
            ended: AtomicUsize::new(0),
        })
    }

    /// A queue pair on the queue, which may join.
    ///
    /// It is kept with the claim, and dropped before it.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        config: QueuePairConfig,
    ) -> Result<(PreparedQueuePair, Claim)> {
        let srq = self.srq.read().unwrap_or_else(PoisonError::into_inner);
        let Some(srq) = &*srq else {
            let object = "the shared receive queue";
            return Err(Error::Destroyed { object }.into());
        };
        if lock(&self.claims).ended.len() >= MAX_ENDED {
            return Err(crate::Error::Unpolled(MAX_ENDED));
        }
        let config = config.srq(srq);
        let mut prepared = config.build()?;
        // They exist until another number is found, so that the device does not give theirs again.
        let mut unused = Vec::new();
        while self.is_taken(prepared.qp_num()) {
            if unused.len() == MAX_UNUSED {
                return Err(crate::Error::Unpolled(lock(&self.claims).ended.len()));
            }
            unused.push(mem::replace(&mut prepared, config.build()?));
        }
        let claim = Arc::clone(self).claim(prepared.qp_num());
        // SAFETY: an engine posts a receive on a queue pair only with a credit of its receive queue, and
        // this one gets none.
        Ok((
            unsafe { verbs_core::__private::assume_own_receives(prepared) },
            claim,
        ))
    }

    /// Replaces the queue by a new one of this capacity, if no queue pair is on it. Then the device has none of the
    /// blocks that are posted. `posted_to` is the engine's clone of the queue; the engine has no queue pair.
    ///
    /// Returns whether it was replaced. With an error, the device may still have the blocks.
    pub(crate) fn rebuild(
        &self,
        posted_to: &mut SharedReceiveQueue,
        max_wr: u32,
    ) -> Result<bool, Error> {
        // While another thread prepares a channel, there is a queue pair.
        let Ok(mut srq) = self.srq.try_write() else {
            return Ok(false);
        };
        {
            // One that has ended may have completions in the queue, until it is forgotten: they name places that
            // would be posted again.
            let claims = lock(&self.claims);
            if !(claims.live.is_empty() && claims.ended.is_empty()) {
                return Ok(false);
            }
        }
        let Ok(new) = SharedReceiveQueue::create(posted_to.pd(), max_wr) else {
            return Ok(false);
        };
        *posted_to = new.clone();
        let old = srq.replace(new);
        drop(srq);
        old.map_or(Ok(()), SharedReceiveQueue::close).map(|()| true)
    }

    /// Whether there may be messages of an earlier queue pair with this number.
    fn is_taken(&self, qp_num: u32) -> bool {
        let claims = lock(&self.claims);
        claims.live.contains(&qp_num) || claims.ended.iter().any(|ended| ended.qp_num == qp_num)
    }

    /// Keeps blocks that the device may write to until the queue is destroyed.
    pub(crate) fn keep(&self, blocks: Vec<OwnedBuffer>) {
        // In the child of a fork the device has none, and another thread may have had the lock.
        if self.process.is_current() {
            lock(&self.left).extend(blocks);
        }
    }

    /// Adds a queue pair that may join.
    fn claim(self: Arc<Self>, qp_num: u32) -> Claim {
        lock(&self.claims).live.push(qp_num);
        Claim {
            queue: self,
            qp_num,
            has_begun: false,
        }
    }

    /// Has this woken whenever a claim ends.
    pub(crate) fn wake_when_claims_end(&self, waker: Waker) {
        // Under the lock, none is cloned or dropped: that runs foreign code.
        let replaced = lock(&self.claims).waker.replace(Arc::new(waker));
        drop(replaced);
    }

    /// How many claims have ended, and are not [forgotten](Self::forget_ended) yet. Those are not counted whose queue
    /// pair is being destroyed elsewhere.
    #[inline]
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes a queue pair whose claim has ended: it is in `ERR`. It is to be destroyed after a poll, and then
    /// [recorded](Self::destroyed).
    pub(crate) fn next_ended(&self) -> Option<QueuePair> {
        let mut claims = lock(&self.claims);
        let mut ended = claims.ended.iter_mut().map(|ended| &mut ended.state);
        let kept = ended.find(|state| matches!(state, EndedState::Kept(_)))?;
        let taken = mem::replace(kept, EndedState::Closing);
        self.count(&claims);
        match taken {
            EndedState::Kept(qp) => Some(*qp),
            EndedState::Closing | EndedState::Destroyed => None,
        }
    }

    /// Records that a queue pair has been destroyed whose claim has ended.
    pub(crate) fn destroyed(&self, qp_num: u32) {
        let mut claims = lock(&self.claims);
        for ended in &mut claims.ended {
            if ended.qp_num == qp_num {
                ended.state = EndedState::Destroyed;
            }
        }
        self.count(&claims);
    }

    /// The numbers of the queue pairs that have been destroyed.
    pub(crate) fn destroyed_numbers(&self) -> Vec<u32> {
        let claims = lock(&self.claims);
        let ended = claims.ended.iter();
        let destroyed = ended.filter(|ended| matches!(ended.state, EndedState::Destroyed));
        destroyed.map(|ended| ended.qp_num).collect()
    }

    /// Forgets these, as there are no messages of them in the completion queue any more: other queue pairs may have
    /// their numbers from now on.
    pub(crate) fn forget_ended(&self, qp_nums: &[u32]) {
        let mut claims = lock(&self.claims);
        claims
            .ended
            .retain(|ended| !qp_nums.contains(&ended.qp_num));
        self.count(&claims);
    }

    /// The engine is gone.
    pub(crate) fn stop_polling(&self) {
        if !self.process.is_current() {
            return;
        }
        let mut claims = lock(&self.claims);
        claims.is_closed = true;
        let ended = mem::take(&mut claims.ended);
        self.count(&claims);
        drop(claims);
        // Without the lock: this destroys queue pairs.
        drop(ended);
    }

    fn count(&self, claims: &Claims) {
        let ended = claims.ended.iter();
        let count = ended.filter(|ended| !matches!(ended.state, EndedState::Closing));
        self.ended.store(count.count(), Ordering::Release);
    }

    /// This queue pair has joined, or may not join: the end of its claim means nothing. Returns whether it could join.
    pub(crate) fn settle(&self, qp_num: u32) -> bool {
        let mut claims = lock(&self.claims);
        let found = claims.live.iter().position(|claimed| *claimed == qp_num);
        found.map(|at| claims.live.swap_remove(at)).is_some()
    }

    /// How many queue pairs may exist that have not joined.
    pub(crate) fn unjoined(&self) -> usize {
        let claims = lock(&self.claims);
        let ended = claims.ended.iter();
        let existing = ended.filter(|ended| !matches!(ended.state, EndedState::Destroyed));
        claims.live.len() + existing.count()
    }

    /// Whether a queue pair with this number may still join.
    pub(crate) fn is_claimed(&self, qp_num: u32) -> bool {
        lock(&self.claims).live.contains(&qp_num)
    }
}

impl Claim {
    /// From now on its queue pair may take receives.
    pub(crate) const fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Ends the claim of a connected queue pair, which is kept until the engine has polled.
    pub(crate) fn end_connected(mut self, qp: QueuePair) {
        if !self.queue.process.is_current() {
            return;
        }
        // It takes no more receives. That fails only if the device does.
        let _in_error = qp.to_error();
        self.end(Some(qp));
    }

    fn end(&mut self, mut qp: Option<QueuePair>) {
        if !self.queue.process.is_current() {
            return;
        }
        let mut claims = lock(&self.queue.claims);
        if !claims.live.contains(&self.qp_num) {
            // It has joined.
            return;
        }
        let kept = claims.ended.iter();
        let kept = kept.filter(|ended| matches!(ended.state, EndedState::Kept(_)));
        if claims.is_closed || kept.count() >= MAX_KEPT {
            // Its number stays with those that may join until it has been destroyed, without the lock.
            drop(claims);
            drop(qp.take());
            claims = lock(&self.queue.claims);
        }
        let waker = claims.waker.clone();
        claims.live.retain(|claimed| *claimed != self.qp_num);
        if self.has_begun && !claims.is_closed {
            let qp_num = self.qp_num;
            let state = qp
                .take()
                .map_or(EndedState::Destroyed, |qp| EndedState::Kept(Box::new(qp)));
            claims.ended.push(Ended { qp_num, state });
            self.queue.count(&claims);
        }
        drop(claims);
        // Left if the engine has gone meanwhile.
        drop(qp);
        if panics(|| waker.iter().for_each(|waker| waker.wake_by_ref())) {
            log_error(format_args!(
                "the waker for channels that were dropped panicked"
            ));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// How many queue pairs are kept until the engine has polled. Further ones are destroyed at once, and may take a
/// receive with them.
const MAX_KEPT: usize = 64;

/// How many claims can have ended before the engine has polled.
const MAX_ENDED: usize = 1024;

/// How many queue pairs are created to find a number that is not taken.
const MAX_UNUSED: usize = 16;

impl Drop for SharedQueue {
    /// Destroys the queue, and then releases its blocks; or leaks them, if the driver fails to
    /// destroy it.
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        let blocks = mem::take(left);
        let srq = self.srq.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(srq) = srq.take() else {
            return;
        };
        if let Err(error) = srq.close()
            && self.process.is_current()
        {
            // Those of receives without memory are empty.
            let buffers = blocks.iter().filter(|block| block.capacity() > 0).count();
            log_error(format_args!("{}", Leak { buffers, error }));
            #[expect(clippy::mem_forget, reason = "the device may still write to them")]
            mem::forget(blocks);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
