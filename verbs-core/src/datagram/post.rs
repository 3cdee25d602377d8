//! Posting datagrams.
//!
//! Nothing here allocates, locks, logs or formats, except for the error of a failed post, and for a check in
//! debug builds.
#![expect(unsafe_code, reason = "hands work requests to the device")]

use std::ops::RangeBounds;
use std::ptr;

use verbs_sys::{
    ibv_post_recv, ibv_post_send, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wr_set_ud_addr,
};

use super::DatagramQueuePair;
use crate::codes::macros::man;
use crate::error::PostError;
use crate::error::post_error::{Queue, accepted};
use crate::path::{AddressHandle, QKey};
use crate::queue_pair::extended::sealed;
use crate::queue_pair::post::{receive_refused, send_refused};
use crate::queue_pair::post_chain::receive_chain_refused;
use crate::queue_pair::{QpCap, SendQueue, WorkRequestBatch};
#[cfg(debug_assertions)]
use crate::work_request::chain::check_domain;
use crate::work_request::chain::post::post_part;
use crate::work_request::{DatagramWorkRequest, ReceiveWorkRequest, RequestChain, WorkRequest};

impl SendQueue for DatagramQueuePair {}
impl sealed::SendQueue for DatagramQueuePair {
    const HAS_ADDRESSES: bool = true;

    #[inline]
    fn raw(&self) -> (*mut ibv_qp, QpCap) {
        (self.as_ptr(), self.cap())
    }

    #[inline]
    fn send_ops_flags(&self) -> u64 {
        self.send_ops_flags
    }
}

impl WorkRequestBatch<'_, DatagramQueuePair> {
    /// Sets the address of the last request: the queue pair that it is for, and the path to it.
    ///
    /// The device needs the handle until the request has completed.
    ///
    /// # Safety
    ///
    /// - A request was added, whose address has not been set yet. If it is a send of a datagram (UD), it has at most
    ///   [`max_payload`](DatagramQueuePair::max_payload) bytes.
    /// - `ah` is of the protection domain of this queue pair, and is destroyed after the request has completed.
    #[inline]
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub unsafe fn set_ud_addr(&mut self, ah: &AddressHandle, remote_qpn: u32, remote_qkey: QKey) {
        // SAFETY: a batch is open, and the caller has added a request to it. `QueuePairEx::new` has checked that the
        // queue pair has this function.
        unsafe { ibv_wr_set_ud_addr(self.as_ptr(), ah.as_ptr(), remote_qpn, remote_qkey.get()) };
    }
}

