//! Every function that the headers define as `static inline` is in the crate.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

/// Definitions that C has only for its own macros, and the items that stand for them.
const EXCEPTIONS: &[(&str, *const ())] = &[
    ("___ibv_query_port", verbs_sys::ibv_query_port as *const ()),
    ("__ibv_reg_mr", verbs_sys::ibv_reg_mr as *const ()),
    ("__ibv_reg_mr_iova", verbs_sys::ibv_reg_mr_iova as *const ()),
];

/// A name and a use of the function that has it, so that a missing one does not compile.
macro_rules! inline_verbs {
    ($($(#[$cfg:meta])? $name:ident)+) => {
        &[$($(#[$cfg])? (stringify!($name), verbs_sys::$name as *const ())),+]
    };
}

const INLINE_VERBS: &[(&str, *const ())] = inline_verbs! {
    ibv_advise_mr ibv_alloc_dm ibv_alloc_mw ibv_alloc_null_mr ibv_alloc_parent_domain ibv_alloc_td
    ibv_attach_counters_point_flow ibv_bind_mw ibv_close_xrcd ibv_cq_ex_to_cq ibv_create_counters
    ibv_create_cq_ex ibv_create_flow ibv_create_flow_action_esp ibv_create_qp_ex
    ibv_create_rwq_ind_table ibv_create_srq_ex ibv_create_wq ibv_dealloc_mw ibv_dealloc_td
    ibv_destroy_counters ibv_destroy_flow ibv_destroy_flow_action ibv_destroy_rwq_ind_table
    ibv_destroy_wq ibv_end_poll ibv_flow_label_to_udp_sport ibv_free_dm ibv_get_srq_num
    ibv_inc_rkey ibv_is_qpt_supported ibv_memcpy_from_dm ibv_memcpy_to_dm ibv_modify_cq
    ibv_modify_flow_action_esp ibv_modify_qp_rate_limit ibv_modify_wq ibv_next_poll ibv_open_qp
    ibv_open_xrcd ibv_poll_cq ibv_post_recv ibv_post_send ibv_post_srq_ops ibv_post_srq_recv
    ibv_post_wq_recv
    #[cfg(has_comp_cntr)] ibv_query_comp_cntr_caps
    ibv_query_device_ex ibv_query_gid_ex ibv_query_gid_table ibv_query_rt_values_ex
    ibv_read_counters ibv_reg_dm_mr ibv_req_notify_cq ibv_start_poll ibv_wc_read_byte_len
    ibv_wc_read_completion_ts ibv_wc_read_completion_wallclock_ns ibv_wc_read_cvlan
    ibv_wc_read_dlid_path_bits ibv_wc_read_flow_tag ibv_wc_read_imm_data
    ibv_wc_read_invalidated_rkey ibv_wc_read_opcode ibv_wc_read_qp_num ibv_wc_read_sl
    ibv_wc_read_slid ibv_wc_read_src_qp ibv_wc_read_tm_info ibv_wc_read_vendor_err
    ibv_wc_read_wc_flags ibv_wr_abort ibv_wr_atomic_cmp_swp ibv_wr_atomic_fetch_add
    #[cfg(has_atomic_write)] ibv_wr_atomic_write
    ibv_wr_bind_mw ibv_wr_complete
    #[cfg(has_flush)] ibv_wr_flush
    ibv_wr_local_inv ibv_wr_rdma_read ibv_wr_rdma_write ibv_wr_rdma_write_imm ibv_wr_send
    ibv_wr_send_imm ibv_wr_send_inv ibv_wr_send_tso ibv_wr_set_inline_data
    ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list ibv_wr_set_ud_addr
    ibv_wr_set_xrc_srqn ibv_wr_start verbs_get_ctx
};

#[cfg(feature = "rdmacm")]
const INLINE_CALLS: &[(&str, *const ())] = inline_verbs! {
    rdma_dereg_mr rdma_get_local_addr rdma_get_peer_addr rdma_get_recv_comp rdma_get_send_comp
    rdma_post_read rdma_post_readv rdma_post_recv rdma_post_recvv rdma_post_send rdma_post_sendv
    rdma_post_ud_send rdma_post_write rdma_post_writev rdma_reg_msgs rdma_reg_read rdma_reg_write
    rdma_seterrno
};
#[cfg(not(feature = "rdmacm"))]
const INLINE_CALLS: &[(&str, *const ())] = &[];

/// The `static inline` functions of the installed headers: those that bindgen would wrap in C.
fn defined_by_the_headers() -> BTreeSet<String> {
    const SUFFIX: &str = "__extern";
    let include_paths = env::split_paths(env!("VERBS_SYS_INCLUDE"));
    let mut builder =
        bindgen::Builder::default().header(concat!(env!("CARGO_MANIFEST_DIR"), "/wrapper.h"));
    if cfg!(feature = "rdmacm") {
        builder = builder.header(concat!(env!("CARGO_MANIFEST_DIR"), "/rdmacm.h"));
    }
    let bindings = builder
        .clang_args(include_paths.map(|path: PathBuf| format!("-I{}", path.display())))
        .allowlist_file(".*/infiniband/.*|.*/rdma/rdma_(cma|verbs).h")
        .wrap_static_fns(true)
        .wrap_static_fns_suffix(SUFFIX)
        .wrap_static_fns_path(env::temp_dir().join(format!("verbs-sys-{}", std::process::id())))
        .generate()
        .expect("bindgen reads the headers, as it did in the build script")
        .to_string();
    bindings
        .split('"')
        .filter_map(|text| text.strip_suffix(SUFFIX))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_inline_functions_of_the_headers_are_those_listed_here() {
    let defined = defined_by_the_headers();
    let listed = INLINE_VERBS.iter().chain(INLINE_CALLS).chain(EXCEPTIONS);
    let listed: BTreeSet<_> = listed.map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> = defined.difference(&listed).collect();
    assert!(missing.is_empty(), "not listed here: {missing:?}");
    let stale: Vec<_> = listed.difference(&defined).collect();
    assert!(stale.is_empty(), "not in the headers: {stale:?}");
}
