//! Shared receive queues.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::Arc;

use soft_nic::SharedReceiveId;

use crate::abi::attributes::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_pd, ibv_srq};
use crate::device::Context;
use crate::errno::{code, fail, refused};
use crate::event::Unacknowledged;
use crate::protection_domain::ProtectionDomain;

#[repr(C)]
pub(crate) struct SharedReceives {
    queue: ibv_srq,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
}

impl SharedReceives {
    /// The queue that a program has as C's, and its context.
    ///
    /// # Safety
    ///
    /// It came from `ibv_create_srq` or `ibv_create_srq_ex`, and is alive.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> (&'a Self, &'a Context) {
        // SAFETY: the caller's queue is the beginning of a `SharedReceives`.
        let own = unsafe { &*srq.cast::<Self>() };
        // SAFETY: the context is open as long as the queue is alive.
        (own, unsafe { Context::of(own.queue.context) })
    }

    pub(crate) const fn id(&self) -> SharedReceiveId {
        SharedReceiveId(self.queue.handle)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller has a domain that is alive.
    let (domain, context) = unsafe { ProtectionDomain::of(pd) };
    // SAFETY: the caller has it.
    let given = unsafe { &mut *init };
    let (srq_context, wanted) = (given.srq_context, given.attr);
    let created = context.card.verb("ibv_create_srq", |locked| {
        let (max_wr, max_sge) = (wanted.max_wr, wanted.max_sge);
        // As in C, the limit is set by ibv_modify_srq only.
        let id = locked.nic.create_srq(domain.id(), max_wr, max_sge, 0);
        let id = id.map_err(refused)?;
        Ok((id, locked.nic.query_srq(id).unwrap_or_default()))
    });
    let capacity = created.map(|(_, (max_wr, max_sge, _))| (max_wr, max_sge));
    // SAFETY: zeros are valid for numbers, pointers, a mutex, and a condition.
    let mut queue: ibv_srq = unsafe { zeroed() };
    let made = context.made(created.map(|(id, _)| {
        queue.context = domain.c_context();
        queue.srq_context = srq_context;
        queue.pd = pd;
        queue.handle = id.0;
        SharedReceives {
            queue,
            asynchronous_events: Arc::default(),
        }
    }));
    // SAFETY: it is null, or was made a moment ago.
    if let Some(own) = unsafe { made.as_ref() }
        && let Ok((max_wr, max_sge)) = capacity
    {
        given.attr = ibv_srq_attr {
            max_wr,
            max_sge,
            ..wanted
        };
        let sink = context.sink(made, &own.asynchronous_events);
        context.card.call(|locked| {
            let queues = &mut locked.events.shared_receives;
            queues.insert(own.id().0, sink);
        });
    }
    made.cast()
}

/// Only basic queues, as `ibv_create_srq` makes them.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const MASK_TYPE: u32 = 1;
    const MASK_PD: u32 = 1 << 1;
    const BASIC: u32 = 0;
    // SAFETY: the caller has it.
    let given = unsafe { &mut *init };
    let is_basic = given.comp_mask & MASK_TYPE == 0 || given.srq_type == BASIC;
    if given.comp_mask & !(MASK_TYPE | MASK_PD) != 0 || !is_basic {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    if given.comp_mask & MASK_PD == 0 {
        return fail(libc::EINVAL, ptr::null_mut());
    }
    // SAFETY: the extended structure begins as the other one, and the caller's promises are the same.
    unsafe { ibv_create_srq(given.pd, init.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 1 << 1;
    // SAFETY: the caller has a queue that is alive.
    let (own, context) = unsafe { SharedReceives::of(srq) };
    // SAFETY: the caller has it.
    let attr = unsafe { *attr };
    let result = context.card.verb("ibv_modify_srq", |locked| {
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(libc::EINVAL);
        }
        let max_wr = (mask & MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
        let modified = locked.nic.modify_srq(own.id(), max_wr, limit);
        modified.map_err(refused)
    });
    code(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller has a queue that is alive.
    let (own, context) = unsafe { SharedReceives::of(srq) };
    let found = context.card.verb("ibv_query_srq", |locked| {
        locked.nic.query_srq(own.id()).ok_or(libc::EINVAL)
    });
    code(found.map(|(max_wr, max_sge, srq_limit)| {
        let answer = ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit,
        };
        // SAFETY: the caller has room for it.
        unsafe { attr.write(answer) };
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller has a queue that is alive.
    let (own, context) = unsafe { SharedReceives::of(srq) };
    let result = context.card.verb("ibv_destroy_srq", |locked| {
        locked.nic.destroy_srq(own.id()).map_err(refused)?;
        Ok(locked.events.shared_receives.remove(&own.id().0))
    });
    // SAFETY: `ibv_create_srq` made it, and the caller does not use it again.
    unsafe { context.closed(srq.cast::<SharedReceives>(), result) }
}
