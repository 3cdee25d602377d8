//! Completion queues.
#![expect(unsafe_code, reason = "owns an `ibv_cq`")]

use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use verbs_sys::{
    IBV_CQ_ATTR_MODERATE, IBV_WC_STANDARD_FLAGS, ibv_cq, ibv_cq_ex_to_cq, ibv_cq_init_attr_ex,
    ibv_create_cq, ibv_create_cq_ex, ibv_moderate_cq, ibv_modify_cq, ibv_modify_cq_attr,
    ibv_req_notify_cq, ibv_resize_cq,
};

use super::CompletionChannel;
use super::channel::Events;
use crate::codes::macros::man;
use crate::device::Context;
use crate::error::causes::{self, Call};
use crate::error::{Error, ErrorChain, Result};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, log, ret};

/// A completion queue (CQ): where the device reports completed work requests.
///
/// Cloning is cheap and shares the queue. The queue must have room for everything that can complete
/// before it is polled. A queue that overruns loses completions and is unusable.
#[doc = man!("ibv_create_cq")]
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    // Beside `inner`, which keeps it: polling goes without a detour.
    ptr: CqPtr,
    inner: Arc<Inner>,
}

/// A queue that an `Inner` keeps alive.
#[derive(Clone, Copy)]
struct CqPtr(*mut ibv_cq);

struct Inner {
    // `None` only while it is being destroyed.
    cq: Option<Handle<ibv_cq>>,
    ptr: CqPtr,
    capacity: AtomicU32,
    resizing: Mutex<()>,
    // The channel's record of this queue; its address is the queue's `cq_context`.
    events: Option<Arc<Events>>,
    context: Context,
}

#[bon::bon]
impl CompletionQueue {
    /// Creates a queue with room for at least `min_capacity` completions.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] if `min_capacity` is above the device's `max_cqe`, [`Error::OutOfRange`] if it
    /// is 0, otherwise the errno.
    #[doc(alias = "ibv_create_cq")]
    pub fn create(context: &Context, min_capacity: u32) -> Result<Self> {
        Self::builder(context, min_capacity).build()
    }

    /// Starts to build a queue with room for at least `min_capacity` completions (C: `cqe`).
    ///
    /// The driver may give it more: see [`min_capacity`](Self::min_capacity). An example is on
    /// [`CompletionChannel`].
    #[builder(
        builder_type(doc {
            /// Builder for a completion queue, from [`CompletionQueue::builder`].
        }),
        finish_fn(doc {
            /// Creates the queue.
            ///
            /// # Errors
            ///
            /// - [`Error::Limit`] for a capacity above the device's `max_cqe`.
            /// - [`Error::OutOfRange`] for a capacity of 0, or a `comp_vector` that the device does not have.
            /// - [`Error::ForeignContext`] for a channel of another context.
            /// - The errno for anything else.
        }),
        derive(Clone, Debug),
        on(_, setters(doc(default(skip)))),
    )]
    #[expect(clippy::needless_lifetimes, reason = "a setter names it")]
    pub fn new<'a>(
        #[builder(start_fn)] context: &Context,
        #[builder(start_fn)] min_capacity: u32,
        /// The completion channel that receives an event when a completion arrives in the armed queue;
        /// none unless set.
        #[builder(
            required,
            default = None,
            with = |value: impl Into<Option<&'a CompletionChannel>>| value.into(),
            setters(option_fn(vis = ""))
        )]
        channel: Option<&'a CompletionChannel>,
        /// The interrupt vector for its events, below
        /// [`num_comp_vectors`](Context::num_comp_vectors); 0 unless set.
        #[builder(default = 0, setters(option_fn(vis = "")))]
        comp_vector: u32,
    ) -> Result<Self> {
        Self::made(context, min_capacity, channel, comp_vector, None)
    }
}

