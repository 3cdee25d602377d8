//! Extended posting (`ibv_wr_*`): requests are written into the send queue one by one, and posted together.
#![expect(unsafe_code, reason = "hands work requests to the device")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_qp, ibv_qp_ex, ibv_qp_to_qp_ex, ibv_wr_abort,
    ibv_wr_complete, ibv_wr_start,
};

use super::{QpCap, QueuePair};
use crate::codes::macros::man;
use crate::error::post_error::{Queue, Reason, reason};
use crate::error::{Error, PostError, Rejected};
use crate::work_request::WorkRequest;
use crate::work_request::extended::MAX_INLINE_LIST;

bitflags::bitflags! {
    /// Requests that a [`QueuePairEx`] can post: those that its queue pair was created for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[doc(alias = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")]
    pub struct SendOpsFlags: u64 {
        /// RDMA writes.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE")]
        const RDMA_WRITE = IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// RDMA writes with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM")]
        const RDMA_WRITE_WITH_IMM = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// Sends.
        #[doc(alias = "IBV_QP_EX_WITH_SEND")]
        const SEND = IBV_QP_EX_WITH_SEND.0 as u64;
        /// Sends with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_IMM")]
        const SEND_WITH_IMM = IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// RDMA reads.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_READ")]
        const RDMA_READ = IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// Compare-and-swaps.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP")]
        const ATOMIC_CMP_AND_SWP = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// Fetch-and-adds.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD")]
        const ATOMIC_FETCH_AND_ADD = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// Invalidations.
        #[doc(alias = "IBV_QP_EX_WITH_LOCAL_INV")]
        const LOCAL_INV = IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
        /// Binds of memory windows.
        #[doc(alias = "IBV_QP_EX_WITH_BIND_MW")]
        const BIND_MW = IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// Sends that invalidate.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_INV")]
        const SEND_WITH_INV = IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
    }
}

/// A queue pair with extended posting (`ibv_wr_*`), the only way to post on some queue pairs of providers.
///
/// It is a [`QueuePair`] or a [`DatagramQueuePair`](crate::datagram::DatagramQueuePair) that was built with
/// [`send_ops_flags`](super::QueuePairConfig::send_ops_flags), or one from another library. Its methods are those of
/// the queue pair, and [`start`](Self::start).
///
/// ```no_run
/// use verbs_core::queue_pair::{QueuePairEx, SendOpsFlags};
/// use verbs_core::{CompletionQueue, Context, QueuePair, SendWorkRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = Context::first_active()?;
/// # let (pd, cq) = (context.alloc_pd()?, CompletionQueue::create(&context, 16)?);
/// # let peer = QueuePair::builder(&pd, &cq, &cq).build()?.endpoint();
/// let prepared = QueuePair::builder(&pd, &cq, &cq)
///     .send_ops_flags(SendOpsFlags::SEND | SendOpsFlags::SEND_WITH_IMM)
///     .build()?;
/// let mut qp = QueuePairEx::new(prepared.handshake(&peer)?)?;
/// let mut batch = qp.start();
/// // Sound: the sends have no memory, and no other layer polls this queue.
/// unsafe { batch.push(SendWorkRequest::empty().immediate(7))? };
/// batch.complete()?;
/// # Ok(())
/// # }
/// ```
///
/// # Queue pairs that a provider's library makes
///
/// - EFA's SRD: call `efadv_create_qp_ex` with these flags, take the queue pair over with
///   [`DatagramQueuePair::from_raw`](crate::datagram::DatagramQueuePair::from_raw), whose configuration has the flags,
///   and then with [`new`](Self::new).
///   Each request gets its address from [`set_ud_addr`](WorkRequestBatch::set_ud_addr). Reads and writes work, too.
/// - A DC initiator of mlx5: call `mlx5dv_create_qp` with these flags, move it to `RTS` in C, and take it over as a
///   connected queue pair, with [`QueuePair::from_raw`] and a configuration with the flags. After each [`push`](WorkRequestBatch::push), call
///   `mlx5dv_wr_set_dc_addr` with `mlx5dv_qp_ex_from_ibv_qp_ex` of [`as_ptr`](WorkRequestBatch::as_ptr).
#[doc = man!("ibv_wr_post")]
#[derive(Debug)]
#[doc(alias = "ibv_qp_ex")]
#[doc(alias = "ibv_create_qp_ex")]
pub struct QueuePairEx<Q: SendQueue = QueuePair> {
    // Before `qp`: a batch that was leaked is aborted first.
    posting: Posting,
    qp: Q,
}

