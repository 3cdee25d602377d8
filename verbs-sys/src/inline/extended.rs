//! Verbs through the table in front of `ibv_context`, which newer libraries extend.

use core::ffi::{c_int, c_uint};
use core::mem::offset_of;
use core::ptr;

use crate::errno::set_errno;
use crate::{
    ibv_advise_mr_advice, ibv_alloc_dm_attr, ibv_context, ibv_counter_attach_attr, ibv_counters,
    ibv_counters_init_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_dm, ibv_flow,
    ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_modify_cq_attr, ibv_mr,
    ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq, ibv_td, ibv_td_init_attr,
    ibv_values_ex, ibv_wq, ibv_wq_attr, ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};

/// The `verbs_context` around `ctx`, or null if libibverbs is too old to have one.
///
/// Its length is in `sz`, set by the library that made it. It may be shorter than this type, by
/// fields at the front: read `sz` before any other field, and form no reference.
///
/// # Safety
///
/// `ctx` is an open device context, by the pointer that C returned. A pointer made from a reference
/// is not enough: the memory before the context is accessed.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller promises that `ctx` is an open device context.
    if unsafe { (*ctx).abi_compat }.addr() != usize::MAX {
        return ptr::null_mut();
    }
    // A shorter object begins behind this address, so it may be outside of it.
    ctx.wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast()
}

/// Reads the operation at `offset` in the `verbs_context` around `context`: none if the library's
/// is too short to have it, or the provider has left it out.
///
/// `_field` is not called; it determines the type of the field at `offset`.
///
/// # Safety
///
/// As for [`verbs_get_ctx`], and `offset` is that of `_field`.
#[inline]
pub(super) unsafe fn read_op<Op: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> &Option<Op>,
) -> Option<Op> {
    // SAFETY: the caller promises that `context` is an open device context.
    let vctx = unsafe { verbs_get_ctx(context) };
    if vctx.is_null() {
        return None;
    }
    let sz = vctx
        .wrapping_byte_add(offset_of!(verbs_context, sz))
        .cast::<usize>();
    // SAFETY: every `verbs_context` has `sz`, right before its `ibv_context`.
    if unsafe { sz.read() } < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: `sz` says that the object includes this field.
    unsafe { vctx.wrapping_byte_add(offset).cast::<Option<Op>>().read() }
}

/// Reads an operation of the `verbs_context` around a context, by the field's name.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        $crate::inline::extended::read_op(
            $context,
            offset_of!($crate::verbs_context, $op),
            |vctx| &vctx.$op,
        )
    };
}
pub(super) use extended_op;

/// The value that a verb returns when the library or the provider lacks it.
pub(super) trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for c_int {
    fn unsupported() -> Self {
        libc::EOPNOTSUPP
    }
}

impl<T> Unsupported for *mut T {
    fn unsupported() -> Self {
        set_errno(libc::EOPNOTSUPP);
        ptr::null_mut()
    }
}

/// The context that an argument is, or that the object it points to belongs to.
macro_rules! context_of {
    ($context:ident) => {
        $context
    };
    ($object:ident . context) => {
        // SAFETY: the verb's caller promises a live object.
        unsafe { (*$object).context }
    };
}

/// Defines verbs that only call their operation, or return the error that it is missing.
macro_rules! extended_verbs {
    ($(
        $(#[doc = $doc:literal])+
        man $page:ident
        fn $verb:ident($($arg:ident: $type:ty),+) -> $ret:ty = $($context:ident).+ => $op:ident;
    )+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Safety
        ///
        /// - The context, and every object among the arguments, is live and came from libibverbs;
        ///   what this destroys is not used again, unless this fails.
        /// - Every other pointer is valid for what the verb reads and writes: attributes are
        ///   initialised, arrays as long as the count beside them.
        ///
        #[doc = man!($page)]
        #[inline]
        pub unsafe fn $verb($($arg: $type),+) -> $ret {
            let context = context_of!($($context).+);
            // SAFETY: the caller promises that the context is live and came from libibverbs.
            match unsafe { extended_op!(context, $op) } {
                // SAFETY: the caller promises live objects, and pointers that the verb may use.
                Some(op) => unsafe { op($($arg),+) },
                None => <$ret>::unsupported(),
            }
        }
    )+};
}