impl CompletionQueue {
    /// A new queue; an extended one with more than the standard fields if these flags are given.
    pub(super) fn made(
        context: &Context,
        min_capacity: u32,
        channel: Option<&CompletionChannel>,
        comp_vector: u32,
        extended: Option<u64>,
    ) -> Result<Self> {
        let cqe = check_capacity(context, min_capacity)?;
        let vectors = context.num_comp_vectors().max(1);
        if comp_vector >= vectors {
            return Err(Error::OutOfRange {
                what: "comp_vector",
                value: comp_vector.into(),
                min: 0,
                max: u64::from(vectors) - 1,
            });
        }
        if channel.is_some_and(|channel| !channel.context().is(context)) {
            return Err(Error::ForeignContext {
                child: "the completion channel",
            });
        }
        let events = channel.map(|channel| Arc::new(Events::new(channel)));
        let cq_context = events.as_ref().map_or(ptr::null(), Arc::as_ptr);
        let comp_channel = channel.map_or(ptr::null_mut(), CompletionChannel::as_ptr);
        let user = cq_context.cast_mut().cast();
        let made = if let Some(flags) = extended {
            let mut attr = ibv_cq_init_attr_ex {
                cqe: min_capacity,
                cq_context: user,
                channel: comp_channel,
                comp_vector,
                wc_flags: u64::from(IBV_WC_STANDARD_FLAGS) | flags,
                ..Default::default()
            };
            // SAFETY: the context is open and the channel, if any, alive; `Inner` keeps both, and
            // `events` at its address.
            ret::non_null("ibv_create_cq_ex", || unsafe {
                ibv_cq_ex_to_cq(ibv_create_cq_ex(context.as_ptr(), &raw mut attr))
            })
        } else {
            let vector = c_int::try_from(comp_vector).unwrap_or(c_int::MAX);
            // SAFETY: the context is open and the channel, if any, alive; `Inner` keeps both, and
            // `events` at its address.
            ret::non_null("ibv_create_cq", || unsafe {
                ibv_create_cq(context.as_ptr(), cqe, user, comp_channel, vector)
            })
        };
        let cq = made.map_err(|error| {
            let max = context.query_device().ok().map(|device| device.max_cq());
            let (limit, settings) = (("max_cq", max), "the capacity");
            causes::explain(error, &Call::Create { limit, settings })
        })?;
        // SAFETY: the object is new, and its parents are kept next to it.
        let handle = unsafe { Handle::new(cq) };
        Ok(Self::from_handle(handle, events, context, min_capacity))
    }

    /// The queue that owns this handle. `events`, if any, is its `cq_context`.
    fn from_handle(
        cq: Handle<ibv_cq>,
        events: Option<Arc<Events>>,
        context: &Context,
        min_capacity: u32,
    ) -> Self {
        let ptr = CqPtr(cq.as_ptr());
        let inner = Arc::new(Inner {
            cq: Some(cq),
            ptr,
            // The field of hns is the index of the last entry: one less.
            capacity: AtomicU32::new(capacity(ptr.0).max(min_capacity)),
            resizing: Mutex::new(()),
            events,
            context: context.clone(),
        });
        if let Some(events) = &inner.events {
            events.set_queue(WeakQueue(Arc::downgrade(&inner)));
        }
        Self { ptr, inner }
    }

