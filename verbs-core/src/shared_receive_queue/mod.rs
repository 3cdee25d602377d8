//! Shared receive queues: receives that many queue pairs take from.
#![expect(unsafe_code, reason = "owns an `ibv_srq`")]

mod from_raw;
mod post;

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_sys::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_create_srq, ibv_modify_srq, ibv_query_srq, ibv_srq,
    ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};

use crate::codes::macros::man;
use crate::device::Context;
use crate::domain::ProtectionDomain;
use crate::error::causes::{self, Call};
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::ffi::ret;

/// A shared receive queue (SRQ): receives for the messages of many queue pairs.
///
/// [`QueuePairConfig::srq`](crate::queue_pair::QueuePairConfig::srq) makes a queue pair use it. Each message
/// takes the next receive of the queue, whichever queue pair it arrives on. The receive completes on
/// that queue pair's `recv_cq`, and [`WorkCompletion::qp_num`](crate::WorkCompletion::qp_num) names the
/// queue pair.
///
/// Cloning is cheap and shares the queue. Each queue pair that uses it keeps it alive, so it is destroyed
/// after them. A posted receive belongs to the queue, not to a queue pair: it stays there when a queue
/// pair fails or is destroyed. Receives that are left when the queue is destroyed produce no completions.
///
/// A queue pair takes a receive when a message begins. If the message is cut, the receive completes as flushed after
/// the queue pair was moved to `ERR`, with soft-RoCE a moment later. If the queue pair is destroyed before that
/// completion has been polled, the receive may be lost, since drivers may drop it with the queue pair. Its buffer
/// belongs to the queue until that is destroyed.
#[doc = man!("ibv_create_srq")]
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    // Beside `inner`, which keeps it: posting goes without a detour.
    ptr: SrqPtr,
    inner: Arc<Inner>,
}

/// A queue that an `Inner` keeps alive.
#[derive(Clone, Copy)]
struct SrqPtr(*mut ibv_srq);

struct Inner {
    srq: Handle<ibv_srq>,
    max_wr: AtomicU32,
    max_sge: u32,
    pd: ProtectionDomain,
}

/// The attributes of a shared receive queue, from [`SharedReceiveQueue::query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    max_wr: u32,
    max_sge: u32,
    srq_limit: u32,
}

impl SrqAttr {
    /// How many receives it has room for. A driver may report more than it granted at first.
    #[must_use]
    pub const fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// How many elements a receive can have.
    #[must_use]
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The limit that is armed; 0 if none is.
    #[must_use]
    pub const fn srq_limit(&self) -> u32 {
        self.srq_limit
    }
}

#[bon::bon]
impl SharedReceiveQueue {
    /// Creates a queue with room for at least `max_wr` receives of one element.
    ///
    /// # Errors
    ///
    /// As [`SharedReceiveQueueBuilder::build`].
    #[doc(alias = "ibv_create_srq")]
    pub fn create(pd: &ProtectionDomain, max_wr: u32) -> Result<Self> {
        Self::builder(pd).max_wr(max_wr).build()
    }

    /// Starts to build a queue.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{CompletionQueue, Context, QueuePair, ReceiveWorkRequest};
    /// use verbs_core::shared_receive_queue::SharedReceiveQueue;
    ///
    /// let context = Context::first_active()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let srq = SharedReceiveQueue::builder(&pd).max_wr(64).build()?;
    ///
    /// let queue_pairs = QueuePair::builder(&pd, &cq, &cq).srq(&srq);
    /// let (first, second) = (queue_pairs.build()?, queue_pairs.build()?);
    ///
    /// let mut inbox = pd.reg_mr(vec![0_u8; 4096])?;
    /// let mut room = inbox.scatter_element(..)?;
    /// // Sound: `inbox` is not accessed until the completion has been polled, and is dropped after
    /// // the queue pairs and the shared receive queue.
    /// unsafe { srq.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(1))? };
    /// # drop((first, second, srq));
    /// # Ok(())
    /// # }
    /// ```
    #[builder(
        builder_type(doc {
            /// Builder for a shared receive queue, from [`SharedReceiveQueue::builder`].
        }),
        finish_fn(doc {
            /// Creates the queue.
            ///
            /// # Errors
            ///
            /// - [`Error::Unsupported`] if the device has no shared receive queues.
            /// - [`Error::OutOfRange`] if `max_wr` is 0, [`Error::Limit`] for a capacity above the device's limit.
            /// - The errno for anything else.
        }),
        derive(Clone, Debug),
        on(_, setters(doc(default(skip)))),
    )]
    pub fn new(
        #[builder(start_fn)] pd: &ProtectionDomain,
        /// How many receives the queue has room for; 16 unless set. The driver may grant more.
        #[builder(default = 16, setters(option_fn(vis = "")))]
        max_wr: u32,
        /// How many elements a receive can have; 1 unless set.
        #[builder(default = 1, setters(option_fn(vis = "")))]
        max_sge: u32,
    ) -> Result<Self> {
        let device = pd.context().query_device()?;
        if device.max_srq() == 0 {
            return Err(Error::Unsupported {
                verb: "ibv_create_srq",
            });
        }
        check_max_wr(max_wr, device.max_srq_wr())?;
        Context::within("max_sge", max_sge, device.max_srq_sge())?;
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the PD is alive, and `init` is a local.
        let call = || unsafe { ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let srq = ret::non_null("ibv_create_srq", call).map_err(|error| {
            let (limit, settings) = (("max_srq", Some(device.max_srq())), "max_wr or max_sge");
            causes::explain(error, &Call::Create { limit, settings })
        })?;
        // SAFETY: the object is new, and its PD is kept next to it.
        let srq = unsafe { Handle::new(srq) };
        Ok(Self::new(srq, init.attr, pd))
    }
}

