//! Verbs in front of `ibv_context` that do more than call: they fall back, check, or initialise.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each verb is a few lines of C"
)]

use core::ffi::c_int;
#[cfg(feature = "dlopen")]
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr;

use crate::{
    _compat_ibv_port_attr, IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQT_BASIC, ibv_context, ibv_create_qp, ibv_create_srq, ibv_device_attr_ex, ibv_ops_wr,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_query_device, ibv_query_device_ex_input,
    ibv_srq, ibv_srq_init_attr_ex, ibv_wq, ibv_wq_init_attr, ibv_xrcd,
};

#[cfg(feature = "dlopen")]
use crate::dlopen::{self, Symbol, symbol};

use super::extended::{Unsupported as _, extended_op};

#[cfg(not(feature = "dlopen"))]
unsafe extern "C" {
    /// The exported symbol, which fills in only the beginning of `ibv_port_attr`.
    #[link_name = "ibv_query_port"]
    fn compat_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> c_int;
}

/// The exported symbol, which fills in only the beginning of `ibv_port_attr`.
#[cfg(feature = "dlopen")]
unsafe fn compat_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut _compat_ibv_port_attr,
) -> c_int {
    type Function = unsafe extern "C" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    static SYMBOL: Symbol = symbol!(IBVERBS, "ibv_query_port", c"ibv_query_port");
    match SYMBOL.get() {
        Ok(address) => {
            // SAFETY: the exported function has this type; the rest is the caller's promise.
            unsafe {
                let function = core::mem::transmute::<*mut c_void, Function>(address);
                function(context, port_num, port_attr)
            }
        }
        Err(errno) => dlopen::errno(errno),
    }
}

/// Reads a port's attributes.
///
/// # Safety
///
/// - `context` is an open device context.
/// - `port_attr` is valid for writes.
///
#[doc = man!(ibv_query_port)]
#[inline]
pub unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller promises an open `context` and a writable `port_attr`; the old symbol
    // writes a prefix of `ibv_port_attr`.
    unsafe {
        match extended_op!(context, query_port) {
            Some(query_port) => {
                query_port(context, port_num, port_attr, size_of::<ibv_port_attr>())
            }
            None => {
                port_attr.write_bytes(0, 1);
                compat_query_port(context, port_num, port_attr.cast())
            }
        }
    }
}

/// Reads a device's attributes, the extended ones where library and provider have them.
///
/// Where they don't, all but `orig_attr` is zero.
///
/// # Safety
///
/// - `context` is an open device context.
/// - `input` is null or initialised.
/// - `attr` is valid for writes.
///
#[doc = man!(ibv_query_device_ex)]
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller promises an open `context`, an initialised `input` and a writable `attr`.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return libc::EINVAL;
        }
        if let Some(query_device_ex) = extended_op!(context, query_device_ex) {
            let ret = query_device_ex(context, input, attr, size_of::<ibv_device_attr_ex>());
            if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
                return ret;
            }
        }
        attr.write_bytes(0, 1);
        ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

/// Creates a shared receive queue with extended attributes.
///
/// One that is basic and only in a protection domain is made by [`ibv_create_srq`].
///
/// # Safety
///
/// - `context` is an open device context.
/// - The fields of `srq_init_attr_ex` in its `comp_mask` are initialised, and it is writable; the
///   objects in it are live.
///
#[doc = man!(ibv_create_srq_ex)]
#[inline]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = IBV_SRQ_INIT_ATTR_TYPE.0;
    // SAFETY: the caller promises an open `context` and writable attributes; `ibv_srq_init_attr` is
    // a prefix of `ibv_srq_init_attr_ex`.
    unsafe {
        let mask = (*srq_init_attr_ex).comp_mask;
        if mask & !(PD | TYPE) == 0
            && mask & PD != 0
            && (mask & TYPE == 0 || (*srq_init_attr_ex).srq_type == IBV_SRQT_BASIC)
        {
            return ibv_create_srq((*srq_init_attr_ex).pd, srq_init_attr_ex.cast());
        }
        match extended_op!(context, create_srq_ex) {
            Some(create_srq_ex) => create_srq_ex(context, srq_init_attr_ex),
            None => <*mut ibv_srq>::unsupported(),
        }
    }
}

/// Creates a queue pair with extended attributes.
///
/// One that names nothing but a protection domain is made by [`ibv_create_qp`].
///
/// # Safety
///
/// - `context` is an open device context.
/// - The fields of `qp_init_attr_ex` in its `comp_mask` are initialised, and it is writable; the
///   objects in it are live.
///
#[doc = man!(ibv_create_qp_ex)]
#[inline]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller promises an open `context` and writable attributes; `ibv_qp_init_attr` is
    // a prefix of `ibv_qp_init_attr_ex`.
    unsafe {
        if (*qp_init_attr_ex).comp_mask == IBV_QP_INIT_ATTR_PD.0 {
            return ibv_create_qp((*qp_init_attr_ex).pd, qp_init_attr_ex.cast());
        }
        match extended_op!(context, create_qp_ex) {
            Some(create_qp_ex) => create_qp_ex(context, qp_init_attr_ex),
            None => <*mut ibv_qp>::unsupported(),
        }
    }
}

/// Posts operations (tag matching lists) to a shared receive queue.
///
/// # Safety
///
/// - `srq` is a live shared receive queue.
/// - `op` is a list of initialised operations that ends with a null `next`.
/// - `bad_op` is valid for writes.
///
#[doc = man!(ibv_post_srq_ops)]
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller promises a live `srq`, a list `op` and a writable `bad_op`.
    unsafe {
        match extended_op!((*srq).context, post_srq_ops) {
            Some(post_srq_ops) => post_srq_ops(srq, op, bad_op),
            None => {
                *bad_op = op;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Creates a receive work queue (WQ).
///
/// # Safety
///
/// - `context` is an open device context.
/// - `wq_init_attr` is initialised and writable; the objects in it are live.
///
#[doc = man!(ibv_create_wq)]
#[inline]
pub unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    wq_init_attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: the caller promises an open `context` and initialised attributes; a new queue has no
    // other user yet.
    unsafe {
        let Some(create_wq) = extended_op!(context, create_wq) else {
            return <*mut ibv_wq>::unsupported();
        };
        let wq = create_wq(context, wq_init_attr);
        if !wq.is_null() {
            (*wq).wq_context = (*wq_init_attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, ptr::null());
        }
        wq
    }
}

/// Closes an extended connection domain (XRCD).
///
/// As in C, nothing is checked: a program that could open one can close it.
///
/// # Safety
///
/// `xrcd` is live, and is not used again unless this fails.
///
#[doc = man!(ibv_open_xrcd)]
#[inline]
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller promises that `xrcd` is live; a context that opened an XRCD has the
    // operation.
    unsafe { extended_op!((*xrcd).context, close_xrcd).unwrap_unchecked()(xrcd) }
}
