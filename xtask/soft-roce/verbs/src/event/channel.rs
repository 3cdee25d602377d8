//! Completion channels.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{Announced, EventQueue};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::errno::answer;

#[repr(C)]
pub(crate) struct Channel {
    channel: ibv_comp_channel,
    pub(crate) events: Arc<EventQueue>,
}

impl Channel {
    /// The channel that a program has as C's.
    ///
    /// # Safety
    ///
    /// It came from `ibv_create_comp_channel`, and is alive.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: the caller's channel is the beginning of a `Channel`.
        unsafe { &*channel.cast::<Self>() }
    }

    /// The number of queues that use the channel.
    ///
    /// # Safety
    ///
    /// The channel is alive.
    pub(crate) unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
        // SAFETY: the channel is alive, and only this function reaches its field.
        let count = unsafe { &raw mut (*channel).refcnt };
        // SAFETY: the field is aligned, and lives as long as the channel.
        unsafe { AtomicI32::from_ptr(count) }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    let events = own
        .card
        .verb("ibv_create_comp_channel", |_| EventQueue::new());
    let made = events.map(|events| Channel {
        channel: ibv_comp_channel {
            context,
            fd: events.descriptor(),
            refcnt: 0,
        },
        events: Arc::new(events),
    });
    own.made(made).cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller has a channel that is alive.
    let own = unsafe { Channel::of(channel) };
    // SAFETY: the context is open as long as the channel is alive.
    let context = unsafe { Context::of(own.channel.context) };
    let result = context.card.verb("ibv_destroy_comp_channel", |_| {
        // SAFETY: the caller has a channel that is alive.
        match unsafe { Channel::users(channel) }.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(libc::EBUSY),
        }
    });
    // SAFETY: `ibv_create_comp_channel` made it, and the caller does not use it again.
    unsafe { context.ended(channel.cast::<Channel>(), result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller has a channel that is alive.
    let own = unsafe { Channel::of(channel) };
    // SAFETY: the context is open as long as the channel is alive.
    let context = unsafe { Context::of(own.channel.context) };
    let got = context.card.verb("ibv_get_cq_event", |_| Ok(()));
    let got = got.and_then(|()| own.events.get(&context.card));
    answer(got.map(|Announced { object, .. }| {
        let queue = ptr::with_exposed_provenance_mut::<ibv_cq>(object);
        // SAFETY: the event is not acknowledged yet, so the queue is alive.
        let its_context = unsafe { (*queue).cq_context };
        // SAFETY: the caller has room for it.
        unsafe { cq.write(queue) };
        // SAFETY: the caller has room for it.
        unsafe { cq_context.write(its_context) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the caller has a queue that is alive.
    let (own, _) = unsafe { CompletionQueue::of(cq) };
    own.completion_events.acknowledge(count);
}
