//! Posting to a shared receive queue.
//!
//! Nothing here allocates, locks, logs or formats, except for the error of a failed post, and for a check in
//! debug builds.
#![expect(unsafe_code, reason = "hands receives to the device")]

use std::ops::{Range, RangeBounds};
use std::ptr;

use verbs_sys::{ibv_post_srq_recv, ibv_recv_wr};

use super::SharedReceiveQueue;
use crate::codes::macros::man;
use crate::error::PostError;
use crate::error::post_error::{Queue, accepted, position, reason};
#[cfg(debug_assertions)]
use crate::work_request::chain::check_domain;
use crate::work_request::chain::post::{post_part, received};
use crate::work_request::{Block, ReceiveWorkRequest, RequestChain};

impl SharedReceiveQueue {
    /// Posts receives: one, or a chain of them.
    ///
    /// The receives of an array, slice or vector are a chain, which is posted with one doorbell. This
    /// function returns at once. Each receive produces a completion when a message is in its buffers, on the
    /// `recv_cq` of the queue pair that the message arrived on.
    ///
    /// # Safety
    ///
    /// A receive *holds* its memory from this call until its own completion is polled, or until the
    /// shared receive queue is destroyed ([`close`](Self::close) returns `Ok`). The failure, the
    /// reset or the destruction of a queue pair gives no memory back.
    ///
    /// For each receive that is posted (after an error these are the first [`PostError::posted`]):
    ///
    /// - Its memory stays allocated, and registered under the `lkey` of its element, while the
    ///   receive holds it. Drivers deregister a region without an error even while receives are
    ///   posted into it.
    /// - The region of each element belongs to this queue's [`pd`](Self::pd), as for
    ///   [`QueuePair::post`](crate::QueuePair::post).
    /// - No code reads or writes its memory while the receive holds it, and no `&` or `&mut` to it
    ///   is live. This rule concerns a [`MemoryRegion`](crate::MemoryRegion) only: the memory of other
    ///   regions is never borrowed.
    ///
    /// For the queue:
    ///
    /// - It does not belong to a higher layer, such as verbs-channel: that layer would mistake this
    ///   receive's `wr_id` for one of its own.
    ///
    /// # Errors
    ///
    /// [`PostError`] if a receive was rejected. The receives before it are posted. If the driver does
    /// not name the rejected receive, all of them may be posted: see [`PostError::posted`].
    ///
    /// A debug build rejects all receives if this crate has registered the memory of one of them in
    /// another protection domain.
    #[doc = man!("ibv_post_srq_recv")]
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive<'l>(
        &self,
        requests: &mut (impl AsMut<[ReceiveWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        let requests = requests.as_mut();
        let Some(head) = ReceiveWorkRequest::chain(requests) else {
            return Ok(());
        };
        #[cfg(debug_assertions)]
        // SAFETY: `head` begins these requests.
        unsafe { check_domain::check(self.pd(), Queue::SharedReceive, head, requests.len()) }?;
        let mut bad: *mut ibv_recv_wr = ptr::null_mut();
        // SAFETY: the queue is alive, `head` begins a chain of living requests that ends, and the
        // caller keeps their buffers.
        let ret = unsafe { ibv_post_srq_recv(self.as_ptr(), head, &raw mut bad) };
        if accepted(ret, bad) {
            return Ok(());
        }
        Err(self.refused(ret, &mut bad, requests))
    }

    /// Posts receives of a [`RequestChain`]: all of them (`..`), or a part
    /// (`start..end`).
    ///
    /// They are posted in their order, with one doorbell. An empty range posts nothing. When this has
    /// returned, the chain can be patched for the next post. If the queue is full, the error's
    /// [`posted`](PostError::posted) counts from the start of the range.
    ///
    /// # Safety
    ///
    /// As [`post_receive`](Self::post_receive), for each receive that is posted. The receives hold the memory
    /// of their elements even if the chain is patched or dropped, which it may be when this has returned.
    ///
    /// # Errors
    ///
    /// [`PostError`] if a receive was rejected, as in [`post_receive`](Self::post_receive), or if the
    /// range reaches past the end of the chain: then nothing is posted.
    #[doc = man!("ibv_post_srq_recv")]
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_receive_chain(
        &self,
        chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        // SAFETY: the queue is alive, the receives from `head` on are alive and end, and the caller keeps
        // their buffers.
        let post = |head, bad| unsafe { ibv_post_srq_recv(self.as_ptr(), head, bad) };
        post_part(
            self.pd(),
            Queue::SharedReceive,
            chain,
            range,
            post,
            |ret, block, part| self.chain_refused(ret, block, &part),
        )
    }

    #[cold]
    #[inline(never)]
    fn chain_refused(
        &self,
        ret: i32,
        block: &mut Block<ibv_recv_wr>,
        part: &Range<usize>,
    ) -> PostError {
        let (mut bad, requests) = received(block, part);
        self.refused(ret, &mut bad, requests)
    }

    #[cold]
    #[inline(never)]
    fn refused(
        &self,
        ret: i32,
        bad: &mut *mut ibv_recv_wr,
        requests: &[ReceiveWorkRequest<'_>],
    ) -> PostError {
        let posted = position(bad, requests);
        let request = requests.get(posted);
        let count = request.map_or(0, ReceiveWorkRequest::num_sge);
        let reason = reason(ret, count, self.max_sge(), self.max_wr());
        PostError::new(Queue::SharedReceive, posted, ret, reason)
    }
}