/// The functions of a queue pair that lives, and whether one of its batches is open.
#[derive(Debug)]
struct Posting {
    ex: *mut ibv_qp_ex,
    // Between the start of a batch and its end, which a leaked one does not have.
    is_open: AtomicBool,
}

/// A queue pair that a [`QueuePairEx`] can be made of. It is sealed: types of other crates cannot implement it.
#[expect(private_bounds, reason = "seals it")]
pub trait SendQueue: sealed::SendQueue {}

pub(crate) mod sealed {
    use super::{QpCap, ibv_qp};

    pub(crate) trait SendQueue {
        /// Whether each request has an address.
        const HAS_ADDRESSES: bool;

        fn raw(&self) -> (*mut ibv_qp, QpCap);

        fn send_ops_flags(&self) -> u64;
    }
}

impl<R> SendQueue for QueuePair<R> {}
impl<R> sealed::SendQueue for QueuePair<R> {
    const HAS_ADDRESSES: bool = false;

    #[inline]
    fn raw(&self) -> (*mut ibv_qp, QpCap) {
        (self.as_ptr(), self.cap())
    }

    #[inline]
    fn send_ops_flags(&self) -> u64 {
        self.qp.send_ops_flags
    }
}

// SAFETY: the pointer is that of the queue pair, whose type decides.
unsafe impl<Q: SendQueue + Send> Send for QueuePairEx<Q> {}
// SAFETY: through a shared reference, only the queue pair itself is reached, and one thread ends a leaked batch.
unsafe impl<Q: SendQueue + Sync> Sync for QueuePairEx<Q> {}

impl<Q: SendQueue> QueuePairEx<Q> {
    /// A queue pair that was created with [`SendOpsFlags`].
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if it was created without. The error carries the queue pair.
    #[doc(alias = "ibv_qp_to_qp_ex")]
    pub fn new(qp: Q) -> Result<Self, Rejected<Q>> {
        let mut ex = ptr::null_mut();
        // Not asked otherwise: queue pairs of siw, irdma and others are shorter than what this function reads.
        if qp.send_ops_flags() != 0 {
            // SAFETY: the queue pair is alive, and was created by `ibv_create_qp_ex` or a function like it.
            ex = unsafe { ibv_qp_to_qp_ex(qp.raw().0) };
        }
        // SAFETY: it is null, or the queue pair, which lives as long as `qp`.
        let has_all = unsafe { ex.as_ref() }.is_some_and(|ex| {
            (ex.wr_start.is_some() && ex.wr_complete.is_some() && ex.wr_abort.is_some())
                && (ex.wr_set_sge.is_some() && ex.wr_set_sge_list.is_some())
                && ex.wr_set_inline_data.is_some()
                && (!Q::HAS_ADDRESSES || ex.wr_set_ud_addr.is_some())
        });
        if !has_all {
            let verb = "ibv_qp_to_qp_ex";
            return Err(Rejected::new(Error::Unsupported { verb }, qp));
        }
        let is_open = AtomicBool::new(false);
        let posting = Posting { ex, is_open };
        Ok(Self { posting, qp })
    }

    /// Starts a batch of requests, which [`complete`](WorkRequestBatch::complete) posts.
    ///
    /// Until the batch ends, the queue pair is locked. Do not poll the queue of its completions in the meantime: EFA's
    /// library takes the same lock, and a poll in the thread of the batch waits forever. A batch that was leaked is
    /// aborted when the queue pair is next used or dropped.
    #[inline]
    #[doc(alias = "ibv_wr_start")]
    pub fn start(&mut self) -> WorkRequestBatch<'_, Q> {
        self.posting.abort();
        // SAFETY: the queue pair is alive, has this function, and no batch is open.
        unsafe { ibv_wr_start(self.posting.ex) };
        *self.posting.is_open.get_mut() = true;
        let of_one_thread = PhantomData;
        WorkRequestBatch {
            qp: self,
            of_one_thread,
        }
    }

    /// The queue pair, for plain posts.
    #[must_use]
    #[doc(alias = "ibv_qp_ex_to_qp")]
    pub fn into_inner(self) -> Q {
        self.qp
    }
}

impl Posting {
    #[inline]
    fn abort(&self) {
        if self.is_open.load(Ordering::Relaxed) && self.is_open.swap(false, Ordering::AcqRel) {
            // SAFETY: the queue pair is alive, has this function, and a batch is open, which nothing else ends. Its
            // lock is one of `pthread_spin_lock(3)` in all providers, which any thread can release.
            unsafe { ibv_wr_abort(self.ex) };
        }
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        self.abort();
    }
}

