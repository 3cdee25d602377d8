//! Contexts: devices that are open.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use soft_nic::DomainId;

use super::{port, query};
use crate::abi::context::{EXTENDED, ibv_context, verbs_context};
use crate::abi::object::ibv_device;
use crate::completion_queue::{create_cq_ex, poll};
use crate::errno::{Errno, fail};
use crate::event::{EventQueue, Sink, Unacknowledged};
use crate::memory::{advise_mr, window};
use crate::network::{Attendance, Card};
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
    /// Protection domains among them.
    domains: Mutex<Vec<DomainId>>,
    _attendance: Attendance,
}

impl Context {
    /// The context that a program has as C's.
    ///
    /// # Safety
    ///
    /// It came from `ibv_open_device`, and is open.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: the caller's context is inside of a `Context`, which lives until it is closed.
        unsafe { &*Self::around(context) }
    }

    /// The whole of which C's context is a part.
    fn around(context: *mut ibv_context) -> *mut Self {
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast()
    }

    /// Completion vectors.
    pub(crate) const fn vectors(&self) -> u32 {
        self.verbs.context.num_comp_vectors.cast_unsigned()
    }

    /// Changes the list of protection domains.
    pub(crate) fn domains(&self, change: impl FnOnce(&mut Vec<DomainId>)) {
        change(&mut self.domains.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes an object of C's for what a verb has made; null, with errno, if it was refused.
    pub(crate) fn made<T>(&self, object: Result<T, Errno>) -> *mut T {
        match object {
            Ok(object) => {
                self.objects.fetch_add(1, Ordering::Relaxed);
                Box::into_raw(Box::new(object))
            }
            Err(errno) => fail(errno, ptr::null_mut()),
        }
    }

    /// Frees an object if its end was not refused.
    ///
    /// # Safety
    ///
    /// The object came from `made`, of the same context, and is not used again after a success.
    pub(crate) unsafe fn ended<T>(&self, object: *mut T, result: Result<(), Errno>) -> c_int {
        match result {
            Ok(()) => {
                self.objects.fetch_sub(1, Ordering::Relaxed);
                // SAFETY: `made` boxed it, and the caller does not use it again.
                drop(unsafe { Box::from_raw(object) });
                0
            }
            Err(errno) => errno,
        }
    }

    /// The same for an object that has events. The network is not locked.
    ///
    /// # Safety
    ///
    /// As of [`ended`](Self::ended).
    pub(crate) unsafe fn closed<T>(
        &self,
        object: *mut T,
        result: Result<impl IntoIterator<Item = Sink>, Errno>,
    ) -> c_int {
        let result = result.map(|sinks| sinks.into_iter().for_each(Sink::close));
        // SAFETY: the object and the result are those that `ended` asks this caller for, too.
        unsafe { self.ended(object, result) }
    }

    /// Where the asynchronous events of an object go.
    pub(crate) fn sink<T>(&self, object: *mut T, unacknowledged: &Arc<Unacknowledged>) -> Sink {
        Sink {
            object: object.expose_provenance(),
            queue: Arc::clone(&self.events),
            unacknowledged: Arc::clone(unacknowledged),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let card = device.cast::<Card>().cast_const();
    // SAFETY: the caller has the device from a list, which has a share of the card.
    unsafe { Arc::increment_strong_count(card) };
    // SAFETY: the share that was just counted.
    let card = unsafe { Arc::from_raw(card) };
    let opened = card.verb("ibv_open_device", |locked| {
        let events = Arc::new(EventQueue::new()?);
        locked.events.contexts.push(Arc::clone(&events));
        Ok(events)
    });
    let events = match opened {
        Ok(events) => events,
        Err(errno) => return fail(errno, ptr::null_mut()),
    };
    // SAFETY: zeros are valid for numbers, pointers, functions that may be missing, and a mutex.
    let mut verbs: verbs_context = unsafe { zeroed() };
    verbs.sz = size_of::<verbs_context>();
    missing::fill(&mut verbs);
    verbs.thread_domains = protection_domain::thread_domains();
    verbs.query_port = Some(port::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.advise_mr = Some(advise_mr);
    verbs.create_cq_ex = Some(create_cq_ex);
    verbs.create_qp_ex = Some(create_qp_ex);
    verbs.create_srq_ex = Some(create_srq_ex);
    let context = &mut verbs.context;
    context.ops.alloc_mw = Some(window::alloc_mw);
    context.ops.bind_mw = Some(window::bind_mw);
    context.ops.dealloc_mw = Some(window::dealloc_mw);
    context.ops.poll_cq = Some(poll::poll_cq);
    context.ops.req_notify_cq = Some(poll::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.device = device;
    context.cmd_fd = -1;
    context.async_fd = events.descriptor();
    context.num_comp_vectors = 1;
    context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let attendance = card.attend();
    let made = Box::into_raw(Box::new(Context {
        verbs,
        card,
        events,
        objects: AtomicUsize::new(0),
        domains: Mutex::default(),
        _attendance: attendance,
    }));
    made.wrapping_byte_add(offset_of!(verbs_context, context))
        .cast()
}

/// Objects that are left serve no peer any more, as in C. There they cannot be destroyed later; here the memory of the
/// context stays for those that are.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    let closed = own.card.verb("ibv_close_device", |locked| {
        own.domains(|domains| {
            let domains = domains.iter();
            domains.for_each(|domain| locked.nic.end_queue_pairs(*domain));
        });
        locked
            .events
            .contexts
            .retain(|queue| !Arc::ptr_eq(queue, &own.events));
        Ok(own.objects.load(Ordering::Relaxed))
    });
    match closed {
        Ok(0) => {
            // SAFETY: `ibv_open_device` boxed it, and the caller does not use it again.
            drop(unsafe { Box::from_raw(Context::around(context)) });
            0
        }
        Ok(left) => {
            log::warn!("ibv_close_device: {left} objects of the context have not been destroyed");
            0
        }
        Err(errno) => fail(errno, -1),
    }
}
