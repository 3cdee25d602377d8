//! Attributes of devices, ports, paths and queues.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::object::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_srq};

/// C's union of bytes and two numbers, in the order of the network.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

structures! {
    (Clone, Copy)
    ibv_gid_entry { gid: ibv_gid; gid_index port_num gid_type ndev_ifindex: u32; }
    ibv_device_attr {
        fw_ver: [c_char; 64];
        node_guid sys_image_guid max_mr_size page_size_cap: u64;
        vendor_id vendor_part_id hw_ver: u32;
        max_qp max_qp_wr: c_int;
        device_cap_flags: c_uint;
        max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom max_res_rd_atom
            max_qp_init_rd_atom max_ee_init_rd_atom: c_int;
        atomic_cap: u32;
        max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach
            max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge: c_int;
        max_pkeys: u16;
        local_ca_ack_delay phys_port_cnt: u8;
    }
    ibv_port_attr {
        state max_mtu active_mtu: u32;
        gid_tbl_len: c_int;
        port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr: u32;
        pkey_tbl_len lid sm_lid: u16;
        lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state link_layer flags: u8;
        port_cap_flags2: u16;
    }
    ibv_global_route { dgid: ibv_gid; flow_label: u32; sgid_index hop_limit traffic_class: u8; }
    ibv_ah_attr {
        grh: ibv_global_route;
        dlid: u16;
        sl src_path_bits static_rate is_global port_num: u8;
    }
    ibv_srq_attr { max_wr max_sge srq_limit: u32; }
    ibv_srq_init_attr { srq_context: *mut c_void; attr: ibv_srq_attr; }
    ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data: u32; }
    ibv_qp_init_attr {
        qp_context: *mut c_void;
        send_cq recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: u32;
        sq_sig_all: c_int;
    }
    ibv_qp_attr {
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num: u32;
        qp_access_flags: c_uint;
        cap: ibv_qp_cap;
        ah_attr alt_ah_attr: ibv_ah_attr;
        pkey_index alt_pkey_index: u16;
        en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
            rnr_retry alt_port_num alt_timeout: u8;
        rate_limit: u32;
    }
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void;
        send_cq recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: u32;
        sq_sig_all: c_int;
        comp_mask: u32;
        pd: *mut ibv_pd;
        xrcd: *mut c_void;
        create_flags: u32;
        max_tso_header: u16;
        rwq_ind_tbl: *mut c_void;
        rx_hash_conf: [u64; 3];
        source_qpn: u32;
        send_ops_flags: u64;
    }
    /// The beginning of C's structure.
    ibv_srq_init_attr_ex {
        srq_context: *mut c_void;
        attr: ibv_srq_attr;
        comp_mask srq_type: u32;
        pd: *mut ibv_pd;
    }
    ibv_cq_init_attr_ex {
        cqe: u32;
        cq_context: *mut c_void;
        channel: *mut ibv_comp_channel;
        comp_vector: u32;
        wc_flags: u64;
        comp_mask flags: u32;
        parent_domain: *mut ibv_pd;
    }
    ibv_td_init_attr { comp_mask: u32; }
    ibv_parent_domain_init_attr {
        pd: *mut ibv_pd;
        td: *mut c_void;
        comp_mask: u32;
        alloc free pd_context: *mut c_void;
    }
    /// C's structure up to the fields that say something here; all later ones are zeros.
    ibv_device_attr_ex {
        orig_attr: ibv_device_attr;
        comp_mask: u32;
        odp_general_caps: u64;
        rc_odp_caps uc_odp_caps ud_odp_caps: u32;
        completion_timestamp_mask hca_core_clock device_cap_flags_ex: u64;
        rest: [u64; 13];
        xrc_odp_caps phys_port_cnt_ex: u32;
    }
}