    /// Takes over a queue that another library made, such as `mlx5dv_create_cq` or `efadv_create_cq`.
    ///
    /// `channel` is the channel with which the queue was made, if its events are to be taken from
    /// there. In this case the queue's `cq_context` is overwritten. It is null when `destroy` is called: if
    /// the queue lives on, whoever takes its events from the channel acknowledges them, and does no more.
    ///
    /// # Safety
    ///
    /// - `cq` is alive, and was not made for a single thread.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so, it stays alive until
    ///   `destroy` has been called. `destroy` does not panic.
    /// - With a channel: it has not been armed yet, and nothing else uses its `cq_context`.
    /// - If it was made with a channel but `channel` is `None`: the caller acknowledges all of its
    ///   events before the queue is destroyed.
    /// - While requests of this crate complete on it, nothing else polls it.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context, [`Error::ForeignParent`] if it
    /// was not made with this channel. `destroy` is then dropped without having been called.
    #[doc(alias = "ibv_cq_ex_to_cq")]
    pub unsafe fn from_raw(
        cq: NonNull<ibv_cq>,
        context: &Context,
        channel: Option<&CompletionChannel>,
        destroy: Destroy<ibv_cq>,
    ) -> Result<Self> {
        let child = "the completion queue";
        // SAFETY: the caller has a living queue, whose context is not changed.
        context.must_be(unsafe { (*cq.as_ptr()).context }, child)?;
        let events = channel.map(|channel| Arc::new(Events::new(channel)));
        if let Some(events) = &events {
            // SAFETY: the caller has a living queue, whose channel is not changed.
            let of = unsafe { (*cq.as_ptr()).channel };
            if of != events.channel().as_ptr() {
                let parent = "completion channel";
                return Err(Error::ForeignParent { child, parent });
            }
            let user = Arc::as_ptr(events).cast_mut().cast();
            // SAFETY: the caller leaves the field to this crate; there are no events yet.
            unsafe { (*cq.as_ptr()).cq_context = user };
        }
        // SAFETY: the caller hands it over, with what destroys it.
        let cq = unsafe { Handle::foreign(cq, destroy) };
        Ok(Self::from_handle(cq, events, context, 0))
    }
}

/// A queue, if it is still there.
#[derive(Clone)]
pub(super) struct WeakQueue(Weak<Inner>);

impl WeakQueue {
    pub(super) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Whether it is this queue. No later queue can be taken for it: its address is not used again
    /// while `self` is there.
    pub(super) fn is(&self, cq: &CompletionQueue) -> bool {
        ptr::eq(self.0.as_ptr(), Arc::as_ptr(&cq.inner))
    }

    pub(super) fn upgrade(&self) -> Option<CompletionQueue> {
        let inner = self.0.upgrade()?;
        let ptr = inner.ptr;
        Some(CompletionQueue { ptr, inner })
    }
}

impl CompletionQueue {
    /// How many completions it has room for: at least the number requested.
    #[must_use]
    #[doc(alias = "cqe")]
    pub fn min_capacity(&self) -> u32 {
        self.inner.capacity.load(Ordering::Relaxed)
    }