impl SharedReceiveQueue {
    fn new(srq: Handle<ibv_srq>, granted: ibv_srq_attr, pd: &ProtectionDomain) -> Self {
        let ptr = SrqPtr(srq.as_ptr());
        let inner = Arc::new(Inner {
            srq,
            max_wr: AtomicU32::new(granted.max_wr),
            max_sge: granted.max_sge,
            pd: pd.clone(),
        });
        Self { ptr, inner }
    }

    /// Arms the limit (C: `srq_limit`): the device reports when fewer receives than this are left.
    ///
    /// It reports one [`SRQ_LIMIT_REACHED`](crate::device::EventType::SRQ_LIMIT_REACHED) event, with the
    /// [`handle`](Self::handle) of this queue. To get another one, arm the limit again after receives
    /// have been posted. 0 disarms it.
    ///
    /// If fewer receives than the limit are left already, the event comes when the next receive is
    /// used (soft-RoCE), or at once (other drivers).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `srq_limit` is above [`max_wr`](Self::max_wr), otherwise the errno.
    #[doc = man!("ibv_modify_srq")]
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    #[doc(alias = "srq_limit")]
    pub fn arm_limit(&self, srq_limit: u32) -> Result<()> {
        let max_wr = self.max_wr();
        if srq_limit > max_wr {
            return Err(Error::OutOfRange {
                what: "srq_limit",
                value: srq_limit.into(),
                min: 0,
                max: max_wr.into(),
            });
        }
        let attr = ibv_srq_attr {
            srq_limit,
            ..Default::default()
        };
        self.modify(attr, IBV_SRQ_LIMIT).map(drop)
    }

    /// Changes the capacity to at least `max_wr` receives. The receives in it stay.
    ///
    /// A device that can do this has
    /// [`DeviceCapFlags::SRQ_RESIZE`](crate::codes::DeviceCapFlags::SRQ_RESIZE).
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`] if `max_wr` is 0, [`Error::Limit`] if it is above the device's
    ///   `max_srq_wr`.
    /// - The errno if the driver cannot resize, if more receives are posted than would fit, or if the
    ///   limit that is armed is above `max_wr`.
    ///
    /// After an error the queue keeps its capacity.
    #[doc = man!("ibv_modify_srq")]
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        check_max_wr(max_wr, self.pd().context().query_device()?.max_srq_wr())?;
        let attr = ibv_srq_attr {
            max_wr,
            ..Default::default()
        };
        let attr = self.modify(attr, IBV_SRQ_MAX_WR)?;
        self.inner.max_wr.store(attr.max_wr, Ordering::Relaxed);
        Ok(())
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> Result<ibv_srq_attr> {
        let mask = c_int::try_from(mask.0).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive, and `attr` is a local; providers lock against posts themselves.
        let ret = unsafe { ibv_modify_srq(self.as_ptr(), &raw mut attr, mask) };
        ret::errno("ibv_modify_srq", ret).map(|()| attr)
    }

    /// Queries the queue's attributes, including the armed limit.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver cannot do this, as with siw, otherwise the errno.
    #[doc = man!("ibv_query_srq")]
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the queue is alive, and `attr` is a local.
        let ret = unsafe { ibv_query_srq(self.as_ptr(), &raw mut attr) };
        ret::errno("ibv_query_srq", ret)?;
        let ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit,
        } = attr;
        Ok(SrqAttr {
            max_wr,
            max_sge,
            srq_limit,
        })
    }

    /// How many receives it has room for, as the driver granted it.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr.load(Ordering::Relaxed)
    }

    /// How many elements a receive can have, as the driver granted it.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.inner.max_sge
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The kernel's number for it, as in [`EventElement::Srq`](crate::device::EventElement::Srq).
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: the queue is alive, and the field is not changed.
        unsafe { (*self.as_ptr()).handle }
    }

    /// The `ibv_srq`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.ptr.0
    }

    /// Whether this and `other` are clones of the same queue.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Destroys the queue and returns the driver's error, which a drop would only log.
    ///
    /// Receives that are left in it produce no completion. When this has returned `Ok`, the device
    /// does not access their buffers.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or queue pairs exist: dropping the last of them destroys the
    /// queue. Otherwise the errno; the device may then still access the buffers of posted receives.
    #[doc = man!("ibv_destroy_srq")]
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(Inner { srq, pd, .. }) => {
                let closed = srq.close();
                pd.context().unless_removed(closed)
            }
            None => Err(Error::InUse {
                object: "the shared receive queue",
            }),
        }
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("handle", &self.handle())
            .field("max_wr", &self.max_wr())
            .finish_non_exhaustive()
    }
}

// SAFETY: an SRQ may be used from any thread (see `handle`).
unsafe impl Send for SrqPtr {}
// SAFETY: an SRQ may be used from any thread (see `handle`).
unsafe impl Sync for SrqPtr {}

fn check_max_wr(max_wr: u32, max: u32) -> Result<()> {
    if max_wr == 0 {
        return Err(Error::OutOfRange {
            what: "max_wr",
            value: 0,
            min: 1,
            max: max.into(),
        });
    }
    Context::within("max_wr", max_wr, max)
}
