//! Completion channels: a descriptor that announces completions.
//!
//! # Acknowledging events, exactly
//!
//! `ibv_destroy_cq` waits, forever if need be, until every event taken from the channel has been
//! acknowledged. So each event is counted on its queue under the channel's lock, in the same
//! critical section that takes it, and counts are acknowledged in batches. Before a queue is
//! destroyed, the last batch is acknowledged under that lock, and the queue's `cq_context` becomes
//! null. From then on, an event of this queue is acknowledged by whoever takes it, at once, and
//! `ibv_destroy_cq` waits for that as C requires. A queue that lives on, since another library owns
//! it or the driver failed to destroy it, never leads to a record that has been freed.
// tidy: allow(circle): a completion queue and the channel of its events are made of each other
#![expect(unsafe_code, reason = "owns an `ibv_comp_channel`")]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{ffi::c_uint, fmt};

use verbs_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_get_cq_event,
};

use super::CompletionQueue;
use super::queue::WeakQueue;
use crate::codes::macros::man;
use crate::device::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::fd::{self, PollFd};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

/// A completion channel: it lets a thread wait for completions without polling.
///
/// A completion that arrives in an armed queue causes an event on the queue's channel.
///
/// Any number of queues can share one channel. Cloning is cheap and shares it too. To wait for a
/// completion, arm the queue with [`req_notify`](CompletionQueue::req_notify), poll it once more, and
/// wait for an event here.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// # use verbs_core::{CompletionQueue, Context, PollSlot};
/// # use verbs_core::completion::CompletionChannel;
/// # use std::time::Duration;
/// # let context = Context::first_active()?;
/// let channel = CompletionChannel::create(&context)?;
/// let cq = CompletionQueue::builder(&context, 16).channel(&channel).build()?;
/// let mut slots = [const { PollSlot::new() }; 16];
/// cq.req_notify(false)?;
/// while cq.poll(&mut slots)?.is_empty() {
///     let Some(event) = channel.get_cq_event(Some(Duration::from_secs(1)))? else {
///         println!("still nothing");
///         continue;
///     };
///     event.req_notify(false)?;
/// }
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_create_comp_channel")]
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

