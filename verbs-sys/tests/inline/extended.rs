//! Verbs through the table in front of the context.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr;

use verbs_sys::{
    ibv_advise_mr_advice, ibv_alloc_dm_attr, ibv_context, ibv_counter_attach_attr, ibv_counters,
    ibv_counters_init_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_dm, ibv_flow,
    ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_modify_cq_attr, ibv_mr,
    ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq, ibv_td, ibv_td_init_attr,
    ibv_values_ex, ibv_wq, ibv_wq_attr, ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};

use crate::fake::{Device, Value, calls, errno, fake_op, samples, set_errno};

/// A verb's return type, and its value for "unsupported".
trait Answer: Value + PartialEq {
    const DONE: Self;

    fn is_unsupported(self) -> bool;
}

impl Answer for c_int {
    const DONE: Self = 77;

    fn is_unsupported(self) -> bool {
        self == libc::EOPNOTSUPP
    }
}

impl<T> Answer for *mut T
where
    Self: Value,
{
    const DONE: Self = ptr::without_provenance_mut(0x7700);

    fn is_unsupported(self) -> bool {
        self.is_null() && errno() == libc::EOPNOTSUPP
    }
}

/// Tests verbs that call one operation, or return the error that there is none.
macro_rules! extended {
    ($(
        $verb:ident($($arg:ident: $type:ty),*) -> $ret:ty = $op:ident
    )*) => {$(
        #[test]
        fn $verb() {
            const SHORT_BY: usize = offset_of!(verbs_context, $op);
            let fake = fake_op!(|$($arg: $type),*| -> $ret { <$ret as Answer>::DONE });
            let verb = |context: *mut ibv_context| {
                samples!(context, $($arg: $type),*);
                set_errno(0);
                // SAFETY: the fakes stand for live objects of a device.
                let answer = unsafe { verbs_sys::$verb($($arg),*) };
                (answer, vec![$(Value::bits($arg)),*])
            };

            let device = Device::new();
            let vctx = device.vctx();
            // SAFETY: the device lives as long as the test.
            unsafe { (*vctx).$op = Some(fake) };
            let (answer, arguments) = verb(device.context());
            assert_eq!(calls(), [arguments], "the provider has it");
            assert!(answer == <$ret as Answer>::DONE);

            // SAFETY: the device, which `vctx` is part of, lives as long as the test.
            unsafe { (*vctx).sz = size_of::<verbs_context>() - SHORT_BY };
            let (answer, arguments) = verb(device.context());
            assert_eq!(calls(), [arguments], "the library is just long enough");
            assert!(answer == <$ret as Answer>::DONE);

            // SAFETY: the device, which `vctx` is part of, lives as long as the test.
            unsafe { (*vctx).sz -= 1 };
            let (answer, _) = verb(device.context());
            assert!(answer.is_unsupported(), "the library is too short");

            // SAFETY: the device, which `vctx` is part of, lives as long as the test.
            unsafe {
                (*vctx).sz = size_of::<verbs_context>();
                (*vctx).$op = None;
            }
            let (answer, _) = verb(device.context());
            assert!(answer.is_unsupported(), "the provider lacks it");

            // SAFETY: the device, which `vctx` is part of, lives as long as the test.
            unsafe {
                (*vctx).$op = Some(fake);
                (*vctx).context.abi_compat = ptr::null_mut();
            }
            let (answer, _) = verb(device.context());
            assert!(answer.is_unsupported(), "the library has no table");

            let (answer, _) = verb(Device::oldest().context());
            assert!(answer.is_unsupported(), "what an old library lacks is not even read");
            assert!(calls().is_empty());
        }
    )*};
}

extended! {
    ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = ibv_create_flow
    ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int = ibv_destroy_flow
    ibv_create_flow_action_esp(
        ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr
    ) -> *mut ibv_flow_action = create_flow_action_esp
    ibv_modify_flow_action_esp(
        action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr
    ) -> c_int = modify_flow_action_esp
    ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = destroy_flow_action
    ibv_open_xrcd(
        context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr
    ) -> *mut ibv_xrcd = open_xrcd
    ibv_advise_mr(
        pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge,
        num_sge: u32
    ) -> c_int = advise_mr
    ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = alloc_dm
    ibv_free_dm(dm: *mut ibv_dm) -> c_int = free_dm
    ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = alloc_null_mr
    ibv_reg_dm_mr(
        pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint
    ) -> *mut ibv_mr = reg_dm_mr
    ibv_create_cq_ex(
        context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex
    ) -> *mut ibv_cq_ex = create_cq_ex
    ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq
    ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = get_srq_num
    ibv_alloc_td(
        context: *mut ibv_context, init_attr: *mut ibv_td_init_attr
    ) -> *mut ibv_td = alloc_td
    ibv_dealloc_td(td: *mut ibv_td) -> c_int = dealloc_td
    ibv_alloc_parent_domain(
        context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr
    ) -> *mut ibv_pd = alloc_parent_domain
    ibv_query_rt_values_ex(
        context: *mut ibv_context, values: *mut ibv_values_ex
    ) -> c_int = query_rt_values
    ibv_open_qp(
        context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr
    ) -> *mut ibv_qp = open_qp
    ibv_modify_qp_rate_limit(
        qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr
    ) -> c_int = modify_qp_rate_limit
    ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = modify_wq
    ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq
    ibv_create_rwq_ind_table(
        context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr
    ) -> *mut ibv_rwq_ind_table = create_rwq_ind_table
    ibv_destroy_rwq_ind_table(
        rwq_ind_table: *mut ibv_rwq_ind_table
    ) -> c_int = destroy_rwq_ind_table
    ibv_create_counters(
        context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr
    ) -> *mut ibv_counters = create_counters
    ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters
    ibv_attach_counters_point_flow(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow
    ) -> c_int = attach_counters_point_flow
    ibv_read_counters(
        counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32
    ) -> c_int = read_counters
}

#[test]
fn verbs_get_ctx() {
    let device = Device::new();
    // SAFETY: the device lives as long as the test.
    unsafe {
        assert_eq!(verbs_sys::verbs_get_ctx(device.context()), device.vctx());
        (*device.context()).abi_compat = ptr::null_mut();
        assert!(verbs_sys::verbs_get_ctx(device.context()).is_null());
    }
}
