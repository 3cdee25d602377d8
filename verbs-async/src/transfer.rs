//! Transfers: sets of operations that end as a whole, awaited.
//!
//! ```text
//! add: posted, or in the backlog; await ── all ended in time ──────► returns
//!   │ the timeout passes
//!   ▼
//! its channels to ERR, the backlog rejected; drain
//!   │                             ───── in drain_timeout ──────────► aborted, or a work error
//!   │ not flushed
//!   ▼
//! destroy their queue pairs ───────────────────────────────────────► aborted, or stuck
//! ```
//!
//! A future that is dropped leaves the set at its step, and the next one continues from there. The
//! buffers are the engine's until their operations have ended, whatever happens to the set.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use verbs_channel::engine::TransferEntries;
use verbs_channel::{
    ChannelId, DownReason, OwnedRequest, Queue, Ticket, Transfer, TransferError, TransferOutcome,
};

use crate::channel::AsyncChannel;
use crate::coop;
use crate::driver::{Driver, Submission};
use crate::group::AsyncGroup;
use crate::ring::{Channels, Outcome};
use crate::shared::SharedEngine;

/// A set of operations on owned buffers that ends as a whole, on one channel or on several of a group.
///
/// An operation begins when it is [added](Self::add). [`finish_within`](Self::finish_within) returns when
/// the device is done with the memory of all operations, whatever happened: at its timeout, the channels
/// that still have operations of the set in flight are aborted. The set then has the
/// [outcomes](Self::drain) of the operations, with their buffers, and can be used again. Within its
/// capacity it allocates nothing for each operation.
///
/// It is the async counterpart of [`Transfer`], and has the same outcomes and errors.
///
/// # Cancelling
///
/// Dropping the future of [`finish`](Self::finish) or [`finish_within`](Self::finish_within) has no
/// effect on the operations: call either again. If the timeout had already passed, the next call
/// continues with the steps after it.
///
/// Dropping the set abandons the operations that have not ended. Operations in the backlog are not
/// posted. Channels with operations of the set in flight are taken down with [`DownReason::Abandoned`]:
/// their queue pairs are moved to `ERR`, and each buffer is released when the device is done with it, or
/// with the channel. A set that is leaked keeps its buffers until its channels are dropped.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn fetch(
/// #     channel: &verbs_async::AsyncChannel,
/// #     cache: &verbs_async::verbs_channel::SharedMemory,
/// #     pages: &[(usize, verbs_async::verbs_core::RemoteMemoryRegion)],
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use verbs_async::verbs_channel::Incoming;
///
/// let mut pages_in = channel.transfer(pages.len());
/// for &(at, remote) in pages {
///     pages_in.add(channel.id(), Incoming::read(cache.slice(at..at + 4096)?, remote));
/// }
/// let timeout = Duration::from_millis(200);
/// if let Err(error) = pages_in.finish_within(timeout, tokio::time::sleep).await {
///     // The channel is down. No page is written to any more, unless some are stuck.
///     eprintln!("{error}");
/// }
/// for outcome in pages_in.drain() {
///     match outcome.result {
///         Ok(_) => println!("page {} is there", outcome.index),
///         Err(error) => println!("page {}: {error}", outcome.index),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it with operations in flight takes their channels down"]
pub struct AsyncTransfer {
    shared: Arc<SharedEngine>,
    // The outcomes.
    set: Transfer,
    // Those that have not ended, in the order in which they were begun.
    begun: VecDeque<Begun>,
    // The timeout that has passed.
    late: Option<Duration>,
}

/// An operation of a transfer that has not ended.
#[derive(Clone, Copy)]
struct Begun {
    index: usize,
    channel: ChannelId,
    queue: Queue,
    at: Submission<Ticket>,
}

impl AsyncGroup {
    /// An empty set of operations on channels of this group, with room for `operations` of them.
    pub fn transfer(&self, operations: usize) -> AsyncTransfer {
        AsyncTransfer::new(self.shared(), operations)
    }
}