impl DatagramQueuePair {
    /// Posts datagrams: one, or a chain of them.
    ///
    /// The datagrams of an array, slice or vector are a chain, which is posted with one doorbell. This
    /// function returns at once. Each signalled datagram produces a completion on the
    /// [`send_cq`](Self::send_cq) when it has left, whether or not it arrives.
    ///
    /// A datagram of more than [`max_payload`](Self::max_payload) bytes is rejected here. Drivers
    /// would accept it, complete it successfully and send nothing.
    ///
    /// # Safety
    ///
    /// A request *holds* its memory from this call until its own completion or the completion of a
    /// later signalled request of this send queue is polled, or until the queue pair is destroyed
    /// ([`close`](Self::close) returns `Ok`) or reset. An
    /// [`inline`](DatagramWorkRequest::inline) request holds its memory during this call only.
    ///
    /// For each request that is posted (after an error these are the first [`PostError::posted`]):
    ///
    /// - Its memory stays allocated, and registered under the `lkey` of its element, while the
    ///   request holds it.
    /// - The region of each element belongs to this queue pair's [`pd`](Self::pd), as for
    ///   [`QueuePair::post`](crate::QueuePair::post).
    /// - No code writes to its memory while the request holds it, and no `&mut` to it is live. This
    ///   rule concerns a [`MemoryRegion`](crate::MemoryRegion) only: the memory of other regions is
    ///   never borrowed.
    /// - Its [`AddressHandle`] belongs to this queue pair's protection domain. It
    ///   is not destroyed until the request has completed, or the queue pair is destroyed or reset, even
    ///   if the request is inline. (mlx4, mlx5 and hns copy the path when the request is posted.
    ///   soft-RoCE, efa, irdma and `bnxt_re` put the handle's number into the request, and read the path
    ///   when they send. If another handle has that number by then, the datagram goes to that handle's
    ///   port. `ibv_post_send(3)` permits both.)
    /// - If it is inline: its elements have at most
    ///   [`max_inline_data`](crate::queue_pair::QpCap::max_inline_data) bytes together, as granted in
    ///   [`cap`](Self::cap), this processor can read them, and no thread and no peer writes to them
    ///   during this call: as for [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// For the queue pair:
    ///
    /// - During this call no other thread moves it to [`RESET`](crate::codes::QpState::RESET), by
    ///   [`modify`](Self::modify) or by other means.
    /// - Its completion queue does not belong to a higher layer, as for
    ///   [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// # Errors
    ///
    /// [`PostError`] if a request was rejected. The requests before it are posted. If the driver does
    /// not name the rejected request, all of them may be posted: see [`PostError::posted`].
    ///
    /// A debug build rejects all requests if this crate has registered the memory of one of them in
    /// another protection domain.
    #[doc = man!("ibv_post_send")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub unsafe fn post_send<'l>(
        &self,
        requests: &mut (impl AsMut<[DatagramWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        let requests = DatagramWorkRequest::as_any(requests.as_mut());
        let max = u64::from(self.max_payload());
        let is_too_long = |request: &WorkRequest<'l>| request.total_len() > max;
        let Some(at) = requests.iter().position(is_too_long) else {
            // SAFETY: the caller promises the same for each request as `post` asks for.
            return unsafe { self.post(requests) };
        };
        // SAFETY: the caller promises the same for each request as `post` asks for.
        unsafe { self.post(&mut requests[..at]) }?;
        let found = requests[at].total_len();
        Err(PostError::too_long(at, found, self.max_payload()))
    }

    #[inline]
    unsafe fn post(&self, requests: &mut [WorkRequest<'_>]) -> Result<(), PostError> {
        let Some(head) = WorkRequest::chain(requests) else {
            return Ok(());
        };
        #[cfg(debug_assertions)]
        // SAFETY: `head` begins these requests.
        unsafe { check_domain::check(self.pd(), Queue::Send, head, requests.len()) }?;
        let mut bad: *mut ibv_send_wr = ptr::null_mut();
        // SAFETY: the queue pair is alive, `head` begins a chain of living requests that ends, each
        // with a handle, and the caller keeps their buffers and handles.
        let ret = unsafe { ibv_post_send(self.as_ptr(), head, &raw mut bad) };
        if accepted(ret, bad) {
            return Ok(());
        }
        Err(send_refused(self.cap, ret, &mut bad, requests))
    }

    /// Posts receives: one, or a chain of them.
    ///
    /// The receives of an array, slice or vector are a chain, which is posted with one doorbell. This
    /// function returns at once. Each receive produces a completion on the [`recv_cq`](Self::recv_cq) when a
    /// datagram is in its buffers, after [`Grh::LEN`](crate::completion::Grh::LEN) other bytes. So its
    /// buffers need 40 bytes more than the longest datagram has. If they are too short for a datagram, it
    /// is dropped silently, or the queue pair fails, depending on the driver.
    ///
    /// # Safety
    ///
    /// A receive *holds* its memory from this call until its own completion is polled, or until the
    /// queue pair is destroyed ([`close`](Self::close) returns `Ok`) or reset.
    ///
    /// For each receive that is posted (after an error these are the first [`PostError::posted`]):
    ///
    /// - Its memory stays allocated, and registered under the `lkey` of its element, while the receive
    ///   holds it.
    /// - The region of each element belongs to this queue pair's [`pd`](Self::pd), as for
    ///   [`QueuePair::post`](crate::QueuePair::post).
    /// - No code reads or writes its memory while the receive holds it, and no `&` or `&mut` to it is
    ///   live. This rule concerns a [`MemoryRegion`](crate::MemoryRegion) only: the memory of other
    ///   regions is never borrowed.
    ///
    /// For the queue pair:
    ///
    /// - During this call no other thread moves it to [`RESET`](crate::codes::QpState::RESET), by
    ///   [`modify`](Self::modify) or by other means.
    /// - Its completion queue does not belong to a higher layer, as for
    ///   [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// # Errors
    ///
    /// [`PostError`] if a receive was rejected. The receives before it are posted. If the driver does
    /// not name the rejected receive, all of them may be posted: see [`PostError::posted`].
    ///
    /// A debug build rejects all receives if this crate has registered the memory of one of them in
    /// another protection domain.
    #[doc = man!("ibv_post_recv")]
    #[doc(alias = "ibv_post_recv")]
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
        unsafe { check_domain::check(self.pd(), Queue::Receive, head, requests.len()) }?;
        let mut bad: *mut ibv_recv_wr = ptr::null_mut();
        // SAFETY: the queue pair is alive, `head` begins a chain of living requests that ends, and
        // the caller keeps their buffers.
        let ret = unsafe { ibv_post_recv(self.as_ptr(), head, &raw mut bad) };
        if accepted(ret, bad) {
            return Ok(());
        }
        Err(receive_refused(self.cap, ret, &mut bad, requests))
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
    #[doc = man!("ibv_post_recv")]
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_chain(
        &self,
        chain: &mut RequestChain<ReceiveWorkRequest<'_>>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        // SAFETY: the queue pair is alive, the receives from `head` on are alive and end, and the caller
        // keeps their buffers.
        let post = |head, bad| unsafe { ibv_post_recv(self.as_ptr(), head, bad) };
        post_part(
            self.pd(),
            Queue::Receive,
            chain,
            range,
            post,
            |ret, block, part| receive_chain_refused(self.cap, ret, block, part),
        )
    }
}
