//! A device that is nothing but function tables, arguments to call it with, and a record of the
//! calls it gets.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::ptr;

use verbs_sys::{
    __be32, ibv_advise_mr_advice, ibv_ah, ibv_alloc_dm_attr, ibv_context, ibv_counter_attach_attr,
    ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf,
    ibv_device_attr, ibv_device_attr_ex, ibv_dm, ibv_flow, ibv_flow_action,
    ibv_flow_action_esp_attr, ibv_flow_attr, ibv_gid_entry, ibv_modify_cq_attr, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_ops_wr, ibv_parent_domain_init_attr, ibv_pd,
    ibv_poll_cq_attr, ibv_port_attr, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wc,
    ibv_wc_opcode, ibv_wc_tm_info, ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd,
    ibv_xrcd_init_attr, verbs_context,
};

thread_local! {
    static CALLS: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Notes a call of a fake operation.
pub(crate) fn record(arguments: Vec<u64>) {
    CALLS.with_borrow_mut(|calls| calls.push(arguments));
}

/// The calls since the last time this was asked, each as its arguments.
pub(crate) fn calls() -> Vec<Vec<u64>> {
    CALLS.take()
}

/// Sets `errno`, to see whether a verb does.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// This thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

/// An open device context whose tables are empty.
pub(crate) struct Device(*mut verbs_context);

impl Device {
    /// As long as in our headers.
    pub(crate) fn new() -> Self {
        let vctx = zeroed_object::<verbs_context>();
        // SAFETY: just made, and kept forever.
        unsafe {
            (*vctx).sz = size_of::<verbs_context>();
            (*vctx).context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        }
        Self(vctx)
    }

    /// From a library older than any operation: before `sz` there is memory that must not be read.
    pub(crate) fn oldest() -> Self {
        const PAGE: usize = 64 * 1024;
        const { assert!(size_of::<verbs_context>() < PAGE) };
        let (front, sz) = (ptr::null_mut(), offset_of!(verbs_context, sz));
        // SAFETY: new memory, which has no other user.
        let guard = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(front, 2 * PAGE, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(guard, libc::MAP_FAILED);
        let page = guard.wrapping_byte_add(PAGE);
        // SAFETY: the second half of that memory.
        let ret = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(ret, 0);
        // SAFETY: the page is ours, zeroed, and begins with `sz`; the fields in front of it are in
        // the guard.
        unsafe {
            page.cast::<usize>().write(size_of::<verbs_context>() - sz);
            let context = page.byte_add(size_of::<usize>()).cast::<ibv_context>();
            (*context).abi_compat = ptr::without_provenance_mut(usize::MAX);
        }
        Self(page.wrapping_byte_sub(sz).cast())
    }

    pub(crate) fn vctx(&self) -> *mut verbs_context {
        self.0
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.0
            .wrapping_byte_add(offset_of!(verbs_context, context))
            .cast()
    }
}

/// A new zeroed object, never freed.
fn zeroed_object<T>() -> *mut T {
    // SAFETY: C's structs are made of numbers, pointers and optional functions; all may be zero.
    Box::into_raw(Box::new(unsafe { zeroed() }))
}

/// Something a verb takes a pointer to.
pub(crate) trait Object: Sized {
    /// A new one, belonging to `context` if it belongs to any.
    fn make(context: *mut ibv_context) -> *mut Self;
}

impl Object for ibv_context {
    fn make(context: *mut ibv_context) -> *mut Self {
        context
    }
}

impl Object for ibv_qp_ex {
    fn make(context: *mut ibv_context) -> *mut Self {
        let qp = zeroed_object::<Self>();
        // SAFETY: just made.
        unsafe { (*qp).qp_base.context = context };
        qp
    }
}

impl<T> Object for *mut T {
    fn make(_context: *mut ibv_context) -> *mut Self {
        zeroed_object()
    }
}

macro_rules! objects {
    (with a context: $($object:ident)+; without: $($attr:ident)+) => {
        $(impl Object for $object {
            fn make(context: *mut ibv_context) -> *mut Self {
                let object = zeroed_object::<Self>();
                // SAFETY: just made.
                unsafe { (*object).context = context };
                object
            }
        })+
        $(impl Object for $attr {
            fn make(_context: *mut ibv_context) -> *mut Self {
                zeroed_object()
            }
        })+
    };
}

objects! {
    with a context: ibv_ah ibv_counters ibv_cq ibv_cq_ex ibv_dm ibv_flow ibv_flow_action ibv_mr
        ibv_mw ibv_pd ibv_qp ibv_rwq_ind_table ibv_srq ibv_td ibv_wq ibv_xrcd;
    without: c_void ibv_alloc_dm_attr ibv_counter_attach_attr ibv_counters_init_attr
        ibv_cq_init_attr_ex ibv_data_buf ibv_device_attr ibv_device_attr_ex ibv_flow_action_esp_attr ibv_flow_attr ibv_gid_entry ibv_modify_cq_attr ibv_mw_bind ibv_port_attr ibv_qp_init_attr ibv_qp_init_attr_ex ibv_query_device_ex_input ibv_srq_init_attr ibv_srq_init_attr_ex ibv_wq_init_attr
        ibv_mw_bind_info ibv_ops_wr ibv_parent_domain_init_attr ibv_poll_cq_attr ibv_qp_open_attr
        ibv_qp_rate_limit_attr ibv_recv_wr ibv_rwq_ind_table_init_attr ibv_send_wr ibv_sge
        ibv_td_init_attr ibv_values_ex ibv_wc ibv_wc_tm_info ibv_wq_attr ibv_xrcd_init_attr u32 u64
}

#[cfg(has_comp_cntr)]
impl Object for verbs_sys::ibv_comp_cntr_caps {
    fn make(_context: *mut ibv_context) -> *mut Self {
        zeroed_object()
    }
}

/// Something a verb takes or returns.
pub(crate) trait Value: Copy {
    /// One that is not like the others: `nth` distinguishes arguments of one type.
    fn sample(context: *mut ibv_context, nth: u8) -> Self;

    /// Bits that distinguish this value from another of its type.
    fn bits(self) -> u64;
}

impl<T: Object> Value for *mut T {
    fn sample(context: *mut ibv_context, _nth: u8) -> Self {
        T::make(context)
    }

    fn bits(self) -> u64 {
        u64::try_from(self.addr()).expect("pointers have 64 bits")
    }
}

impl<T: Object> Value for *const T {
    fn sample(context: *mut ibv_context, _nth: u8) -> Self {
        T::make(context)
    }

    fn bits(self) -> u64 {
        self.cast_mut().bits()
    }
}

macro_rules! numbers {
    ($($number:ident)+) => {$(
        impl Value for $number {
            fn sample(_context: *mut ibv_context, nth: u8) -> Self {
                Self::from(100 + nth)
            }

            fn bits(self) -> u64 {
                u64::try_from(self).expect("samples are small")
            }
        }
    )+};
}

numbers!(u8 u16 u32 u64 usize c_int);

macro_rules! newtypes {
    ($($newtype:ident)+) => {$(
        impl Value for $newtype {
            fn sample(_context: *mut ibv_context, nth: u8) -> Self {
                Self((100 + nth).into())
            }

            fn bits(self) -> u64 {
                self.0.into()
            }
        }
    )+};
}

newtypes!(__be32 ibv_advise_mr_advice ibv_mw_type ibv_wc_opcode);

impl Value for () {
    fn sample(_context: *mut ibv_context, _nth: u8) -> Self {}

    fn bits(self) -> u64 {
        0
    }
}

/// An operation for a function table: records its arguments, and runs the body.
macro_rules! fake_op {
    (|$($arg:ident: $type:ty),*| -> $ret:ty { $($body:tt)* }) => {{
        unsafe extern "C" fn fake($($arg: $type),*) -> $ret {
            $crate::fake::record(vec![$($crate::fake::Value::bits($arg)),*]);
            $($body)*
        }
        fake
    }};
}
pub(crate) use fake_op;

/// Names the arguments, samples that belong to `$context`.
macro_rules! samples {
    ($context:ident, $($arg:ident: $type:ty),*) => {
        let mut nth = 0_u8..;
        $(let $arg = <$type as $crate::fake::Value>::sample(
            $context,
            nth.next().expect("few arguments"),
        );)*
    };
}
pub(crate) use samples;
