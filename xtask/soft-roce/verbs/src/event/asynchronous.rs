//! Asynchronous events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::ptr;

use crate::abi::context::ibv_context;
use crate::abi::request::ibv_async_event;
use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::errno::answer;
use crate::queue_pair::QueuePair;
use crate::shared_receive::SharedReceives;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    let got = own.card.verb("ibv_get_async_event", |_| Ok(()));
    let got = got.and_then(|()| own.events.get(&own.card));
    answer(got.map(|announced| {
        let got = ibv_async_event {
            element: ptr::with_exposed_provenance_mut(announced.object),
            event_type: announced.event,
        };
        // SAFETY: the caller has room for it.
        unsafe { event.write(got) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller has an event.
    let ibv_async_event {
        element,
        event_type,
    } = unsafe { event.read() };
    match event_type {
        0 => {
            // SAFETY: an event of this type has a completion queue, which lives until it is acknowledged.
            let (queue, _) = unsafe { CompletionQueue::of(element.cast()) };
            queue.asynchronous_events.acknowledge(1);
        }
        1..=7 | 16 => {
            // SAFETY: an event of these types has a queue pair, which lives until it is acknowledged.
            let (queue_pair, _) = unsafe { QueuePair::of(element.cast()) };
            queue_pair.asynchronous_events.acknowledge(1);
        }
        14 | 15 => {
            // SAFETY: an event of these types has a shared queue, which lives until it is acknowledged.
            let (queue, _) = unsafe { SharedReceives::of(element.cast()) };
            queue.asynchronous_events.acknowledge(1);
        }
        _ => {}
    }
}
