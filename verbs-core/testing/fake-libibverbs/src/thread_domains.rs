//! Thread and parent domains, of devices that have them.

use std::ffi::c_int;
use std::ptr;

use verbs_core::verbs_sys::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

use super::objects::{end, made, outer};
use super::queries::fail;
use super::with;

fn are_there() -> bool {
    with(|library| library.thread_domains)
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    _: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    if !are_there() {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    made("ibv_alloc_td", &[outer(context).addr()], |_| {
        Ok(ibv_td { context })
    })
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller has it from `ibv_alloc_td`.
    unsafe { end("ibv_dealloc_td", td) }
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    if !are_there() {
        return fail(libc::EOPNOTSUPP, ptr::null_mut());
    }
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    let parents = [attr.pd.addr(), attr.td.addr()];
    made("ibv_alloc_parent_domain", &parents, |library| {
        if attr.pd.is_null() || attr.comp_mask != 0 {
            library
                .wrong
                .push("ibv_alloc_parent_domain without a PD".into());
        }
        Ok(ibv_pd { context, handle: 0 })
    })
}
