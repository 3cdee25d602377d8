//! Transfers: sets of operations that end as a whole, awaited.
//!
//! ```text
//! await: posted, or in the backlog, or next ─ all ended in time ────► returns
//!   │ the timeout passes
//!   ▼
//! nothing more is posted; its channels to ERR; drain
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
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use verbs_channel::__private::Piece;
use verbs_channel::engine::{Engine, TransferError, TransferOutcome};
use verbs_channel::error::Queue;
use verbs_channel::lease::Lease;
use verbs_channel::{ChannelId, DownReason, OwnedRequest, RejectReason, Transfer};

use super::AsyncChannel;
use crate::driver::{Driver, Outcome, Request, Submission};
use crate::engine::SharedEngine;
use crate::task::coop;

/// A set of operations on owned buffers that ends as a whole, on one channel or on several of a group.
///
/// The operations that were [added](Self::add) begin when the set is awaited.
/// [`finish_by`](Self::finish_by) returns when the device is done with the memory of all operations,
/// whatever happened: at its deadline, the channels that still have operations of the set in flight are
/// aborted, and nothing more is posted. The set then has the [outcomes](Self::drain) of the operations, with
/// their buffers, and can be used again. Within its capacity it allocates nothing for each operation.
///
/// It is the async counterpart of [`Transfer`], and has the same outcomes and errors. One thing is different: when the
/// driver refuses a part of a long request that is split, later parts may have begun already. Their peer then
/// gets them, and the immediate with the last, though the operation fails.
///
/// # Cancelling
///
/// Dropping the future of [`finish`](Self::finish) or [`finish_by`](Self::finish_by) has no
/// effect on the operations that have begun: call either again, which begins the others, too. If the timeout had already passed, the next call
/// continues with the steps after it.
///
/// Dropping the set abandons the operations that have not ended. Operations that were not posted yet
/// are not posted any more. Channels with operations of the set in flight are taken down with [`DownReason::Abandoned`]:
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
/// use std::time::{Duration, Instant};
/// use verbs_async::verbs_channel::Incoming;
///
/// let mut pages_in = channel.transfer(pages.len());
/// for &(at, remote) in pages {
///     pages_in.add(channel.id(), Incoming::read(cache.slice(at..at + 4096)?, remote));
/// }
/// let deadline = Instant::now() + Duration::from_millis(200);
/// if let Err(error) = pages_in.finish_by(deadline, tokio::time::sleep).await {
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
///
/// # Several cards
///
/// A set is one group's, and so one card's. [`transfer_over`](crate::transfer_over) is for
/// [`Rails`](verbs_channel::Rails).
#[must_use = "dropping it with operations in flight takes their channels down"]
pub struct AsyncTransfer {
    shared: Arc<SharedEngine>,
    // The requests of those that have not begun, and the outcomes.
    set: Transfer,
    // Those that have begun and not ended, in this order, for each queue of a channel.
    begun: Vec<VecDeque<Begun>>,
    // The timeout that has passed.
    late: Option<Duration>,
}

/// An operation of a transfer that has begun and not ended.
#[derive(Clone, Copy)]
struct Begun {
    // Its queue's, and its own.
    number: (usize, usize),
    channel: ChannelId,
    queue: Queue,
    at: Submission,
}

impl AsyncChannel {
    /// An empty set of operations on this channel, or others of its group, with room for `operations` of
    /// them.
    pub fn transfer(&self, operations: usize) -> AsyncTransfer {
        AsyncTransfer::new(self.group(), operations)
    }
}

