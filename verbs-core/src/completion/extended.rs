//! Extended completion queues (`ibv_cq_ex`): completions with time stamps.
#![expect(unsafe_code, reason = "polls an `ibv_cq_ex`")]

use std::ops::Deref;
use std::ptr::NonNull;

use verbs_sys::{
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_RECV, IBV_WC_SUCCESS, ibv_cq_ex, ibv_end_poll, ibv_poll_cq_attr, ibv_start_poll, ibv_wc,
};

use super::{CompletionChannel, CompletionQueue, WorkCompletion};
use crate::codes::macros::man;
use crate::device::Context;
use crate::error::Result;
use crate::ffi::{Destroy, ret};

bitflags::bitflags! {
    /// Time stamps of the completions of a [`CompletionQueueEx`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_create_cq_wc_flags")]
    pub struct Timestamps: u64 {
        /// [`completion_ts`](WorkCompletionEx::completion_ts).
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
        const RAW = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// [`completion_wallclock_ns`](WorkCompletionEx::completion_wallclock_ns).
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
        const WALLCLOCK = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

/// A completion queue with time stamps, and the only kind that some providers' queue pairs complete on.
///
/// It is a [`CompletionQueue`], too, for queue pairs that complete on it and for its events. [`poll`](Self::poll) of
/// this type reads the time stamps.
///
/// ```no_run
/// use verbs_core::completion::{CompletionQueueEx, Timestamps};
/// use verbs_core::{Context, QueuePair};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::first_active()?;
/// let pd = context.alloc_pd()?;
/// let cq = CompletionQueueEx::builder(&context, 16).timestamps(Timestamps::RAW).build()?;
/// let qp = QueuePair::builder(&pd, &cq, &cq).build()?;
/// while let Some(completion) = cq.poll()? {
///     println!("{:?} at {:?}", completion.result()?, completion.completion_ts());
/// }
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_create_cq_ex")]
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq_ex")]
#[doc(alias = "ibv_create_cq_ex")]
pub struct CompletionQueueEx {
    // Its `ibv_cq` is the first field of an `ibv_cq_ex`.
    cq: CompletionQueue,
}

/// A completion of a [`CompletionQueueEx`]: a [`WorkCompletion`] and its time stamps.
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletionEx {
    completion: WorkCompletion,
    raw: Option<u64>,
    wallclock: Option<u64>,
}

#[bon::bon]
impl CompletionQueueEx {
    /// Starts to build a queue with room for at least `min_capacity` completions.
    #[builder(
        builder_type(doc {
            /// Builder for an extended completion queue, from [`CompletionQueueEx::builder`].
        }),
        finish_fn(doc {
            /// Creates the queue.
            ///
            /// # Errors
            ///
            /// Those of [`CompletionQueueBuilder::build`](super::CompletionQueueBuilder::build).
            /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no such queues, or none with these
            /// time stamps.
        }),
        derive(Clone, Debug),
        on(_, setters(doc(default(skip)))),
    )]
    #[expect(clippy::needless_lifetimes, reason = "a setter names it")]
    pub fn new<'a>(
        #[builder(start_fn)] context: &Context,
        #[builder(start_fn)] min_capacity: u32,
        /// The completion channel that receives its events; none unless set.
        #[builder(
            required,
            default = None,
            with = |value: impl Into<Option<&'a CompletionChannel>>| value.into(),
            setters(option_fn(vis = ""))
        )]
        channel: Option<&'a CompletionChannel>,
        /// The interrupt vector for its events; 0 unless set.
        #[builder(default = 0, setters(option_fn(vis = "")))]
        comp_vector: u32,
        /// The time stamps of its completions; none unless set.
        #[builder(default = Timestamps::empty(), setters(option_fn(vis = "")))]
        timestamps: Timestamps,
    ) -> Result<Self> {
        let extended = Some(timestamps.bits());
        let cq = CompletionQueue::made(context, min_capacity, channel, comp_vector, extended)?;
        Ok(Self { cq })
    }
}