impl<Q: SendQueue> Deref for QueuePairEx<Q> {
    type Target = Q;

    #[inline]
    fn deref(&self) -> &Q {
        self.posting.abort();
        &self.qp
    }
}

/// Requests that are posted together, with one doorbell, or not at all: from [`QueuePairEx::start`].
///
/// Dropping it aborts it: nothing is posted.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
#[doc(alias = "ibv_wr_abort")]
pub struct WorkRequestBatch<'q, Q: SendQueue = QueuePair> {
    qp: &'q mut QueuePairEx<Q>,
    of_one_thread: PhantomData<*const ()>,
}

impl<Q: SendQueue> WorkRequestBatch<'_, Q> {
    /// Adds a request of any kind. Its list of elements, and the bytes of an inline one, are copied.
    ///
    /// # Safety
    ///
    /// - If the batch is completed: the contract of [`QueuePair::post`]. A request holds its memory from the
    ///   completion of the batch on; an inline one during this call only.
    /// - The send queue has room for the request. Unlike a plain post, mlx5's library writes it over the last one that
    ///   had room, which the device may be carrying out. So of [`max_send_wr`](QpCap::max_send_wr) requests, fewer were
    ///   posted or added whose completion, or that of a later signalled one, has not been polled.
    /// - On a queue pair whose requests have addresses, such as one for datagrams: the address is set after this, and
    ///   before the next request.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the errno `EOPNOTSUPP` if the queue pair was not created for such requests, or if the
    /// request has too many elements or inline bytes: more than [`max_inline_data`](QpCap::max_inline_data), or than
    /// 1,024 in several elements. The batch is as before.
    #[inline]
    pub unsafe fn push<'l>(
        &mut self,
        request: impl Into<WorkRequest<'l>>,
    ) -> Result<(), PostError> {
        let request = request.into();
        let (cap, flags) = (self.qp.qp.raw().1, self.qp.qp.send_ops_flags());
        // mlx5's library has all functions, but made its queue for these requests only.
        if flags & request.send_ops_flag() == 0 {
            return Err(not_created_for());
        }
        let count = request.num_sge();
        let max_inline = match count {
            0 | 1 => cap.max_inline_data,
            _ => cap.max_inline_data.min(MAX_INLINE_LIST),
        };
        if count > cap.max_send_sge.into()
            || request.is_inline() && request.total_len() > max_inline.into()
        {
            return Err(too_much(&request, cap.max_send_sge, max_inline));
        }
        // SAFETY: a batch is open, and the caller keeps the memory of the request.
        match unsafe { request.put_into(self.as_ptr()) } {
            true => Ok(()),
            false => Err(not_created_for()),
        }
    }

    /// Posts the requests: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`PostError`]: nothing is posted. It [is full](PostError::is_full) if the queue has no room for all of them.
    #[inline]
    #[doc(alias = "ibv_wr_complete")]
    pub fn complete(self) -> Result<(), PostError> {
        let qp = &mut *self.qp;
        *qp.posting.is_open.get_mut() = false;
        // SAFETY: the queue pair is alive, has this function, and its batch is open until here: dropping `self` does no
        // more.
        match unsafe { ibv_wr_complete(qp.posting.ex) } {
            0 => Ok(()),
            ret => Err(refused(ret, qp.qp.raw().1)),
        }
    }

    /// The `ibv_qp_ex`, for functions of a provider that add to the last request, such as `mlx5dv_wr_set_dc_addr`.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut ibv_qp_ex {
        self.qp.posting.ex
    }
}

impl<Q: SendQueue> Drop for WorkRequestBatch<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.qp.posting.abort();
    }
}

#[cold]
#[inline(never)]
fn too_much(request: &WorkRequest<'_>, max_sge: u32, max_inline: u32) -> PostError {
    let count = request.num_sge();
    let reason = match count > max_sge.into() {
        true => (count, max_sge, Reason::Elements),
        false => (request.total_len(), max_inline, Reason::Inline),
    };
    PostError::new(Queue::Send, 0, libc::EINVAL, reason)
}

#[cold]
#[inline(never)]
fn not_created_for() -> PostError {
    PostError::new(Queue::Send, 0, libc::EOPNOTSUPP, (0, 0, Reason::Operation))
}

#[cold]
#[inline(never)]
fn refused(ret: i32, cap: QpCap) -> PostError {
    // Unlike a plain post, some drivers call a full queue ENOSPC here.
    let full = if ret.abs() == libc::ENOSPC {
        libc::ENOMEM
    } else {
        ret
    };
    PostError::new(Queue::Send, 0, ret, reason(full, 0, 0, cap.max_send_wr))
}
