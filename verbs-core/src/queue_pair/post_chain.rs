//! Posting chains that were built once: the whole of one, or any part.
//!
//! Nothing here allocates, locks, logs or formats, except for the error of a failed post. Nothing is
//! done for each request.
#![expect(unsafe_code, reason = "hands work requests to the device")]

use std::ffi::c_int;
use std::ops::{Range, RangeBounds};

use verbs_sys::{ibv_post_recv, ibv_post_send, ibv_recv_wr, ibv_send_wr};

use super::post::{receive_refused, send_refused};
use super::{OwnReceives, PreparedQueuePair, QpCap, QueuePair};
use crate::codes::macros::man;
use crate::error::PostError;
use crate::error::post_error::Queue;
use crate::work_request::chain::post::{post_part, received, sent};
use crate::work_request::{Block, ChainRequest, ReceiveWorkRequest, RequestChain};

impl<R> QueuePair<R> {
    /// Posts requests of a [`RequestChain`]: all of them (`..`), or a part (`start..end`).
    ///
    /// They are posted in their order, with one doorbell. This function returns at once. The last request of the
    /// range is always signalled, whatever [`signal_every`](RequestChain::signal_every) chose: once its completion
    /// has been polled, all requests are done. An empty range posts nothing.
    ///
    /// When this has returned, the chain can be patched for the next post. If the queue is full, the
    /// error's [`posted`](PostError::posted) counts from the start of the range. Poll completions, and
    /// post the rest:
    ///
    /// ```no_run
    /// # use verbs_core::{PollSlot, QueuePair, WriteWorkRequest};
    /// # use verbs_core::work_request::RequestChain;
    /// # fn post(
    /// #     qp: &QueuePair,
    /// #     chain: &mut RequestChain<WriteWorkRequest<'_>>,
    /// # ) -> verbs_core::Result<()> {
    /// # let mut slots = [const { PollSlot::new() }; 16];
    /// let mut next = 0;
    /// // Sound: the elements' memory is not accessed until the last completion has been polled.
    /// while let Err(error) = unsafe { qp.post_chain(chain, next..) } {
    ///     if !error.is_full() {
    ///         return Err(error.into());
    ///     }
    ///     next += error.posted();
    ///     for completion in qp.send_cq().poll(&mut slots)? {
    ///         completion.result()?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post), for each request that is posted. The requests hold the memory of their
    /// elements even if the chain is patched or dropped after this returns.
    ///
    /// # Errors
    ///
    /// [`PostError`] if a request was rejected, as in [`post`](Self::post), or if the range extends
    /// past the end of the chain: then nothing is posted.
    #[doc = man!("ibv_post_send")]
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_chain<W: ChainRequest<Wr = ibv_send_wr>>(
        &self,
        chain: &mut RequestChain<W>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        let cap = self.qp.cap;
        // SAFETY: the queue pair is alive, the requests from `head` on are alive and end, and the caller
        // keeps their buffers.
        let post = |head, bad| unsafe { ibv_post_send(self.as_ptr(), head, bad) };
        post_part(
            self.pd(),
            Queue::Send,
            chain,
            range,
            post,
            |ret, block, part| chain_refused(cap, ret, block, part),
        )
    }
}

macro_rules! receives {
    ($($qp:ident)*) => {$(
        impl $qp<OwnReceives> {
            /// Posts receives of a [`RequestChain`]: all of them (`..`), or a part (`start..end`).
            ///
            /// They are posted in their order, with one doorbell. An empty range posts nothing. When
            /// this has returned, the chain can be patched for the next post. If the queue is full, the
            /// error's [`posted`](PostError::posted) counts from the start of the range: post the rest
            /// when receives have completed, as in the example of [`QueuePair::post_chain`].
            ///
            /// # Safety
            ///
            /// As [`post_receive`](Self::post_receive), for each receive that is posted. The receives
            /// hold the memory of their elements even if the chain is patched or dropped, which it may
            /// be when this has returned.
            ///
            /// # Errors
            ///
            /// [`PostError`] if a receive was rejected, as in [`post_receive`](Self::post_receive),
            /// or if the range reaches past the end of the chain: then nothing is posted.
            #[doc = man!("ibv_post_recv")]
            #[doc(alias = "ibv_post_recv")]
            #[inline]
            pub unsafe fn post_receive_chain(
                &self,
                chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
                range: impl RangeBounds<usize>,
            ) -> Result<(), PostError> {
                let cap = self.qp.cap;
                // SAFETY: the queue pair is alive, the receives from `head` on are alive and end, and
                // the caller keeps their buffers.
                let post = |head, bad| unsafe { ibv_post_recv(self.as_ptr(), head, bad) };
                post_part(self.pd(), Queue::Receive, chain, range, post, |ret, block, part| {
                    receive_chain_refused(cap, ret, block, part)
                })
            }
        }
    )*};
}

receives! { PreparedQueuePair QueuePair }

/// Why a part of a chain was refused, by a queue pair of these capacities.
#[cold]
#[inline(never)]
fn chain_refused(
    cap: QpCap,
    ret: c_int,
    block: &mut Block<ibv_send_wr>,
    part: Range<usize>,
) -> PostError {
    let (mut bad, requests) = sent(block, &part);
    send_refused(cap, ret, &mut bad, requests)
}

/// Why a part of a chain of receives was refused, by a queue pair of these capacities.
#[cold]
#[inline(never)]
pub(crate) fn receive_chain_refused(
    cap: QpCap,
    ret: c_int,
    block: &mut Block<ibv_recv_wr>,
    part: Range<usize>,
) -> PostError {
    let (mut bad, requests) = received(block, &part);
    receive_refused(cap, ret, &mut bad, requests)
}
