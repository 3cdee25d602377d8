//! Shared receive queues.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use soft_nic::SharedReceiveId;

use crate::abi::attributes::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::context::Open;
use crate::abi::object::ibv_srq;
use crate::device::destroy;
use crate::errno::{code, fail, put, refused};
use crate::event::Unacknowledged;
use crate::network::Locked;
use crate::protection_domain::ProtectionDomain;

#[repr(C)]
pub(crate) struct SharedReceives {
    pub(crate) queue: ibv_srq,
    pub(crate) asynchronous_events: Arc<Unacknowledged>,
}

impl SharedReceives {
    pub(crate) const fn id(&self) -> SharedReceiveId {
        SharedReceiveId(self.queue.handle)
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_srq(
    pd: &ProtectionDomain,
    init: &mut ibv_srq_init_attr,
) -> *mut SharedReceives {
    let context = pd.pd.context;
    context.place("ibv_create_srq", |locked| {
        let attr = &mut init.attr;
        // As in C, the limit is set by ibv_modify_srq only.
        let id = locked.nic.create_srq(pd.id(), attr.max_wr, attr.max_sge, 0);
        let id = id.map_err(refused)?;
        if let Some((max_wr, max_sge, _)) = locked.nic.query_srq(id) {
            (attr.max_wr, attr.max_sge) = (max_wr, max_sge);
        }
        let events = Arc::<Unacknowledged>::default();
        let own = Box::into_raw(Box::new(SharedReceives {
            queue: ibv_srq {
                context,
                srq_context: init.srq_context,
                pd: pd.as_ptr(),
                handle: id.0,
                ..ibv_srq::default()
            },
            asynchronous_events: Arc::clone(&events),
        }));
        let sink = context.sink(own, events);
        locked.events.shared_receives.insert(id.0, sink);
        Ok(own)
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _: Open,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut SharedReceives {
    const MASK_TYPE: u32 = 1;
    const MASK_PD: u32 = 1 << 1;
    const BASIC: u32 = 0;
    // SAFETY: the caller has it.
    let given = unsafe { *init };
    let is_basic = given.comp_mask & MASK_TYPE == 0 || given.srq_type == BASIC;
    if given.comp_mask & !(MASK_TYPE | MASK_PD) != 0 || !is_basic {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    if given.comp_mask & MASK_PD == 0 {
        return fail(libc::EINVAL, ptr::null_mut());
    }
    // SAFETY: the flag says that the caller has a domain.
    let pd = unsafe { &*given.pd.cast() };
    // SAFETY: the caller has it, and the extended structure begins as the other one.
    ibv_create_srq(pd, unsafe { &mut *init.cast() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(own: &SharedReceives, attr: &ibv_srq_attr, mask: c_int) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 1 << 1;
    code(own.queue.context.card.verb("ibv_modify_srq", |locked| {
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(libc::EINVAL);
        }
        let max_wr = (mask & MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
        let modified = locked.nic.modify_srq(own.id(), max_wr, limit);
        modified.map_err(refused)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(own: &SharedReceives, attr: &mut MaybeUninit<ibv_srq_attr>) -> c_int {
    let found = own.queue.context.card.verb("ibv_query_srq", |locked| {
        let found = locked.nic.query_srq(own.id());
        let (max_wr, max_sge, srq_limit) = found.ok_or(libc::EINVAL)?;
        Ok(ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit,
        })
    });
    code(put(attr, found))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut SharedReceives) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &SharedReceives| {
        locked.nic.destroy_srq(own.id()).map_err(refused)?;
        Ok(locked.events.shared_receives.remove(&own.id().0))
    };
    // SAFETY: `ibv_create_srq` made it, and the caller does not use it again.
    unsafe { destroy("ibv_destroy_srq", srq, end) }
}
