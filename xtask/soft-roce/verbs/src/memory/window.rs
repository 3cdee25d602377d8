//! Memory windows.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;

use soft_nic::{Access, Bind, WindowKind};

use crate::abi::object::{ibv_mw, ibv_pd, ibv_qp};
use crate::abi::request::{IBV_SEND_INLINE, ibv_mw_bind, ibv_mw_bind_info};
use crate::device::Context;
use crate::errno::{Errno, refused};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::post::post_bind;

const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: u32) -> *mut ibv_mw {
    // SAFETY: the caller has a domain that is alive.
    let (domain, context) = unsafe { ProtectionDomain::of(pd) };
    let key = context.card.verb("ibv_alloc_mw", |locked| {
        let kind = match type_ {
            TYPE_1 => WindowKind::Type1,
            TYPE_2 => WindowKind::Type2,
            _ => return Err(libc::EINVAL),
        };
        locked.nic.alloc_mw(domain.id(), kind).map_err(refused)
    });
    context.made(key.map(|rkey| ibv_mw {
        context: domain.c_context(),
        pd,
        rkey,
        handle: rkey,
        type_,
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller has a window that is alive.
    let own = unsafe { &*mw };
    // SAFETY: the context is open as long as the window is alive.
    let context = unsafe { Context::of(own.context) };
    let result = context.card.verb("ibv_dealloc_mw", |locked| {
        let rkey = locked.nic.window_key(own.handle).ok_or(libc::EINVAL)?;
        locked.nic.dealloc_mw(rkey).map_err(refused)
    });
    // SAFETY: `alloc_mw` made it, and the caller does not use it again.
    unsafe { context.ended(mw, result) }
}

/// Binds a window of type 1: by a request to the send queue, after which it has the next key.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller has a window that is alive.
    let window = unsafe { (*mw).rkey };
    // SAFETY: the caller has it.
    let bind = unsafe { &*bind };
    let rkey = window & !0xff | window.wrapping_add(1) & 0xff;
    if bind.send_flags & IBV_SEND_INLINE != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's region is alive, if there is one.
    let posted = unsafe { binding(window, rkey, &bind.bind_info) }
        // SAFETY: the caller has a queue pair that is alive.
        .and_then(|binding| unsafe { post_bind(qp, bind.wr_id, bind.send_flags, binding) });
    match posted {
        Ok(()) => {
            // SAFETY: the caller has the window.
            unsafe { (*mw).rkey = rkey };
            0
        }
        Err(errno) => errno,
    }
}

/// The card's form of C's.
///
/// # Safety
///
/// The region is alive, if there is one.
pub(crate) unsafe fn binding(
    window: u32,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Bind, Errno> {
    // SAFETY: the caller has none, or one that is alive.
    let region = unsafe { info.mr.as_ref() };
    Ok(Bind {
        window,
        rkey,
        lkey: region.map_or(0, |region| region.lkey),
        address: info.addr,
        length: info.length,
        access: Access::from_bits(info.mw_access_flags).ok_or(libc::EINVAL)?,
    })
}
