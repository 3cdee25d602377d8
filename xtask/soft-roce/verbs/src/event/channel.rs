//! Completion channels.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{Announced, EventQueue};
use crate::abi::context::Open;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::completion_queue::CompletionQueue;
use crate::device::destroy;
use crate::errno::answer;
use crate::network::Locked;

/// C's channel, and its events.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) channel: ibv_comp_channel,
    pub(crate) events: Arc<EventQueue>,
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_comp_channel(context: Open) -> *mut Channel {
    context.make("ibv_create_comp_channel", |_| {
        let events = EventQueue::new()?;
        Ok(Channel {
            channel: ibv_comp_channel {
                context,
                fd: events.descriptor(),
                refcnt: AtomicI32::new(0),
            },
            events: Arc::new(events),
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    let end = |_: &mut Locked<'_>, own: &Channel| match own.channel.refcnt.load(Ordering::Relaxed) {
        0 => Ok(None),
        _ => Err(libc::EBUSY),
    };
    // SAFETY: `ibv_create_comp_channel` made it, and the caller does not use it again.
    unsafe { destroy("ibv_destroy_comp_channel", channel, end) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: &Channel,
    cq: &mut MaybeUninit<*mut ibv_cq>,
    cq_context: &mut MaybeUninit<*mut c_void>,
) -> c_int {
    let card = &channel.channel.context.card;
    let got = card.verb("ibv_get_cq_event", |_| Ok(()));
    let got = got.and_then(|()| channel.events.get(card));
    answer(got.map(|(_, Announced { object, .. })| {
        let queue = *cq.write(ptr::with_exposed_provenance_mut(object));
        // SAFETY: the event is not acknowledged yet, so the queue is alive.
        cq_context.write(unsafe { (*queue).cq_context });
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: &CompletionQueue, count: c_uint) {
    cq.completion_events.acknowledge(count);
}
