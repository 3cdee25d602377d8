//! Posting: the half of the data path that takes work requests to the device.
//!
//! Nothing here allocates, locks, logs or formats, except for the error of a failed post, and for a check in
//! debug builds.
#![expect(unsafe_code, reason = "hands work requests to the device")]

use std::ptr;

use verbs_sys::{
    IBV_SEND_SIGNALED, ibv_bind_mw, ibv_mw_bind, ibv_post_recv, ibv_post_send, ibv_recv_wr,
    ibv_send_wr,
};

use super::{OwnReceives, PreparedQueuePair, QpCap, QueuePair, SharedReceives};
use crate::codes::macros::man;
use crate::error::post_error::{Queue, Reason, accepted, position, reason};
use crate::error::{PostError, Result};
use crate::ffi::ret;
use crate::memory::{MemoryWindow, MwBindInfo, MwType, RemoteMemoryRegion};
#[cfg(debug_assertions)]
use crate::work_request::chain::check_domain;
use crate::work_request::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};

impl<R> QueuePair<R> {
    /// Posts work requests of any kind to the send queue: one request, or a chain of them.
    ///
    /// The requests of an array, slice or vector are a chain, which is posted with one doorbell. The
    /// device carries them out in order. This function returns at once. Each signalled request produces
    /// a completion on the [`send_cq`](Self::send_cq) when it is done. The list of elements is copied,
    /// so it can be reused after this returns.
    ///
    /// A write, and a message that announces it, with one doorbell and one completion:
    ///
    /// ```no_run
    /// use verbs_core::{
    ///     GatherElement, QueuePair, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
    /// };
    ///
    /// /// # Safety
    /// ///
    /// /// Nothing writes to `data` until the completion with `wr_id` has been polled.
    /// unsafe fn write_and_announce(
    ///     qp: &QueuePair,
    ///     data: &mut GatherElement<'_>,
    ///     remote: &RemoteMemoryRegion,
    ///     wr_id: u64,
    /// ) -> verbs_core::Result<()> {
    ///     let write = WriteWorkRequest::new(data, remote)?.unsignaled();
    ///     let announce = SendWorkRequest::empty().immediate(7).wr_id(wr_id);
    ///     // The caller's promise; the send has no memory.
    ///     unsafe { qp.post(&mut [write.into(), announce.into()])? };
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// A request *holds* its memory from this call until its own completion or the completion of a
    /// later signalled request of this send queue is polled, or until the queue pair is
    /// destroyed ([`close`](Self::close) returns `Ok`) or reset. An
    /// [`inline`](SendWorkRequest::inline) request holds its memory during this call only.
    ///
    /// For each request that is posted (after an error these are the first [`PostError::posted`]):
    ///
    /// - Its memory stays allocated, and registered under the `lkey` of its element, while the
    ///   request holds it.
    /// - The region of each element belongs to this queue pair's [`pd`](Self::pd). On another device, or
    ///   in another protection domain, the same `lkey` may refer to other memory. A debug build checks
    ///   this for regions that this crate registered.
    /// - If it sends or writes: no code writes to its memory while the request holds it, and no
    ///   `&mut` to it is live.
    /// - If it reads or is an atomic: no code reads or writes the memory of its elements while the
    ///   request holds it, and no `&` or `&mut` to it is live.
    /// - The two rules above concern a [`MemoryRegion`](crate::MemoryRegion) only. The memory of other
    ///   regions is never borrowed: [`SharedRegion`](crate::SharedRegion) ensures this itself, and
    ///   the code that registers a [`RawRegion`](crate::memory::RawRegion) or a
    ///   [`DmabufRegion`](crate::memory::DmabufRegion) promises it.
    /// - Its elements have at most [`max_msg_sz`](Self::max_msg_sz) bytes in total.
    /// - If it is inline: its elements have at most [`max_inline_data`](crate::queue_pair::QpCap::max_inline_data)
    ///   bytes in total, as granted in [`cap`](Self::cap). Add up the lengths in 64 bits: drivers use 32
    ///   bits, and a sum that wraps overwrites memory.
    /// - If it is inline: this processor can read its memory at the address in each element. A
    ///   [`DmabufRegion`](crate::memory::DmabufRegion) has no such address.
    /// - If it is inline: no thread and no peer writes to its memory during this call. This rules out
    ///   a [`SharedElement`](crate::memory::SharedElement) that a peer or another thread may write to.
    /// - If it is a bind: its window and its region belong to this queue pair's [`pd`](Self::pd). The window is not
    ///   deallocated before the request has completed. The region is not deregistered before that, nor while the
    ///   window is bound to it: on another region with the same key, the peer would have access to other memory.
    ///
    /// For the queue pair:
    ///
    /// - If it was built with [`send_ops_flags`](crate::queue_pair::QueuePairConfig::send_ops_flags): the kind of each
    ///   request is one of them. mlx5's library makes the queue just wide enough for those.
    /// - During this call no other thread moves it to [`RESET`](crate::codes::QpState::RESET), by
    ///   [`modify`](Self::modify) or by other means.
    /// - Its completion queue does not belong to a higher layer, such as verbs-channel: that layer
    ///   would mistake this request's `wr_id` for one of its own.
    ///
    /// # Errors
    ///
    /// [`PostError`] if a request was rejected. The requests before it are posted. If the driver does
    /// not name the rejected request, all requests may be posted: see [`PostError::posted`].
    ///
    /// A debug build rejects all requests if this crate registered the memory of one of them in
    /// another protection domain.
    #[doc = man!("ibv_post_send")]
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post<'l>(
        &self,
        requests: &mut (impl AsMut<[WorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        let requests = requests.as_mut();
        let Some(head) = WorkRequest::chain(requests) else {
            return Ok(());
        };
        #[cfg(debug_assertions)]
        // SAFETY: `head` begins these requests.
        unsafe { check_domain::check(self.pd(), Queue::Send, head, requests.len()) }?;
        let mut bad: *mut ibv_send_wr = ptr::null_mut();
        // SAFETY: the queue pair is alive, `head` begins a chain of living requests that ends, and
        // the caller keeps their buffers.
        let ret = unsafe { ibv_post_send(self.as_ptr(), head, &raw mut bad) };
        if accepted(ret, bad) {
            return Ok(());
        }
        Err(send_refused(self.qp.cap, ret, &mut bad, requests))
    }

    /// Posts sends: one, or a chain of them, as [`post`](Self::post) does.
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub unsafe fn post_send<'l>(
        &self,
        requests: &mut (impl AsMut<[SendWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        // SAFETY: the caller promises for each send what `post` asks for.
        unsafe { self.post(SendWorkRequest::as_any(requests.as_mut())) }
    }

    /// Posts RDMA writes: one, or a chain of them, as [`post`](Self::post) does.
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub unsafe fn post_write<'l>(
        &self,
        requests: &mut (impl AsMut<[WriteWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        // SAFETY: the caller promises for each write what `post` asks for.
        unsafe { self.post(WriteWorkRequest::as_any(requests.as_mut())) }
    }

    /// Posts RDMA reads: one, or a chain of them, as [`post`](Self::post) does.
    ///
    /// Check [`max_rd_atomic`](Self::max_rd_atomic) first. If it is 0, which the peer can cause, a read
    /// never completes, and no timeout or retry count ends it.
    ///
    /// ```no_run
    /// use verbs_core::{QueuePair, ReadWorkRequest, RemoteMemoryRegion, ScatterElement};
    ///
    /// /// # Safety
    /// ///
    /// /// Nothing accesses `into` until the completion with `wr_id` has been polled.
    /// unsafe fn read(
    ///     qp: &QueuePair,
    ///     into: &mut ScatterElement<'_>,
    ///     remote: &RemoteMemoryRegion,
    ///     wr_id: u64,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     if qp.max_rd_atomic() == 0 {
    ///         return Err("the peer serves no reads".into());
    ///     }
    ///     // The caller's promise.
    ///     unsafe { qp.post_read(&mut ReadWorkRequest::new(into, remote)?.wr_id(wr_id))? };
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub unsafe fn post_read<'l>(
        &self,
        requests: &mut (impl AsMut<[ReadWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        // SAFETY: the caller promises for each read what `post` asks for.
        unsafe { self.post(ReadWorkRequest::as_any(requests.as_mut())) }
    }

    /// Posts atomics: one, or a chain of them, as [`post`](Self::post) does.
    ///
    /// Check [`max_rd_atomic`](Self::max_rd_atomic) first. If it is 0, which the peer can cause, an
    /// atomic never completes, and no timeout or retry count ends it.
    ///
    /// ```no_run
    /// use verbs_core::{QueuePair, RemoteMemoryRegion, ScatterElement};
    /// use verbs_core::work_request::AtomicWorkRequest;
    ///
    /// /// # Safety
    /// ///
    /// /// Nothing accesses `before`, 8 bytes, until the completion with `wr_id` has been polled.
    /// unsafe fn next_number(
    ///     qp: &QueuePair,
    ///     before: &mut ScatterElement<'_>,
    ///     counter: &RemoteMemoryRegion,
    ///     wr_id: u64,
    /// ) -> verbs_core::Result<()> {
    ///     let mut add = AtomicWorkRequest::fetch_and_add(before, counter, 1)?.wr_id(wr_id);
    ///     // The caller's promise.
    ///     unsafe { qp.post_atomic(&mut add)? };
    ///     Ok(())
    /// }
    /// ```
    ///
    /// The previous value is then in the 8 bytes of `before`: `u64::from_ne_bytes` reads it.
    ///
    /// # Safety
    ///
    /// As [`post`](Self::post).
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub unsafe fn post_atomic<'l>(
        &self,
        requests: &mut (impl AsMut<[AtomicWorkRequest<'l>]> + ?Sized),
    ) -> Result<(), PostError> {
        // SAFETY: the caller promises for each atomic what `post` asks for.
        unsafe { self.post(AtomicWorkRequest::as_any(requests.as_mut())) }
    }

    /// Binds a window of type 1 to a part of a region, and returns what the peer needs: the next key of the window.
    ///
    /// It is a request to the send queue, signalled, with the `wr_id`. Once its completion has been polled, peers have
    /// access by all queue pairs of the protection domain, and none by the key that the window had before. To take back
    /// a key, bind the window to an empty part: C's other way, a bind to no region, ends the process on soft-RoCE.
    ///
    /// # Safety
    ///
    /// - The point of [`post`](Self::post) about a bind, and those about the queue pair.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the window is of type 2,
    /// [`Error::ForeignParent`](crate::Error::ForeignParent) if the region is of another protection domain, otherwise
    /// the errno.
    #[doc = man!("ibv_bind_mw")]
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_mw_bind")]
    pub unsafe fn bind_mw(
        &self,
        window: &mut MemoryWindow,
        info: &MwBindInfo<'_>,
        wr_id: u64,
    ) -> Result<RemoteMemoryRegion> {
        window.must_be(MwType::Type1)?;
        let mut bind = ibv_mw_bind {
            wr_id,
            send_flags: IBV_SEND_SIGNALED.0,
            bind_info: info.for_window(window)?,
        };
        // SAFETY: the queue pair and the window are alive, and so is the region while its `MwBindInfo` is.
        let ret = unsafe { ibv_bind_mw(self.as_ptr(), window.as_ptr(), &raw mut bind) };
        ret::errno("ibv_bind_mw", ret)?;
        Ok(info.remote(window.bound()))
    }
}

/// A queue pair on a shared receive queue without its type, for a layer above that has queue pairs of both types.
///
/// # Safety
///
/// - No receive is posted on it, nor on the queue pair that it becomes.
#[must_use]
pub unsafe fn assume_own_receives(
    prepared: PreparedQueuePair<SharedReceives>,
) -> PreparedQueuePair {
    let PreparedQueuePair {
        qp,
        receives,
        path,
        psn,
    } = prepared;
    PreparedQueuePair {
        qp,
        receives: receives.assume_own(),
        path,
        psn,
    }
}

macro_rules! receives {
    ($($qp:ident)*) => {$(
        impl $qp<OwnReceives> {
            /// Posts receives: one, or a chain of them.
            ///
            /// The receives of an array, slice or vector are a chain, which is posted with one doorbell.
            /// This function returns at once. Each receive produces a completion on the
            /// [`recv_cq`](Self::recv_cq) when the peer's message is in its buffers.
            ///
            /// # Safety
            ///
            /// A receive *holds* its memory from this call until its own completion is polled, or
            /// until the queue pair is destroyed ([`close`](Self::close) returns `Ok`) or reset.
            ///
            /// For each receive that is posted (after an error these are the first
            /// [`PostError::posted`]):
            ///
            /// - Its memory stays allocated, and registered under the `lkey` of its element, while the
            ///   receive holds it.
            /// - The region of each element belongs to the protection domain of this queue, as for
            ///   [`QueuePair::post`].
            /// - No code reads or writes its memory while the receive holds it, and no `&` or `&mut`
            ///   to it is live. This rule concerns a [`MemoryRegion`](crate::MemoryRegion) only: the
            ///   memory of other regions is never borrowed.
            ///
            /// For the queue pair:
            ///
            /// - During this call no other thread moves it to [`RESET`](crate::codes::QpState::RESET), by
            ///   [`modify`](Self::modify) or by other means.
            /// - Its completion queue does not belong to a higher layer, as for [`QueuePair::post`].
            ///
            /// # Errors
            ///
            /// [`PostError`] if a receive was rejected. The receives before it are posted. If the
            /// driver does not name the rejected receive, all of them may be posted: see
            /// [`PostError::posted`].
            ///
            /// A debug build rejects all receives if this crate registered the memory of one of them
            /// in another protection domain.
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
                // SAFETY: the queue pair is alive, `head` begins a chain of living requests that
                // ends, and the caller keeps their buffers.
                let ret = unsafe { ibv_post_recv(self.as_ptr(), head, &raw mut bad) };
                if accepted(ret, bad) {
                    return Ok(());
                }
                Err(receive_refused(self.qp.cap, ret, &mut bad, requests))
            }
        }
    )*};
}

receives! { PreparedQueuePair QueuePair }

/// Why a chain of sends was refused, by a queue pair of these capacities.
#[cold]
#[inline(never)]
pub(crate) fn send_refused(
    cap: QpCap,
    ret: i32,
    bad: &mut *mut ibv_send_wr,
    requests: &[WorkRequest<'_>],
) -> PostError {
    let posted = position(bad, requests);
    let request = requests.get(posted);
    let max_inline = cap.max_inline_data;
    let inline = request.filter(|request| request.is_inline());
    let inline = inline.map_or(0, WorkRequest::total_len);
    let (found, max, reason) = if inline > max_inline.into() {
        (inline, max_inline, Reason::Inline)
    } else {
        let count = request.map_or(0, WorkRequest::num_sge);
        let (max_wr, max_sge) = (cap.max_send_wr, cap.max_send_sge);
        reason(ret, count, max_sge, max_wr)
    };
    PostError::new(Queue::Send, posted, ret, (found, max, reason))
}

/// Why a chain of receives was refused, by a queue pair of these capacities.
#[cold]
#[inline(never)]
pub(crate) fn receive_refused(
    cap: QpCap,
    ret: i32,
    bad: &mut *mut ibv_recv_wr,
    requests: &[ReceiveWorkRequest<'_>],
) -> PostError {
    let posted = position(bad, requests);
    let request = requests.get(posted);
    let count = request.map_or(0, ReceiveWorkRequest::num_sge);
    let (max_wr, max_sge) = (cap.max_recv_wr, cap.max_recv_sge);
    let reason = reason(ret, count, max_sge, max_wr);
    PostError::new(Queue::Receive, posted, ret, reason)
}