extended_verbs! {
    /// Attaches a flow steering rule to a queue pair.
    man ibv_create_flow
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        = qp.context => ibv_create_flow;

    /// Removes a flow steering rule.
    man ibv_create_flow
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int
        = flow_id.context => ibv_destroy_flow;

    /// Creates an ESP (`IPsec`) action for flow steering rules.
    man ibv_create_flow_action
    fn ibv_create_flow_action_esp(
        ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr
    ) -> *mut ibv_flow_action
        = ctx => create_flow_action_esp;

    /// Changes an ESP (`IPsec`) action.
    man ibv_create_flow_action
    fn ibv_modify_flow_action_esp(
        action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr
    ) -> c_int
        = action.context => modify_flow_action_esp;

    /// Destroys an action for flow steering rules.
    man ibv_create_flow_action
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int
        = action.context => destroy_flow_action;

    /// Opens an extended connection domain (XRCD).
    man ibv_open_xrcd
    fn ibv_open_xrcd(
        context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr
    ) -> *mut ibv_xrcd
        = context => open_xrcd;

    /// Advises the device about address ranges of memory regions.
    man ibv_advise_mr
    fn ibv_advise_mr(
        pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge,
        num_sge: u32
    ) -> c_int
        = pd.context => advise_mr;

    /// Allocates memory on the device.
    man ibv_alloc_dm
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        = context => alloc_dm;

    /// Frees memory on the device.
    man ibv_alloc_dm
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int
        = dm.context => free_dm;

    /// Allocates a memory region that reads as nothing and drops what is written.
    man ibv_alloc_null_mr
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr
        = pd.context => alloc_null_mr;

    /// Registers device memory as a memory region.
    man ibv_alloc_dm
    fn ibv_reg_dm_mr(
        pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint
    ) -> *mut ibv_mr
        = pd.context => reg_dm_mr;

    /// Creates a completion queue with extended attributes, read field by field.
    man ibv_create_cq_ex
    fn ibv_create_cq_ex(
        context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex
    ) -> *mut ibv_cq_ex
        = context => create_cq_ex;

    /// Changes a completion queue's moderation.
    man ibv_modify_cq
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        = cq.context => modify_cq;

    /// Reads the number by which a peer addresses a shared receive queue.
    man ibv_get_srq_num
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int
        = srq.context => get_srq_num;

    /// Allocates a thread domain: its objects are used by one thread at a time.
    man ibv_alloc_td
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        = context => alloc_td;

    /// Frees a thread domain.
    man ibv_alloc_td
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int
        = td.context => dealloc_td;

    /// Allocates a protection domain over another one, with a thread domain or allocators.
    man ibv_alloc_parent_domain
    fn ibv_alloc_parent_domain(
        context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr
    ) -> *mut ibv_pd
        = context => alloc_parent_domain;

    /// Reads a device's current real-time values, such as its clock.
    man ibv_query_rt_values_ex
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = context => query_rt_values;

    /// Opens a queue pair that another process shares.
    man ibv_open_qp
    fn ibv_open_qp(
        context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr
    ) -> *mut ibv_qp
        = context => open_qp;

    /// Limits a queue pair's send rate.
    man ibv_modify_qp_rate_limit
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = qp.context => modify_qp_rate_limit;

    /// Changes a receive work queue's attributes, its state among them.
    man ibv_modify_wq
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int
        = wq.context => modify_wq;

    /// Destroys a receive work queue.
    man ibv_create_wq
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int
        = wq.context => destroy_wq;

    /// Creates a table that spreads received packets over receive work queues.
    man ibv_create_rwq_ind_table
    fn ibv_create_rwq_ind_table(
        context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr
    ) -> *mut ibv_rwq_ind_table
        = context => create_rwq_ind_table;

    /// Destroys a table of receive work queues.
    man ibv_create_rwq_ind_table
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        = rwq_ind_table.context => destroy_rwq_ind_table;

    /// Creates a set of counters.
    man ibv_create_counters
    fn ibv_create_counters(
        context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr
    ) -> *mut ibv_counters
        = context => create_counters;

    /// Destroys a set of counters.
    man ibv_create_counters
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int
        = counters.context => destroy_counters;

    /// Attaches one counter of a set to a flow steering rule.
    man ibv_attach_counters_point_flow
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow
    ) -> c_int
        = counters.context => attach_counters_point_flow;

    /// Reads a set of counters.
    man ibv_read_counters
    fn ibv_read_counters(
        counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32
    ) -> c_int
        = counters.context => read_counters;
}