impl CompletionQueueEx {
    /// Takes over a queue that another library made, such as `mlx5dv_create_cq` or `efadv_create_cq`.
    ///
    /// # Safety
    ///
    /// - The contract of [`CompletionQueue::from_raw`].
    /// - It was made as an `ibv_cq_ex`, not by `ibv_create_cq`.
    /// - A function `read_…` of the `ibv_cq_ex` is null, unless the queue was created for it.
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::from_raw`].
    #[doc(alias = "mlx5dv_create_cq")]
    #[doc(alias = "efadv_create_cq")]
    pub unsafe fn from_raw(
        cq: NonNull<ibv_cq_ex>,
        context: &Context,
        channel: Option<&CompletionChannel>,
        destroy: Destroy<verbs_sys::ibv_cq>,
    ) -> Result<Self> {
        // SAFETY: the caller promises what this asks for; an `ibv_cq_ex` begins with the fields of an `ibv_cq`.
        let cq = unsafe { CompletionQueue::from_raw(cq.cast(), context, channel, destroy) }?;
        Ok(Self { cq })
    }

    /// Takes one completion out of the queue; `None` if there is none now.
    ///
    /// # Errors
    ///
    /// The errno. The device may use the memory of posted requests until their queue pair has been destroyed.
    ///
    /// But if it is `EBUSY`, and the queue has [`WALLCLOCK`](Timestamps::WALLCLOCK) time stamps, poll again: the kernel
    /// was just adjusting the clock.
    #[inline]
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll(&self) -> Result<Option<WorkCompletionEx>> {
        let cq = self.cq.as_ptr().cast::<ibv_cq_ex>();
        let mut attr = ibv_poll_cq_attr::default();
        // SAFETY: the queue is alive, was made as an extended one, and `attr` is a local.
        match unsafe { ibv_start_poll(cq, &raw mut attr) } {
            0 => {}
            libc::ENOENT => return Ok(None),
            ret => return ret::errno("ibv_start_poll", ret).map(|()| None),
        }
        // SAFETY: the queue is alive, and this thread has begun to poll it: no other one does before the end.
        let completion = unsafe { read(cq) };
        // Never `ibv_next_poll`: before rdma-core 55, it skips completions on soft-RoCE.
        // SAFETY: the queue is alive, and this thread has begun to poll it.
        unsafe { ibv_end_poll(cq) };
        Ok(Some(completion))
    }
}

impl Deref for CompletionQueueEx {
    type Target = CompletionQueue;

    #[inline]
    fn deref(&self) -> &CompletionQueue {
        &self.cq
    }
}

impl WorkCompletionEx {
    /// When the request completed, in ticks of the device's clock; `None` if the queue was built without
    /// [`RAW`](Timestamps::RAW).
    ///
    /// [`hca_core_clock`](crate::device::DeviceAttrEx::hca_core_clock) is the frequency of that clock, and
    /// [`completion_timestamp_mask`](crate::device::DeviceAttrEx::completion_timestamp_mask) shows where it wraps.
    #[must_use]
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub const fn completion_ts(&self) -> Option<u64> {
        self.raw
    }

    /// When the request completed, in nanoseconds of the real time; `None` if the queue was built without
    /// [`WALLCLOCK`](Timestamps::WALLCLOCK).
    #[must_use]
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub const fn completion_wallclock_ns(&self) -> Option<u64> {
        self.wallclock
    }
}

impl Deref for WorkCompletionEx {
    type Target = WorkCompletion;

    #[inline]
    fn deref(&self) -> &WorkCompletion {
        &self.completion
    }
}

/// Reads a field of the completion, if the queue was created for it.
macro_rules! field {
    ($cq:ident.$read:ident) => {{
        // SAFETY: the caller has a living queue, whose functions are not changed.
        let read = unsafe { (*$cq).$read };
        // SAFETY: the caller has begun to poll, and this completion has the field.
        read.map(|read| unsafe { read($cq) })
    }};
}

/// The completion that the queue is at.
///
/// # Safety
///
/// The queue is alive, and the calling thread has begun to poll it.
#[inline]
unsafe fn read(cq: *mut ibv_cq_ex) -> WorkCompletionEx {
    let mut wc = ibv_wc {
        // SAFETY: the caller has a living queue that only this thread polls.
        wr_id: unsafe { (*cq).wr_id },
        // SAFETY: the caller has a living queue that only this thread polls.
        status: unsafe { (*cq).status },
        ..Default::default()
    };
    wc.qp_num = field!(cq.read_qp_num).unwrap_or_default();
    wc.vendor_err = field!(cq.read_vendor_err).unwrap_or_default();
    let mut times = (None, None);
    // A failed one has no other fields.
    if wc.status == IBV_WC_SUCCESS {
        wc.opcode = field!(cq.read_opcode).unwrap_or(wc.opcode);
        wc.byte_len = field!(cq.read_byte_len).unwrap_or_default();
        // The others are about what has arrived.
        if wc.opcode.0 & IBV_WC_RECV.0 != 0 {
            wc.wc_flags = field!(cq.read_wc_flags).unwrap_or_default();
            wc.src_qp = field!(cq.read_src_qp).unwrap_or_default();
            // LIDs have 16 bits.
            wc.slid = field!(cq.read_slid)
                .and_then(|lid| lid.try_into().ok())
                .unwrap_or_default();
            wc.sl = field!(cq.read_sl).unwrap_or_default();
            wc.dlid_path_bits = field!(cq.read_dlid_path_bits).unwrap_or_default();
            if let Some(imm_data) = field!(cq.read_imm_data) {
                wc.__bindgen_anon_1.imm_data = imm_data;
            }
        }
        times = (
            field!(cq.read_completion_ts),
            field!(cq.read_completion_wallclock_ns),
        );
    }
    WorkCompletionEx {
        completion: WorkCompletion { wc },
        raw: times.0,
        wallclock: times.1,
    }
}
