//! Completion queues.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod extended;
pub(crate) mod poll;

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use soft_nic::{Completion, CompletionQueueId};

use crate::abi::attributes::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::extended::ibv_cq_ex;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::device::Context;
use crate::errno::{code, refused};
use crate::event::channel::Channel;
use crate::event::{Sink, Unacknowledged};
pub(crate) use extended::create_cq_ex;

#[repr(C)]
pub(crate) struct CompletionQueue {
    queue: ibv_cq_ex,
    pub(crate) completion_events: Arc<Unacknowledged>,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
    /// The completion that an extended poll is at. Only the thread that polls touches it.
    current: Option<Completion>,
}

impl CompletionQueue {
    /// The queue that a program has as C's, and its context.
    ///
    /// # Safety
    ///
    /// It came from `ibv_create_cq` or `ibv_create_cq_ex`, and is alive.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> (&'a Self, &'a Context) {
        // SAFETY: the caller's queue is the beginning of a `CompletionQueue`.
        let own = unsafe { &*cq.cast::<Self>() };
        // SAFETY: the context is open as long as the queue is alive.
        (own, unsafe { Context::of(own.queue.cq.context) })
    }

    pub(crate) const fn id(&self) -> CompletionQueueId {
        CompletionQueueId(self.queue.cq.handle)
    }
}

/// Makes a queue with room for at least `cqe` completions; null, with errno, if that is refused.
///
/// # Safety
///
/// The context is open, and the channel, if there is one, alive.
unsafe fn create(
    verb: &'static str,
    context: *mut ibv_context,
    init: &ibv_cq_init_attr_ex,
) -> *mut CompletionQueue {
    let channel = init.channel;
    // SAFETY: the caller's context is open.
    let own = unsafe { Context::of(context) };
    // SAFETY: the caller's channel is alive, if there is one.
    let events = (!channel.is_null()).then(|| Arc::clone(unsafe { &Channel::of(channel).events }));
    let created = own.card.verb(verb, |locked| {
        if init.comp_vector >= own.vectors() {
            return Err(libc::EINVAL);
        }
        let id = locked.nic.create_cq(init.cqe).map_err(refused)?;
        Ok((id, locked.nic.cq_capacity(id).unwrap_or(init.cqe)))
    });
    // SAFETY: zeros are valid for numbers, pointers, functions that may be missing, a mutex, and a condition.
    let mut queue: ibv_cq_ex = unsafe { zeroed() };
    let made = own.made(created.map(|(id, capacity)| {
        queue.cq.context = context;
        queue.cq.channel = channel;
        queue.cq.cq_context = init.cq_context;
        queue.cq.handle = id.0;
        queue.cq.cqe = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        CompletionQueue {
            queue,
            completion_events: Arc::default(),
            asynchronous_events: Arc::default(),
            current: None,
        }
    }));
    // SAFETY: it is null, or was made a moment ago.
    if let Some(queue) = unsafe { made.as_ref() } {
        let asynchronous = own.sink(made, &queue.asynchronous_events);
        let completions = events.map(|events| Sink {
            queue: events,
            ..own.sink(made, &queue.completion_events)
        });
        if completions.is_some() {
            // SAFETY: the caller's channel is alive.
            unsafe { Channel::users(channel) }.fetch_add(1, Ordering::Relaxed);
        }
        own.card.call(|locked| {
            let number = queue.id().0;
            locked.events.completion_queues.insert(number, asynchronous);
            if let Some(completions) = completions {
                locked.events.completions.insert(number, completions);
            }
        });
    }
    made
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let init = ibv_cq_init_attr_ex {
        // A queue of no capacity, or a negative one, is refused.
        cqe: u32::try_from(cqe).unwrap_or(0),
        cq_context,
        channel,
        comp_vector: vector.cast_unsigned(),
        // SAFETY: zeros are valid for numbers and pointers.
        ..unsafe { zeroed() }
    };
    // SAFETY: the promises of this function's caller are those of the other's.
    unsafe { create("ibv_create_cq", context, &init) }.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller has a queue that is alive.
    let (own, context) = unsafe { CompletionQueue::of(cq) };
    let id = own.id();
    let resized = context.card.verb("ibv_resize_cq", |locked| {
        let capacity = u32::try_from(cqe).unwrap_or(0);
        locked.nic.resize_cq(id, capacity).map_err(refused)?;
        Ok(locked.nic.cq_capacity(id).unwrap_or(capacity))
    });
    code(resized.map(|capacity| {
        // SAFETY: the caller has the queue.
        unsafe { (*cq).cqe = c_int::try_from(capacity).unwrap_or(c_int::MAX) };
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller has a queue that is alive.
    let (own, context) = unsafe { CompletionQueue::of(cq) };
    let (id, channel) = (own.id(), own.queue.cq.channel);
    let result = context.card.verb("ibv_destroy_cq", |locked| {
        locked.nic.destroy_cq(id).map_err(refused)?;
        if !channel.is_null() {
            // SAFETY: a channel is alive as long as a queue uses it.
            unsafe { Channel::users(channel) }.fetch_sub(1, Ordering::Relaxed);
        }
        let events = &mut locked.events;
        let completions = events.completions.remove(&id.0).into_iter();
        Ok(completions.chain(events.completion_queues.remove(&id.0)))
    });
    // SAFETY: `create` made it, and the caller does not use it again.
    unsafe { context.closed(cq.cast::<CompletionQueue>(), result) }
}