impl AsyncChannel {
    /// An empty set of operations on this channel, or others of its group, with room for `operations` of
    /// them.
    pub fn transfer(&self, operations: usize) -> AsyncTransfer {
        AsyncTransfer::new(self.group(), operations)
    }
}

impl AsyncTransfer {
    fn new(shared: &Arc<SharedEngine>, operations: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            set: Transfer::with_capacity(operations),
            begun: VecDeque::with_capacity(operations),
            late: None,
        }
    }

    /// Begins an operation on the channel with this [id](AsyncChannel::id).
    ///
    /// If its queue is full, it waits in the backlog, however long the backlog is. If it is
    /// rejected, the rejection is its outcome. Outcomes that have not been [drained](Self::drain)
    /// stay before it.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    pub fn add(&mut self, channel: ChannelId, request: impl Into<OwnedRequest>) {
        let request = request.into();
        let queue = request.queue();
        let index = TransferEntries::of(&mut self.set).add(channel, &request);
        let at = self.driver().start(channel, request, usize::MAX);
        self.begun.push_back(Begun {
            index,
            channel,
            queue,
            at,
        });
    }

    /// Waits until all operations have ended. A timeout around this future does not end them: they
    /// continue.
    ///
    /// The wait has no bound: a receive for which the peer sends nothing does not end. For a
    /// bound, use [`finish_within`](Self::finish_within), also after a timeout around this future.
    ///
    /// # Errors
    ///
    /// - [`TransferError::Failed`]: at least one operation was not posted or did not succeed. All memory
    ///   can be reused.
    /// - [`TransferError::Stuck`]: the driver failed to destroy a queue pair.
    pub async fn finish(&mut self) -> Result<(), TransferError> {
        poll_fn(|cx| self.poll_ended(cx)).await;
        self.result()
    }

    /// Waits until all operations have ended, and after `timeout` aborts those that have not.
    ///
    /// `sleep` is the timer of your runtime: `tokio::time::sleep`, or `async_io::Timer::after`.
    ///
    /// After the timeout, operations in the backlog are rejected. The channels that still have
    /// operations of the set in flight are aborted, with all that is in flight on them: each queue
    /// pair is moved to `ERR`, and destroyed if it is not flushed within the
    /// [drain timeout](verbs_channel::ChannelBuilder::drain_timeout). So this returns within the
    /// sum of `timeout`, the drain timeout, and the time that `ibv_destroy_qp` takes, on helper
    /// threads. With a timeout of zero it aborts all operations that have not completed yet. The
    /// other channels of the group are not affected.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    #[doc(alias = "ibv_destroy_qp")]
    pub async fn finish_within<S: Future>(
        &mut self,
        timeout: Duration,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), TransferError> {
        if self.late.is_none() && !self.ended_within(timeout, &sleep).await {
            self.late = Some(timeout);
        }
        if let Some(after) = self.late {
            self.abort(after);
            let drain_timeout = self.driver().with_ring(|ring| ring.engine.drain_timeout());
            if !self.ended_within(drain_timeout, &sleep).await {
                self.destroy(after);
                // They end when that has been done.
                poll_fn(|cx| self.poll_ended(cx)).await;
            }
        }
        self.result()
    }

    /// Whether all operations have ended, and their outcomes are in the set.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.begun.is_empty()
    }

    /// The number of its operations: those that have not ended, and those whose outcomes have not been
    /// [drained](Self::drain).
    #[must_use]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether it has no operations, and no outcomes to drain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Removes all operations, and returns their outcomes in the order in which they were added.
    /// The set keeps its capacity.
    ///
    /// It returns none while some operations have not [ended](Self::is_finished): use
    /// [`finish_within`](Self::finish_within) first. With a timeout of zero, that ends them now.
    pub fn drain(&mut self) -> impl Iterator<Item = TransferOutcome> {
        let is_finished = self.is_finished();
        is_finished.then(|| self.set.drain()).into_iter().flatten()
    }

    /// All have ended.
    fn result(&mut self) -> Result<(), TransferError> {
        self.late = None;
        TransferEntries::of(&mut self.set).result()
    }

    /// Waits for all of them, in their order. The outcomes of others stay in their slots meanwhile.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(first) = self.begun.front() {
            if coop::must_yield(cx) {
                return Poll::Pending;
            }
            let outcome = match self.driver().poll_outcome(&first.at) {
                Some(outcome) => outcome,
                None => ready!(self.driver().wait(&first.at, cx)),
            };
            coop::count_ready(cx);
            let index = first.index;
            self.begun.pop_front();
            self.ended(index, outcome);
        }
        Poll::Ready(())
    }

    /// Whether all have ended within this time.
    async fn ended_within<S: Future>(
        &mut self,
        time: Duration,
        sleep: &impl Fn(Duration) -> S,
    ) -> bool {
        if !time.is_zero() {
            let mut timer = pin!(sleep(time));
            poll_fn(|cx| {
                if self.poll_ended(cx).is_ready() {
                    return Poll::Ready(());
                }
                timer.as_mut().poll(cx).map(drop)
            })
            .await;
        }
        // What has completed by now is no reason to take a channel down.
        self.take_ended();
        self.is_finished()
    }

    /// Takes the outcomes of all that have ended.
    fn take_ended(&mut self) {
        for _ in 0..self.begun.len() {
            let Some(begun) = self.begun.pop_front() else {
                return;
            };
            match self.driver().poll_outcome(&begun.at) {
                Some(outcome) => self.ended(begun.index, outcome),
                None => self.begun.push_back(begun),
            }
        }
    }

    fn ended(&mut self, index: usize, outcome: Outcome) {
        let (result, buffer) = outcome.into_parts();
        TransferEntries::of(&mut self.set).end(index, result, buffer);
    }

    /// The second step of the ladder: takes the channels down that have operations in flight, and
    /// rejects the rest.
    fn abort(&self, after: Duration) {
        self.shut_down(|queue| DownReason::TimedOut { queue, after });
        // On the channels above they were rejected.
        for begun in &self.begun {
            self.driver().withdraw(&begun.at);
        }
    }

    fn shut_down(&self, reason: impl Fn(Queue) -> DownReason) {
        let driver = self.driver();
        for &Begun {
            channel, queue, at, ..
        } in &self.begun
        {
            let is_up = |ring: &mut Channels| ring.engine.down_reason(channel).is_none();
            if driver.is_posted(&at) && driver.with_ring(is_up) {
                driver.with(Some(channel), |ring| {
                    // It is one of this engine: an operation is in flight on it.
                    let _shut_down = ring.engine.shut_down(channel, reason(queue));
                });
            }
        }
    }

    /// The third step: helper threads destroy the queue pairs of what was not flushed.
    fn destroy(&self, after: Duration) {
        for &Begun { channel, queue, .. } in &self.begun {
            let is_open = |ring: &mut Channels| ring.engine.endpoint(channel).is_some();
            if self.driver().with_ring(is_open) {
                self.shared
                    .end(channel, DownReason::TimedOut { queue, after });
            }
        }
    }

    fn driver(&self) -> &Driver<Channels> {
        &self.shared.driver
    }
}

impl Drop for AsyncTransfer {
    fn drop(&mut self) {
        // What has completed by now is no reason to take a channel down.
        self.take_ended();
        self.shut_down(|_| DownReason::Abandoned);
        for begun in self.begun.drain(..) {
            self.shared.driver.abandon(begun.at);
        }
    }
}

impl fmt::Debug for AsyncTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTransfer")
            .field("len", &self.len())
            .field("left", &self.begun.len())
            .finish()
    }
}