impl AsyncTransfer {
    pub(crate) fn new(shared: &Arc<SharedEngine>, operations: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            set: Transfer::with_capacity(operations),
            begun: Vec::new(),
            late: None,
        }
    }

    /// Adds an operation on the channel with this [id](AsyncChannel::id). It begins when
    /// [`finish`](Self::finish) or [`finish_by`](Self::finish_by) is awaited.
    ///
    /// If its queue is full then, it waits. At most the queue's length and two chains of the set are in the backlog, and
    /// the others follow whenever the future is polled. If it is rejected, the rejection is its outcome. Outcomes that have
    /// not been [drained](Self::drain) stay before it.
    pub fn add(&mut self, channel: ChannelId, request: impl Into<OwnedRequest>) {
        self.set.add(channel, request);
    }

    /// Lends memory for as long as the transfer goes well: as [`Transfer::lend`]. The lease may be of any channel.
    pub fn lend(&mut self, lease: Lease) {
        self.set.lend(lease);
    }

    /// Takes the leases that have not ended: as [`Transfer::take_leases`].
    pub fn take_leases(&mut self) -> impl Iterator<Item = Lease> {
        self.set.take_leases()
    }

    /// Begins all operations, and waits until they have ended. A timeout around this future does not end them: they
    /// continue.
    ///
    /// The wait has no bound: a receive for which the peer sends nothing does not end. For a
    /// bound, use [`finish_by`](Self::finish_by), also after a timeout around this future.
    ///
    /// # Errors
    ///
    /// - [`TransferError::Failed`]: at least one operation was not posted or did not succeed. All memory
    ///   can be reused.
    /// - [`TransferError::Stuck`]: the driver failed to destroy a queue pair.
    /// - [`TransferError::LeasesStuck`]: the peer may still access memory of leases, whose channels are being closed.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    pub async fn finish(&mut self) -> Result<(), TransferError> {
        poll_fn(|cx| self.poll_ended(cx, None)).await;
        self.result()
    }

    /// Begins all operations, waits until they have ended, and at the deadline aborts those that have not.
    ///
    /// `sleep` is the timer of your runtime: `tokio::time::sleep`, or
    /// `async_io::Timer::after`.
    ///
    /// After the deadline nothing more is posted: operations that were not posted are rejected. The clock is read
    /// for every eighth post, so the last seven posts may be late, each of which is a chain of up to 16
    /// requests. The channels that still have operations of the set in flight are aborted, with all that is in flight on
    /// them: each
    /// queue pair is moved to `ERR`, and destroyed if it is not flushed within the
    /// [drain timeout](verbs_channel::ChannelConfig::drain_timeout). So this returns within the
    /// sum of the time until the deadline, seven posts, the drain timeout, and the time that `ibv_destroy_qp` takes, on helper
    /// threads. If the transfer fails, the last poll ends its [leases](Self::lend) by system calls. With a deadline that has passed it begins none, and aborts those that an earlier call has begun and
    /// that have not completed yet. The other channels of the group are not affected.
    ///
    /// The poll that finds the deadline passed withdraws the operations of the set from the backlog: so nothing more of the
    /// set is posted. That, and dropping the set, takes longer the more the queues of its channels have room for. Rejecting
    /// the others takes several polls, as all else.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "ibv_destroy_qp")]
    pub fn finish_by<S: Future>(
        &mut self,
        deadline: Instant,
        sleep: impl Fn(Duration) -> S,
    ) -> impl Future<Output = Result<(), TransferError>> {
        let begun = Instant::now();
        let timeout = deadline.saturating_duration_since(begun);
        async move {
            if self.late.is_none() && !self.ended_within(begun, timeout, &sleep).await {
                self.late = Some(timeout);
            }
            if let Some(after) = self.late {
                self.shut_down(|queue| DownReason::TimedOut { queue, after });
                let drain_timeout = self.driver().with_engine(|engine| engine.drain_timeout());
                if !self
                    .ended_within(Instant::now(), drain_timeout, &sleep)
                    .await
                {
                    self.destroy(after);
                    // They end when that has been done.
                    poll_fn(|cx| self.poll_ended(cx, None)).await;
                }
            }
            self.result()
        }
    }

    /// Whether all operations have ended, and their outcomes are in the set.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.set.has_ended()
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
    /// [`finish_by`](Self::finish_by) first. With a deadline that has passed, that ends them now.
    pub fn drain(&mut self) -> impl Iterator<Item = TransferOutcome> {
        self.is_finished()
            .then(|| self.set.drain())
            .into_iter()
            .flatten()
    }

    /// All have ended.
    fn result(&mut self) -> Result<(), TransferError> {
        self.late = None;
        self.set.result()
    }

    /// Begins those that there is room for, and waits for one queue after the other, but for all queues that are to have
    /// room. The outcomes of others stay in their slots meanwhile. Pending at the deadline, too.
    fn poll_ended(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let mut steps = 0;
        loop {
            while !self.set.have_begun() {
                if self.must_stop(&mut steps, cx, deadline) {
                    return Poll::Pending;
                }
                if !self.begin() {
                    break;
                }
                coop::count_ready(cx);
            }
            let (mut is_waiting, mut has_room) = (false, false);
            for queue in 0..self.begun.len() {
                let needs_room = self.set.waits(queue);
                while (needs_room || !is_waiting)
                    && let Some(first) = self.begun[queue].front().copied()
                {
                    if self.must_stop(&mut steps, cx, deadline) {
                        return Poll::Pending;
                    }
                    let outcome = match self.driver().poll_outcome(&first.at) {
                        Some(outcome) => Poll::Ready(outcome),
                        None => self.driver().wait(first.at, cx),
                    };
                    let Poll::Ready(outcome) = outcome else {
                        is_waiting = true;
                        break;
                    };
                    coop::count_ready(cx);
                    self.begun[queue].pop_front();
                    self.ended(&first, outcome);
                    has_room |= needs_room;
                }
            }
            match (has_room, is_waiting) {
                (true, _) => {}
                (false, true) => return Poll::Pending,
                (false, false) => return Poll::Ready(()),
            }
        }
    }

    /// Whether a poll is to stop before its next step, which may post: that is slow on some devices.
    fn must_stop(&self, steps: &mut usize, cx: &Context<'_>, deadline: Option<Instant>) -> bool {
        let reads_clock = steps.is_multiple_of(STEPS);
        *steps += 1;
        if reads_clock {
            self.shared.check_peers_when_busy();
        }
        self.shared.must_yield(cx) || (reads_clock && is_over(deadline))
    }

    /// Begins the next operation, if there is one and room for it. If the set is late, rejects it.
    fn begin(&mut self) -> bool {
        let Self {
            shared, set, begun, ..
        } = self;
        let begin = |engine: &mut Engine| {
            let (number, channel, piece) = set.next_piece(engine)?;
            Some((number, channel, piece, engine.down_reason(channel)))
        };
        let Some((number, channel, piece, down)) = shared.driver.with_engine(begin) else {
            return false;
        };
        if self.late.is_some() {
            let reason = down.map_or(RejectReason::TimedOut, RejectReason::Down);
            set.end_piece(number, Err(reason.into()), piece.into_given(), None);
            return true;
        }
        let (queue, at) = match piece {
            Piece::One(request) => {
                let queue = request.queue();
                (queue, shared.driver.start(channel, request, usize::MAX))
            }
            Piece::Chain(chain) => {
                let request = Request::Chain(Some(chain));
                let at = shared.driver.start_any(channel, request, usize::MAX);
                (Queue::Send, at)
            }
        };
        if begun.len() <= number.0 {
            begun.resize_with(number.0 + 1, VecDeque::new);
        }
        begun[number.0].push_back(Begun {
            number,
            channel,
            queue,
            at,
        });
        true
    }

    /// Whether all have ended within this time from `begun` on.
    async fn ended_within<S: Future>(
        &mut self,
        begun: Instant,
        time: Duration,
        sleep: &impl Fn(Duration) -> S,
    ) -> bool {
        let deadline = begun.checked_add(time);
        let left = time.saturating_sub(begun.elapsed());
        if !left.is_zero() {
            let mut timer = pin!(sleep(left));
            poll_fn(|cx| {
                if self.poll_ended(cx, deadline).is_ready() {
                    return Poll::Ready(());
                }
                // The timer may be late, where tasks are polled that do not yield.
                if is_over(deadline) {
                    return Poll::Ready(());
                }
                timer.as_mut().poll(cx).map(drop)
            })
            .await;
        }
        self.is_finished()
    }

    fn ended(&mut self, begun: &Begun, outcome: Outcome) {
        let (result, given) = outcome.into_parts();
        let down = |engine: &mut Engine| engine.down_reason(begun.channel);
        let down = result.is_err().then(|| self.driver().with_engine(down));
        self.set
            .end_piece(begun.number, result, given, down.flatten());
    }

    /// The second step of the ladder: nothing is posted from the backlog any more, and the channels that have operations in
    /// flight are taken down.
    fn shut_down(&self, reason: impl Fn(Queue) -> DownReason) {
        let driver = self.driver();
        for begun in &self.begun {
            // The last first: none is the head while others are behind it.
            let begun = begun.iter().rev();
            begun.for_each(|begun| driver.withdraw(&begun.at));
        }
        for &Begun { channel, queue, .. } in self.in_flight() {
            let is_up = |engine: &mut Engine| engine.down_reason(channel).is_none();
            if driver.with_engine(is_up) {
                driver.with(Some(channel), |engine| {
                    // It is one of this engine: an operation is in flight on it.
                    let _flushed = engine.flush(channel, reason(queue));
                });
            }
        }
    }

    /// The third step: helper threads destroy the queue pairs of what was not flushed.
    fn destroy(&self, after: Duration) {
        for &Begun { channel, queue, .. } in self.in_flight() {
            let is_open = |engine: &mut Engine| engine.endpoint(channel).is_some();
            if self.driver().with_engine(is_open) {
                self.shared
                    .end(channel, DownReason::TimedOut { queue, after });
            }
        }
    }

    /// One operation of each queue that has some in flight: not completed by now.
    fn in_flight(&self) -> impl Iterator<Item = &Begun> {
        let is_in_flight = |begun: &&Begun| self.driver().is_in_flight(&begun.at);
        let queues = self.begun.iter();
        queues.filter_map(move |begun| begun.iter().rev().find(is_in_flight))
    }

    fn driver(&self) -> &Driver {
        &self.shared.driver
    }
}

impl Drop for AsyncTransfer {
    fn drop(&mut self) {
        if self.driver().is_in_child() {
            return;
        }
        self.shut_down(|_| DownReason::Abandoned);
        for begun in self.begun.drain(..).flatten() {
            self.shared.driver.abandon(begun.at);
        }
    }
}

/// How many operations are posted or taken between reads of the clock.
const STEPS: usize = 8;

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

impl fmt::Debug for AsyncTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTransfer")
            .field("len", &self.len())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}
