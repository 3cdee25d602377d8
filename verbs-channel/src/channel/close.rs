//! Ending a channel: at once, or in order.
//!
//! ```text
//! wait for what was sent ──────── in timeout ────────► goes on
//!   │ the timeout passes, or the channel goes down
//!   ▼
//! the ladder of an abort, for what is in flight: bounded by the drain timeout
//!   ▼
//! destroy the queue pair ──────── destroyed ─────────► closed; or down, with the first reason
//!   │ the driver fails to
//!   ▼
//! owned buffers are leaked, which is logged ─────────► stuck
//! ```

use super::{Channel, Hold};
use crate::engine::{Engine, Member};
use crate::error::{CloseError, DownReason, Queue};
use crate::waiting::{AbortHandle, Steps as _};

impl<H: Hold> Channel<H> {
    /// Aborts all operations in flight; the channel is down after that.
    ///
    /// It moves the queue pair to `ERR`, waits for the flushes up to the drain timeout, and then destroys
    /// the queue pair if operations are still in flight. The outcomes of operations on owned buffers can
    /// still be taken.
    pub fn abort(&mut self) {
        let (poller, at) = self.parts();
        poller.abort(at, DownReason::Closed);
    }

    /// A handle with which any thread can [abort](Self::abort) the channel, while this one is within an operation.
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # use verbs_channel::{Channel, Transfer};
    /// # fn of(channel: &mut Channel, transfer: &mut Transfer) {
    /// let handle = channel.abort_handle();
    /// std::thread::spawn(move || {
    ///     // The peer is known to be gone.
    ///     handle.abort();
    /// });
    /// // The device is done with all memory when this returns.
    /// let ended = channel.transfer(transfer, Some(Instant::now() + Duration::from_secs(60)));
    /// # }
    /// ```
    #[must_use]
    pub fn abort_handle(&mut self) -> AbortHandle {
        let id = self.id();
        self.parts().0.abort_handle(id)
    }

    /// Closes the channel cleanly: lets sends, writes, reads and atomics finish, aborts the receives, and
    /// returns when the device is done with all memory.
    ///
    /// It waits for the send queue up to the channel's [`timeout`](crate::ChannelConfig::timeout), or forever
    /// without one. Operations that are still in flight are then aborted, as by [`abort`](Self::abort), and the queue
    /// pair is destroyed. So this returns within the sum of the timeout, the
    /// [`drain_timeout`](crate::ChannelConfig::drain_timeout) and the time that `ibv_destroy_qp` takes. For a
    /// channel that was connected by `rdma_cm`, add the time that the kernel takes to end the connection: 10 ms on
    /// soft-RoCE, up to 7 s on soft-iWARP.
    ///
    /// Remaining receives are not an error, and neither is a channel that was already down because
    /// its peer left or this side aborted it: the outcomes of its operations show what was lost.
    /// Take the outcomes that matter first, since they are dropped with the channel. For a channel
    /// in a group, they can still be taken from the group. The channel's place is reused after
    /// that, as for [`remove`](crate::ChannelGroup::remove).
    ///
    /// ```no_run
    /// # use verbs_channel::Channel;
    /// # use verbs_channel::error::CloseError;
    /// # fn reuse_pages() {}
    /// # fn example(channel: Channel) {
    /// match channel.close() {
    ///     Ok(()) => reuse_pages(),
    ///     // The device is done with the pages, but the peer may not have got all of them.
    ///     Err(CloseError::Down(reason)) => eprintln!("{reason}"),
    ///     // The pages must not be used again. Owned buffers in flight were leaked.
    ///     Err(error) => panic!("{error}"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`CloseError::Down`]: the channel was down for another reason, went down, or the timeout passed. All
    ///   memory can be reused, as after `Ok`.
    /// - [`CloseError::OtherProcess`]: this is the child of a fork. The channel goes on in its parent.
    /// - [`CloseError::Stuck`]: the driver failed to destroy the queue pair. **The device may still access
    ///   memory** that was in flight, and memory that the peer may access.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(mut self) -> Result<(), CloseError> {
        let (poller, at) = self.parts();
        if poller.engine.is_in_child() {
            poller.engine.destroy_now(at, DownReason::Closed);
            return Err(CloseError::OtherProcess);
        }
        if poller.engine.member(at).is_none() {
            // It was removed, and all its outcomes were taken.
            return match poller.engine.has_stuck() {
                true => Err(CloseError::Stuck),
                false => Ok(()),
            };
        }
        let down = |engine: &Engine| engine.member(at).and_then(Member::down);
        let expected = [Some(DownReason::PeerClosed), Some(DownReason::Closed)];
        let is_expected = expected.contains(&down(&poller.engine));
        let timeout = poller.config.timeout;
        let has_sent = poller.wait_until(timeout, |engine| {
            down(engine).is_some()
                || engine
                    .member(at)
                    .is_none_or(|member| member.credits.in_flight(Queue::Send) == 0)
        });
        let down = down(&poller.engine).or_else(|| {
            let queue = Queue::Send;
            let after = timeout.unwrap_or_default();
            (!has_sent).then_some(DownReason::TimedOut { queue, after })
        });
        let reason = down.unwrap_or(DownReason::Closed);
        if !poller.engine.is_idle_at(at) {
            poller.abort(at, reason);
        }
        poller.engine.destroy_now(at, reason);
        poller.finish_destroying();
        poller.engine.remove_at(at);
        let destroyed = poller.engine.member(at).and_then(Member::destroyed);
        // It has not been destroyed if a layer above has taken it out.
        destroyed.unwrap_or(Err(CloseError::Stuck))?;
        down.filter(|_| !is_expected)
            .map_or(Ok(()), |reason| Err(CloseError::Down(reason)))
    }
}