struct Inner {
    channel: Handle<ibv_comp_channel>,
    taking: Mutex<()>,
    poll_fd: PollFd,
    context: Context,
}

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// The errno, such as `EMFILE`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create(context: &Context) -> Result<Self> {
        // SAFETY: the context is open, and kept next to the channel.
        let call = || unsafe { ibv_create_comp_channel(context.as_ptr()) };
        let channel = ret::non_null("ibv_create_comp_channel", call)?;
        // SAFETY: the object is new.
        let channel = Self::new(unsafe { Handle::new(channel) }, context);
        // Waiting is done by poll(2), with a bound; reading must never block.
        fd::set_nonblocking(channel.raw_fd())?;
        Ok(channel)
    }

    /// Takes over a channel that another library made. Its descriptor becomes nonblocking.
    ///
    /// # Safety
    ///
    /// - `channel` is alive.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so, it stays alive until
    ///   `destroy` has been called. `destroy` does not panic.
    /// - No events are taken from it by other means.
    /// - Each queue on it has a null `cq_context`, or is taken over by
    ///   [`CompletionQueue::from_raw`] with this channel before it is armed.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context, otherwise the errno. `destroy` is
    /// then dropped without having been called.
    pub unsafe fn from_raw(
        channel: NonNull<ibv_comp_channel>,
        context: &Context,
        destroy: Destroy<ibv_comp_channel>,
    ) -> Result<Self> {
        // SAFETY: the caller has a living channel, whose context is not changed.
        let of = unsafe { (*channel.as_ptr()).context };
        context.must_be(of, "the completion channel")?;
        // SAFETY: the caller has a living channel, whose descriptor is not changed.
        let fd = unsafe { (*channel.as_ptr()).fd };
        // SAFETY: a living channel keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // As in `create`. If it fails, `destroy` is not called: nothing was taken over yet.
        fd::set_nonblocking(fd)?;
        // SAFETY: the caller hands it over, with what destroys it.
        let channel = unsafe { Handle::foreign(channel, destroy) };
        Ok(Self::new(channel, context))
    }

    fn new(channel: Handle<ibv_comp_channel>, context: &Context) -> Self {
        Self {
            inner: Arc::new(Inner {
                channel,
                taking: Mutex::new(()),
                poll_fd: PollFd::default(),
                context: context.clone(),
            }),
        }
    }

    /// Waits for an event and takes it; `None` if `timeout` passes first. Without a timeout it waits
    /// forever.
    ///
    /// The event may be for any queue of the channel: see [`CqEvent::is`]. One event may stand for
    /// many completions, or for completions that have been polled already. So arm the queue again,
    /// then poll it until it is empty.
    ///
    /// # Errors
    ///
    /// The errno, such as `EIO` from a device that is gone.
    #[doc = man!("ibv_get_cq_event")]
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn get_cq_event(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>> {
        let deadline = fd::deadline(timeout);
        loop {
            match self.take_event() {
                Ok(Some(event)) => return Ok(Some(event)),
                // The queue is gone or about to be: look for another event.
                Ok(None) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if !fd::wait_readable(self.raw_fd(), deadline)? {
                return Ok(None);
            }
        }
    }

    /// A descriptor to wait on with `poll(2)`, `epoll(7)` or an async runtime: it is readable while
    /// there is an event, or when the device is gone. The first call creates it.
    ///
    /// It is an `epoll(7)` set that holds the channel's own descriptor, so a `read(2)` of it fails
    /// with `EINVAL`. Only [`get_cq_event`](Self::get_cq_event) takes events, since each event must be
    /// acknowledged. The descriptor can be duplicated, and watched level-triggered or edge-triggered:
    /// each event is a new edge.
    ///
    /// # Errors
    ///
    /// The errno, such as `EMFILE`, in the first call only.
    #[doc(alias = "ibv_comp_channel")]
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.inner.poll_fd.of(self.raw_fd())
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The `ibv_comp_channel`, for verbs this crate does not wrap. It lives as long as `self` does.
    ///
    /// An event that is taken from it by other means is lost for this type. A queue that is created on
    /// it by other means must have a null `cq_context`.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.inner.channel.as_ptr()
    }

    /// Destroys the channel and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or queues exist: dropping the last of them destroys the channel.
    /// Otherwise the errno.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn close(self) -> Result<()> {
        let Some(Inner {
            channel, context, ..
        }) = Arc::into_inner(self.inner)
        else {
            let object = "the completion channel";
            return Err(Error::InUse { object });
        };
        let closed = channel.close();
        drop(context);
        closed
    }

    /// The channel's own descriptor. It stays in this file: reading it takes an event that is never
    /// acknowledged, and destroying that event's queue then blocks forever.
    fn raw_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and the field is not changed.
        let fd = unsafe { (*self.as_ptr()).fd };
        // SAFETY: the channel keeps it open, and is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn take_event(&self) -> Result<Option<CqEvent>> {
        let mut cq: *mut ibv_cq = ptr::null_mut();
        let mut cq_context = ptr::null_mut();
        let _taking = self.taking();
        // SAFETY: the channel is alive and does not block; both pointers are locals.
        let ret = unsafe { ibv_get_cq_event(self.as_ptr(), &raw mut cq, &raw mut cq_context) };
        ret::minus_one("ibv_get_cq_event", ret)?;
        let events: *const Events = cq_context.cast();
        // SAFETY: a queue of this channel has its `Events` as its context, or null. They live until it is
        // null, which `settle` makes it under the lock that is held here.
        let Some(events) = (unsafe { events.as_ref() }) else {
            // SAFETY: one event was taken, and nobody else acknowledges it; until then the queue is not
            // destroyed.
            unsafe { ibv_ack_cq_events(cq, 1) };
            return Ok(None);
        };
        let unacked = events.unacked.fetch_add(1, Ordering::Relaxed) + 1;
        if unacked >= ACK_BATCH {
            events.acknowledge(cq);
        }
        let Some(queue) = events.queue.get().filter(|queue| queue.is_alive()) else {
            return Ok(None);
        };
        // SAFETY: the queue is destroyed only after `settle`, which waits for the lock that is held here;
        // and the field is not changed.
        let handle = unsafe { (*cq).handle };
        Ok(Some(CqEvent {
            queue: queue.clone(),
            handle,
        }))
    }

    fn taking(&self) -> MutexGuard<'_, ()> {
        let taking = self.inner.taking.lock();
        taking.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.raw_fd().as_raw_fd())
            .finish()
    }
}

