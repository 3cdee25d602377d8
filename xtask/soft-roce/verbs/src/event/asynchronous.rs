//! Asynchronous events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use crate::abi::context::Open;
use crate::abi::request::ibv_async_event;
use crate::completion_queue::CompletionQueue;
use crate::errno::{answer, put};
use crate::queue_pair::QueuePair;
use crate::shared_receive::SharedReceives;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_async_event(
    context: Open,
    event: &mut MaybeUninit<ibv_async_event>,
) -> c_int {
    let got = context.card.verb("ibv_get_async_event", |_| Ok(()));
    let got = got.and_then(|()| context.events.get(&context.card));
    let got = got.map(|(_, announced)| ibv_async_event {
        element: ptr::with_exposed_provenance_mut(announced.object),
        event_type: announced.event,
    });
    answer(put(event, got))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: &ibv_async_event) {
    let element = event.element;
    let events = match event.event_type {
        // SAFETY: an event of this type has a completion queue, which lives until it is acknowledged.
        0 => unsafe { &(*element.cast::<CompletionQueue>()).asynchronous_events },
        // SAFETY: an event of these types has a queue pair, which lives until it is acknowledged.
        1..=7 | 16 => unsafe { &(*element.cast::<QueuePair>()).asynchronous_events },
        // SAFETY: an event of these types has a shared queue, which lives until it is acknowledged.
        14 | 15 => unsafe { &(*element.cast::<SharedReceives>()).asynchronous_events },
        _ => return,
    };
    events.acknowledge(1);
}
