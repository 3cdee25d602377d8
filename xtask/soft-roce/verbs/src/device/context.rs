//! Contexts: devices that are open.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::offset_of;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_nic::{AttributeMask, QueuePairAttributes, QueuePairState};

use super::{port, query};
use crate::abi::context::{EXTENDED, Open, Verb, ibv_context_ops, verbs_context};
use crate::completion_queue::{create_cq_ex, poll};
use crate::errno::{Errno, answer, code, fail};
use crate::event::{EventQueue, Sink, Unacknowledged};
use crate::memory::{advise_mr, window};
use crate::network::{Attendance, Card, Locked};
use crate::queue_pair::{create_qp_ex, post};
use crate::shared_receive::create_srq_ex;
use crate::{missing, protection_domain};

/// C's context, and what belongs to it.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    pub(crate) card: Arc<Card>,
    /// Asynchronous events.
    pub(crate) events: Arc<EventQueue>,
    /// Objects that were made and have not ended.
    objects: AtomicUsize,
    _attendance: Attendance,
}

impl Open {
    /// The whole of which C's context is a part.
    fn around(self) -> *mut Context {
        let Self(context) = self;
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast()
    }
}

impl Deref for Open {
    type Target = Context;

    fn deref(&self) -> &Context {
        // SAFETY: `ibv_open_device` made it, as the callers of verbs promise, and it is open as long as an object that
        // has it is alive.
        unsafe { &*self.around() }
    }
}

impl Context {
    /// Makes an object of C's by a verb; null, with errno, if that is refused.
    pub(crate) fn make<T>(
        &self,
        verb: &'static str,
        make: impl FnOnce(&mut Locked<'_>) -> Result<T, Errno>,
    ) -> *mut T {
        self.place(verb, |locked| Ok(Box::into_raw(Box::new(make(locked)?))))
    }

    /// The same for a verb that boxes the object.
    pub(crate) fn place<T>(
        &self,
        verb: &'static str,
        make: impl FnOnce(&mut Locked<'_>) -> Result<*mut T, Errno>,
    ) -> *mut T {
        let made = self.card.verb(verb, make).inspect(|_| {
            self.objects.fetch_add(1, Ordering::Relaxed);
        });
        made.unwrap_or_else(|errno| fail(errno, ptr::null_mut()))
    }

    /// Where the asynchronous events of an object go.
    pub(crate) fn sink<T>(&self, object: *mut T, unacknowledged: Arc<Unacknowledged>) -> Sink {
        Sink {
            object: object.expose_provenance(),
            queue: Arc::clone(&self.events),
            unacknowledged,
        }
    }
}

/// Ends an object by a verb, and frees it. Its sinks, if it has events, are closed with nothing locked.
///
/// # Safety
///
/// The object is alive, is one that a context has made, begins with C's pointer to that, and is not used again after a
/// success.
pub(crate) unsafe fn destroy<T, S: IntoIterator<Item = Sink>>(
    verb: &'static str,
    object: *mut T,
    end: impl FnOnce(&mut Locked<'_>, &T) -> Result<S, Errno>,
) -> c_int {
    // SAFETY: the caller's object is alive, and begins with this.
    let context = unsafe { object.cast::<Open>().read() };
    // SAFETY: the caller's object is alive.
    let own = unsafe { &*object };
    let ended = context.card.verb(verb, |locked| end(locked, own));
    code(ended.map(|sinks| {
        sinks.into_iter().for_each(Sink::close);
        context.objects.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the context boxed it, and the caller does not use it again.
        drop(unsafe { Box::from_raw(object) });
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *const Card) -> Open {
    // SAFETY: the caller has the device from a list, which has a share of the card.
    unsafe { Arc::increment_strong_count(device) };
    // SAFETY: the share that was just counted.
    let card = unsafe { Arc::from_raw(device) };
    let opened = card.verb("ibv_open_device", |locked| {
        let events = Arc::new(EventQueue::new()?);
        locked.events.contexts.push(Arc::clone(&events));
        Ok(events)
    });
    let events = match opened {
        Ok(events) => events,
        Err(errno) => return fail(errno, Open(ptr::null_mut())),
    };
    let mut verbs = verbs_context {
        sz: size_of::<verbs_context>(),
        query_port: port::query_port as Verb,
        query_device_ex: query::query_device_ex as Verb,
        query_rt_values: query::query_rt_values as Verb,
        advise_mr: advise_mr as Verb,
        create_cq_ex: create_cq_ex as Verb,
        create_qp_ex: create_qp_ex as Verb,
        create_srq_ex: create_srq_ex as Verb,
        alloc_td: protection_domain::alloc_td as Verb,
        dealloc_td: protection_domain::dealloc_td as Verb,
        alloc_parent_domain: protection_domain::alloc_parent_domain as Verb,
        ..verbs_context::default()
    };
    missing::fill(&mut verbs);
    let context = &mut verbs.context;
    context.ops = ibv_context_ops {
        alloc_mw: window::alloc_mw as Verb,
        bind_mw: window::bind_mw as Verb,
        dealloc_mw: window::dealloc_mw as Verb,
        poll_cq: poll::poll_cq as Verb,
        req_notify_cq: poll::req_notify_cq as Verb,
        post_srq_recv: post::post_srq_recv as Verb,
        post_send: post::post_send as Verb,
        post_recv: post::post_recv as Verb,
        ..ibv_context_ops::default()
    };
    context.device = device.cast_mut().cast();
    context.cmd_fd = -1;
    context.async_fd = events.descriptor();
    context.num_comp_vectors = 1;
    context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let made = Box::into_raw(Box::new(Context {
        verbs,
        _attendance: card.attend(),
        card,
        events,
        objects: AtomicUsize::new(0),
    }));
    let context = made.wrapping_byte_add(offset_of!(verbs_context, context));
    Open(context.cast())
}

/// Objects that are left serve no peer any more, as in C. There they cannot be destroyed later; here the memory of the
/// context stays for those that are.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: Open) -> c_int {
    let closed = context.card.verb("ibv_close_device", |locked| {
        let ended = QueuePairAttributes {
            state: QueuePairState::Err,
            ..QueuePairAttributes::default()
        };
        for (number, sink) in &locked.events.queue_pairs {
            if Arc::ptr_eq(&sink.queue, &context.events) {
                // Each state but RESET goes to ERR; in RESET it serves nobody.
                let nic = &mut locked.nic;
                let _in_reset = nic.modify_qp(*number, &ended, AttributeMask::STATE);
            }
        }
        let contexts = &mut locked.events.contexts;
        contexts.retain(|queue| !Arc::ptr_eq(queue, &context.events));
        Ok(context.objects.load(Ordering::Relaxed))
    });
    answer(closed.map(|left| match left {
        // SAFETY: `ibv_open_device` boxed it, and the caller does not use it again.
        0 => drop(unsafe { Box::from_raw(context.around()) }),
        _ => log::warn!("ibv_close_device: {left} objects of the context have not been destroyed"),
    }))
}
