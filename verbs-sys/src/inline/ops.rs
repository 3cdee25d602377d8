//! Verbs through the table inside `ibv_context`, the data path among them.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each verb is one expression of C"
)]

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::{
    IBV_MW_TYPE_1, ibv_cq, ibv_dm, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_srq, ibv_wc, ibv_wq,
};

use crate::errno::set_errno;

/// Posts a list of work requests to a send queue.
///
/// With `IBV_SEND_INLINE`, the buffers can be used again at once.
///
/// # Safety
///
/// - `qp` is a live queue pair.
/// - `wr` is a list of initialised requests that ends with a null `next`, each with `num_sge`
///   elements at `sg_list`.
/// - `bad_wr` is valid for writes.
/// - The buffers of each request stay registered, allocated and, where the device writes to them,
///   untouched until the request's own completion or that of a later signalled one.
///
#[doc = man!(ibv_post_send)]
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller promises a live `qp` and valid requests; libibverbs fills the whole table
    // when it opens a device.
    unsafe { ((*(*qp).context).ops.post_send.unwrap_unchecked())(qp, wr, bad_wr) }
}

/// Posts a list of work requests to a receive queue.
///
/// # Safety
///
/// - `qp` is a live queue pair.
/// - `wr` is a list of initialised requests that ends with a null `next`, each with `num_sge`
///   elements at `sg_list`.
/// - `bad_wr` is valid for writes.
/// - The buffers of each request stay registered, allocated and untouched until its completion.
///
#[doc = man!(ibv_post_recv)]
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller promises a live `qp` and valid requests; libibverbs fills the whole table
    // when it opens a device.
    unsafe { ((*(*qp).context).ops.post_recv.unwrap_unchecked())(qp, wr, bad_wr) }
}

/// Posts a list of work requests to a shared receive queue.
///
/// # Safety
///
/// As for [`ibv_post_recv`], with a live `srq`.
///
#[doc = man!(ibv_post_srq_recv)]
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller promises a live `srq` and valid requests; libibverbs fills the whole table
    // when it opens a device.
    unsafe { ((*(*srq).context).ops.post_srq_recv.unwrap_unchecked())(srq, recv_wr, bad_recv_wr) }
}

/// Takes up to `num_entries` completions from a queue; returns how many, or a negative number.
///
/// Fewer than `num_entries` means that the queue is empty now.
///
/// # Safety
///
/// - `cq` is a live completion queue.
/// - `wc` is valid for writes of `num_entries` completions.
///
#[doc = man!(ibv_poll_cq)]
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller promises a live `cq` and room at `wc`; libibverbs fills the whole table
    // when it opens a device.
    unsafe { ((*(*cq).context).ops.poll_cq.unwrap_unchecked())(cq, num_entries, wc) }
}

/// Asks for one event on the queue's channel when the next completion arrives.
///
/// With `solicited_only` not zero, only a solicited or failed completion makes an event.
///
/// # Safety
///
/// `cq` is a live completion queue.
///
#[doc = man!(ibv_req_notify_cq)]
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller promises that `cq` is live; libibverbs fills the whole table when it opens
    // a device.
    unsafe { ((*(*cq).context).ops.req_notify_cq.unwrap_unchecked())(cq, solicited_only) }
}

/// Allocates a memory window, not bound to anything yet.
///
/// # Safety
///
/// `pd` is a live protection domain.
///
#[doc = man!(ibv_alloc_mw)]
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller promises that `pd` is live.
    match unsafe { (*(*pd).context).ops.alloc_mw } {
        // SAFETY: the caller promises that `pd` is live.
        Some(alloc_mw) => unsafe { alloc_mw(pd, type_) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            ptr::null_mut()
        }
    }
}

/// Frees a memory window, which also unbinds it.
///
/// # Safety
///
/// `mw` is a live memory window, and is not used again unless this fails.
///
#[doc = man!(ibv_dealloc_mw)]
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller promises that `mw` is live; libibverbs fills the whole table when it opens
    // a device.
    unsafe { ((*(*mw).context).ops.dealloc_mw.unwrap_unchecked())(mw) }
}

/// Binds a memory window of type 1 to a part of a region, or unbinds it with length 0.
///
/// # Safety
///
/// - `qp` is a live queue pair, `mw` a live memory window.
/// - `mw_bind` is initialised and its `mr`, unless null, is a live region.
///
#[doc = man!(ibv_bind_mw)]
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller promises that `qp`, `mw` and the region in `mw_bind` are live.
    unsafe {
        let bind_info = (*mw_bind).bind_info;
        if (*mw).type_ != IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        if bind_info.mr.is_null() && (bind_info.addr != 0 || bind_info.length != 0) {
            return libc::EINVAL;
        }
        if !bind_info.mr.is_null() && (*mw).pd != (*bind_info.mr).pd {
            return libc::EPERM;
        }
        // libibverbs fills the whole table when it opens a device.
        ((*(*mw).context).ops.bind_mw.unwrap_unchecked())(qp, mw, mw_bind)
    }
}

/// Posts a list of work requests to a receive work queue (WQ).
///
/// # Safety
///
/// As for [`ibv_post_recv`], with a live `wq`.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller promises a live `wq` and valid requests; a provider that makes WQs fills
    // the pointer.
    unsafe { ((*wq).post_recv.unwrap_unchecked())(wq, recv_wr, bad_recv_wr) }
}

/// Copies from host memory to device memory.
///
/// # Safety
///
/// - `dm` is live device memory.
/// - `host_addr` is valid for reads of `length` bytes.
///
#[doc = man!(ibv_alloc_dm)]
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller promises a live `dm`, and `length` bytes at `host_addr`; a provider that
    // makes device memory fills the pointer.
    unsafe { ((*dm).memcpy_to_dm.unwrap_unchecked())(dm, dm_offset, host_addr, length) }
}

/// Copies from device memory to host memory.
///
/// # Safety
///
/// - `dm` is live device memory.
/// - `host_addr` is valid for writes of `length` bytes.
///
#[doc = man!(ibv_alloc_dm)]
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller promises a live `dm`, and room for `length` bytes at `host_addr`; a
    // provider that makes device memory fills the pointer.
    unsafe { ((*dm).memcpy_from_dm.unwrap_unchecked())(host_addr, dm, dm_offset, length) }
}