    /// Changes the capacity to at least `min_capacity` completions. The completions in it stay.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), [`Error::Unsupported`] if the driver cannot resize, and the errno if
    /// the completions in the queue would not fit. After an error the queue keeps its size.
    ///
    /// But if the process may not map the new queue of a soft-RoCE device, for example because of
    /// `RLIMIT_AS`, the provider has no queue any more: the errno is `ENOMEM`, and the next poll is a
    /// segmentation fault.
    #[doc = man!("ibv_resize_cq")]
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, min_capacity: u32) -> Result<()> {
        let cqe = check_capacity(self.context(), min_capacity)?;
        let resizing = self.inner.resizing.lock();
        let _one_at_a_time = resizing.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is alive; providers lock against pollers themselves.
        let ret = unsafe { ibv_resize_cq(self.as_ptr(), cqe) };
        ret::errno("ibv_resize_cq", ret)?;
        // Not every driver writes the new one to the queue when the old memory is large enough.
        let now = capacity(self.as_ptr()).max(min_capacity);
        self.inner.capacity.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Delays events until `cq_count` completions have arrived, or `cq_period` microseconds have
    /// passed since the first of them.
    ///
    /// Zero for both, the default, turns this off. With a count and no period, the last completions
    /// of a burst may never cause an event. The device's limits are in
    /// [`cq_mod_caps`](crate::device::DeviceAttrEx::cq_mod_caps).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver has no moderation, otherwise the errno.
    #[doc = man!("ibv_modify_cq")]
    #[doc(alias = "ibv_modify_cq")]
    #[doc(alias = "ibv_moderate_cq")]
    pub fn moderate(&self, cq_count: u16, cq_period: u16) -> Result<()> {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq {
                cq_count,
                cq_period,
            },
        };
        // SAFETY: the queue is alive, and C only reads the attributes.
        let ret = unsafe { ibv_modify_cq(self.as_ptr(), &raw mut attr) };
        ret::errno("ibv_modify_cq", ret)
    }

    /// Arms the queue: the next completion to arrive causes one event on its channel.
    ///
    /// Poll once more after arming: a completion that arrived before causes no event. After the event,
    /// the queue must be armed again. An example is on [`CompletionChannel`].
    ///
    /// With `solicited_only`, only two kinds of completions cause the event: those of a message that
    /// the peer marked as [`solicited`](crate::SendWorkRequest::solicited), and those of a failed
    /// request.
    ///
    /// # Errors
    ///
    /// The errno. Most drivers accept this for a queue without a channel, but then there is no
    /// event.
    #[doc = man!("ibv_req_notify_cq")]
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is alive.
        let ret = unsafe { ibv_req_notify_cq(self.as_ptr(), c_int::from(solicited_only)) };
        ret::errno("ibv_req_notify_cq", ret)
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The completion channel of its events, if it was created with one.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.events.as_ref().map(|events| events.channel())
    }

    /// The kernel's number for the queue, as in [`EventElement::Cq`](crate::device::EventElement::Cq).
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: the queue is alive, and the field is not changed.
        unsafe { (*self.as_ptr()).handle }
    }

    /// The `ibv_cq`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.ptr.0
    }

    /// Whether this and `other` are clones of the same queue.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Destroys the queue and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or queue pairs exist: dropping the last of them destroys the
    /// queue. Otherwise the errno.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(mut inner) => inner.destroy(),
            None => Err(Error::InUse {
                object: "the completion queue",
            }),
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("handle", &self.handle())
            .field("min_capacity", &self.min_capacity())
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Destroys the queue, after acknowledging every event that was taken from its channel:
    /// `ibv_destroy_cq` would wait for them forever.
    fn destroy(&mut self) -> Result<()> {
        let Some(cq) = self.cq.take() else {
            return Ok(());
        };
        // In the child of a fork, the lock may be held by a thread that is not there.
        if let Some(events) = &self.events
            && cq.is_of_this_process()
        {
            events.settle(self.ptr.0);
        }
        cq.close()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.destroy() {
            Ok(()) | Err(Error::OtherProcess { .. }) => {}
            Err(error) => log::error(format_args!(
                "leaked a completion queue: {}",
                ErrorChain::new(&error)
            )),
        }
    }
}

// SAFETY: a CQ may be used from any thread (see `handle`).
unsafe impl Send for CqPtr {}
// SAFETY: a CQ may be used from any thread (see `handle`).
unsafe impl Sync for CqPtr {}

/// C's `cqe`, within the device's limit.
fn check_capacity(context: &Context, min_capacity: u32) -> Result<c_int> {
    let max = context.query_device()?.max_cqe();
    if min_capacity == 0 {
        return Err(Error::OutOfRange {
            what: "cqe",
            value: 0,
            min: 1,
            max: max.into(),
        });
    }
    Context::within("cqe", min_capacity, max)?;
    Ok(c_int::try_from(min_capacity).unwrap_or(c_int::MAX))
}

/// The capacity of a queue that is alive and is not resized meanwhile.
fn capacity(cq: *mut ibv_cq) -> u32 {
    // SAFETY: both callers have a queue that is alive, and no other thread changes the field.
    let cqe = unsafe { (*cq).cqe };
    u32::try_from(cqe).unwrap_or(0)
}