/// An event of a [`CompletionChannel`]: it names a completion queue that may have completions.
///
/// It can be kept, cloned and sent to other threads. It does not keep its queue alive. After the queue
/// has been destroyed, [`is`](Self::is) returns `false` for every queue, including later ones, and
/// [`req_notify`](Self::req_notify) fails. The caller does not acknowledge the event: that is done
/// already, so dropping this value does nothing.
#[derive(Clone)]
#[must_use = "an event is taken once: arm its queue again, and poll it"]
pub struct CqEvent {
    queue: WeakQueue,
    handle: u32,
}

impl CqEvent {
    /// Whether it is an event of this queue.
    #[must_use]
    pub fn is(&self, cq: &CompletionQueue) -> bool {
        self.queue.is(cq)
    }

    /// The kernel's number for its queue, the same as [`CompletionQueue::handle`]. After the queue has
    /// been destroyed, a new queue may have the same number.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// Arms its queue again, as [`CompletionQueue::req_notify`] does.
    ///
    /// During this call the event counts as a clone of the queue: [`CompletionQueue::close`] in
    /// another thread may fail with [`Error::InUse`].
    ///
    /// # Errors
    ///
    /// [`Error::Destroyed`] if the queue has been destroyed. Otherwise as
    /// [`CompletionQueue::req_notify`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let object = "the completion queue of this event";
        let queue = self.queue.upgrade().ok_or(Error::Destroyed { object })?;
        queue.req_notify(solicited_only)
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqEvent")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// Events acknowledged at once, as each call takes a mutex of the queue's.
const ACK_BATCH: u32 = 64;

/// A channel's record of one of its queues.
pub(super) struct Events {
    // Written under the channel's lock.
    unacked: AtomicU32,
    queue: OnceLock<WeakQueue>,
    channel: CompletionChannel,
}

impl Events {
    pub(super) fn new(channel: &CompletionChannel) -> Self {
        Self {
            unacked: AtomicU32::new(0),
            queue: OnceLock::new(),
            channel: channel.clone(),
        }
    }

    pub(super) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Says which queue it is, once it exists. Events come after that: nothing has been armed.
    pub(super) fn set_queue(&self, queue: WeakQueue) {
        // It can be set only once, by the queue's constructor.
        drop(self.queue.set(queue));
    }

    /// Acknowledges the events that were taken, and lets go of the queue, which is about to be destroyed:
    /// `self` is not used for its later events.
    pub(super) fn settle(&self, cq: *mut ibv_cq) {
        let _taking = self.channel.taking();
        // SAFETY: the queue is alive. Its `cq_context` is this crate's, and is read only by
        // `ibv_get_cq_event`, which is called with the lock that is held here.
        unsafe { (*cq).cq_context = ptr::null_mut() };
        self.acknowledge(cq);
    }

    /// Acknowledges the events that were taken, under the channel's lock.
    fn acknowledge(&self, cq: *mut ibv_cq) {
        let unacked: c_uint = self.unacked.swap(0, Ordering::Relaxed);
        if unacked > 0 {
            // SAFETY: the queue is alive: it is destroyed only after `settle`, which takes the lock that
            // the caller holds; and that many events were taken and not acknowledged.
            unsafe { ibv_ack_cq_events(cq, unacked) };
        }
    }
}
