//! Completion queues.
#![expect(unsafe_code, reason = "C's functions and pointers")]

mod extended;
pub(crate) mod poll;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use soft_nic::{Completion, CompletionQueueId};

use crate::abi::attributes::ibv_cq_init_attr_ex;
use crate::abi::context::Open;
use crate::abi::extended::ibv_cq_ex;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::device::{Context, destroy};
use crate::errno::{code, refused};
use crate::event::channel::Channel;
use crate::event::{Sink, Unacknowledged};
use crate::network::Locked;
pub(crate) use extended::create_cq_ex;

#[repr(C)]
pub(crate) struct CompletionQueue {
    queue: ibv_cq_ex,
    pub(crate) completion_events: Arc<Unacknowledged>,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
    /// The completion that an extended poll is at. Only the thread that polls touches it.
    current: Cell<Option<Completion>>,
}

impl CompletionQueue {
    pub(crate) fn context(&self) -> &Context {
        &self.queue.cq.context
    }

    pub(crate) const fn id(&self) -> CompletionQueueId {
        CompletionQueueId(self.queue.cq.handle)
    }
}

/// Makes a queue with room for at least `cqe` completions; null, with errno, if that is refused.
fn create(verb: &'static str, context: Open, init: &ibv_cq_init_attr_ex) -> *mut CompletionQueue {
    // SAFETY: the caller's channel is alive, if there is one.
    let channel = unsafe { init.channel.cast::<Channel>().as_ref() };
    context.place(verb, |locked| {
        // The context has one vector.
        if init.comp_vector != 0 {
            return Err(libc::EINVAL);
        }
        let id = locked.nic.create_cq(init.cqe).map_err(refused)?;
        let capacity = locked.nic.cq_capacity(id).unwrap_or(init.cqe);
        let cq = ibv_cq {
            context,
            channel: init.channel,
            cq_context: init.cq_context,
            handle: id.0,
            cqe: Cell::new(c_int::try_from(capacity).unwrap_or(c_int::MAX)),
            ..ibv_cq::default()
        };
        let [completions, asynchronous] = [(); 2].map(|()| Arc::<Unacknowledged>::default());
        let own = Box::into_raw(Box::new(CompletionQueue {
            queue: ibv_cq_ex {
                cq,
                ..ibv_cq_ex::default()
            },
            completion_events: Arc::clone(&completions),
            asynchronous_events: Arc::clone(&asynchronous),
            current: Cell::new(None),
        }));
        if let Some(channel) = channel {
            channel.channel.refcnt.fetch_add(1, Ordering::Relaxed);
            let queue = Arc::clone(&channel.events);
            let sink = context.sink(own, completions);
            locked
                .events
                .completions
                .insert(id.0, Sink { queue, ..sink });
        }
        let sink = context.sink(own, asynchronous);
        locked.events.completion_queues.insert(id.0, sink);
        Ok(own)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_cq(
    context: Open,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut CompletionQueue {
    let init = ibv_cq_init_attr_ex {
        // A queue of no capacity, or a negative one, is refused.
        cqe: u32::try_from(cqe).unwrap_or(0),
        cq_context,
        channel,
        comp_vector: vector.cast_unsigned(),
        ..ibv_cq_init_attr_ex::default()
    };
    create("ibv_create_cq", context, &init)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: &CompletionQueue, cqe: c_int) -> c_int {
    let id = cq.id();
    let resized = cq.context().card.verb("ibv_resize_cq", |locked| {
        let capacity = u32::try_from(cqe).unwrap_or(0);
        locked.nic.resize_cq(id, capacity).map_err(refused)?;
        Ok(locked.nic.cq_capacity(id).unwrap_or(capacity))
    });
    code(resized.map(|capacity| {
        let capacity = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        cq.queue.cq.cqe.set(capacity);
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut CompletionQueue) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &CompletionQueue| {
        let id = own.id();
        locked.nic.destroy_cq(id).map_err(refused)?;
        // SAFETY: a channel is alive as long as a queue uses it.
        if let Some(channel) = unsafe { own.queue.cq.channel.cast::<Channel>().as_ref() } {
            channel.channel.refcnt.fetch_sub(1, Ordering::Relaxed);
        }
        let events = &mut locked.events;
        let completions = events.completions.remove(&id.0).into_iter();
        Ok(completions.chain(events.completion_queues.remove(&id.0)))
    };
    // SAFETY: `create` made it, and the caller does not use it again.
    unsafe { destroy("ibv_destroy_cq", cq, end) }
}
