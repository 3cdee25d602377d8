//! Sizes and offsets beside those that bindgen found in the header.

use std::mem::{offset_of, size_of};

use super::{attributes, connection, context, extended, object, request};

/// Compares a structure's size, and the offsets of its fields.
macro_rules! same {
    ($module:ident::$name:ident: $($fields:tt)*) => {
        assert_eq!(size_of::<$module::$name>(), size_of::<verbs_sys::$name>(), stringify!($name));
        same_fields!($module::$name: $($fields)*);
    };
}

/// Compares the offsets of fields; C's name, if it is another one, is after a sign of equality.
macro_rules! same_fields {
    ($module:ident::$name:ident:) => {};
    ($module:ident::$name:ident: $own:ident = $theirs:ident $($rest:tt)*) => {
        assert_eq!(
            offset_of!($module::$name, $own), offset_of!(verbs_sys::$name, $theirs),
            concat!(stringify!($name), ".", stringify!($own))
        );
        same_fields!($module::$name: $($rest)*);
    };
    ($module:ident::$name:ident: $field:ident $($rest:tt)*) => {
        same_fields!($module::$name: $field = $field $($rest)*);
    };
}

#[test]
fn objects_are_laid_out_as_in_the_header() {
    same!(object::ibv_device: node_type transport_type name dev_name dev_path ibdev_path);
    same!(object::ibv_pd: context handle);
    same!(object::ibv_mr: context pd addr length handle lkey rkey);
    same!(object::ibv_mw: context pd rkey handle type_);
    same!(object::ibv_comp_channel: context fd refcnt);
    same!(object::ibv_cq: context channel cq_context handle cqe mutex cond comp_events_completed
        async_events_completed);
    same!(object::ibv_srq: context srq_context pd handle mutex cond events_completed);
    same!(object::ibv_qp: context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond
        events_completed);
    same!(object::ibv_ah: context pd handle);
}

#[test]
fn attributes_are_laid_out_as_in_the_header() {
    same!(attributes::ibv_gid: raw);
    same!(attributes::ibv_gid_entry: gid gid_index port_num gid_type ndev_ifindex);
    same!(attributes::ibv_device_attr: fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id
        vendor_part_id hw_ver max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd
        max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee
        max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach
        max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge max_pkeys
        local_ca_ack_delay phys_port_cnt);
    // Newer headers have more at the end.
    same_fields!(attributes::ibv_port_attr: state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz
        bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply
        active_width active_speed phys_state link_layer flags port_cap_flags2);
    same!(attributes::ibv_global_route: dgid flow_label sgid_index hop_limit traffic_class);
    same!(attributes::ibv_ah_attr: grh dlid sl src_path_bits static_rate is_global port_num);
    same!(attributes::ibv_srq_attr: max_wr max_sge srq_limit);
    same!(attributes::ibv_srq_init_attr: srq_context attr);
    same!(attributes::ibv_qp_cap: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    same!(attributes::ibv_qp_init_attr: qp_context send_cq recv_cq srq cap qp_type sq_sig_all);
    same!(attributes::ibv_qp_attr: qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
        qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining
        max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num
        alt_timeout rate_limit);
    same!(attributes::ibv_qp_init_attr_ex: comp_mask pd xrcd create_flags max_tso_header rwq_ind_tbl
        rx_hash_conf source_qpn send_ops_flags);
    same_fields!(attributes::ibv_srq_init_attr_ex: comp_mask srq_type pd);
    same!(attributes::ibv_cq_init_attr_ex: cqe cq_context channel comp_vector wc_flags comp_mask flags
        parent_domain);
    same!(attributes::ibv_td_init_attr: comp_mask);
    same!(attributes::ibv_parent_domain_init_attr: pd td comp_mask alloc free pd_context);
    same!(attributes::ibv_device_attr_ex: orig_attr comp_mask completion_timestamp_mask hca_core_clock
        device_cap_flags_ex xrc_odp_caps phys_port_cnt_ex odp_general_caps=odp_caps);
}

#[test]
fn requests_are_laid_out_as_in_the_header() {
    same!(request::ibv_sge: addr length lkey);
    same!(request::ibv_recv_wr: wr_id next sg_list num_sge);
    same!(request::ibv_send_wr: wr_id next sg_list num_sge opcode send_flags wr imm_data=__bindgen_anon_1
        remote_srqn=qp_type bind_mw=__bindgen_anon_2);
    same!(request::ibv_mw_bind_info: mr addr length mw_access_flags);
    same!(request::ibv_mw_bind: wr_id send_flags bind_info);
    same!(request::ibv_wc: wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl
        dlid_path_bits);
    same!(request::ibv_async_event: element event_type);
}

#[test]
fn contexts_are_laid_out_as_in_the_header() {
    same!(context::ibv_context_ops: alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send
        post_recv);
    same!(context::ibv_context: device ops cmd_fd async_fd num_comp_vectors mutex abi_compat);
    same!(context::ibv_query_device_ex_input: comp_mask);
    same!(context::ibv_values_ex: comp_mask raw_clock);
    // Newer headers have more at the beginning: the distance from the end counts.
    let end = size_of::<context::verbs_context>();
    let their_end = size_of::<verbs_sys::verbs_context>();
    macro_rules! from_end {
        ($($field:ident)*) => {
            $(assert_eq!(
                end - offset_of!(context::verbs_context, $field),
                their_end - offset_of!(verbs_sys::verbs_context, $field),
                stringify!($field)
            );)*
        };
    }
    from_end!(query_port advise_mr alloc_null_mr modify_qp_rate_limit modify_cq post_srq_ops query_rt_values
        create_cq_ex query_device_ex open_qp create_qp_ex get_srq_num create_srq_ex sz context);
}

#[test]
fn extended_objects_are_laid_out_as_in_the_header() {
    same!(extended::ibv_cq_ex: comp_mask status wr_id start_poll next_poll end_poll read_opcode read_vendor_err
        read_byte_len read_imm_data read_qp_num read_src_qp read_wc_flags read_slid read_sl read_dlid_path_bits
        read_completion_ts read_cvlan read_flow_tag read_tm_info read_completion_wallclock_ns);
    same!(extended::ibv_poll_cq_attr: comp_mask);
    same!(extended::ibv_data_buf: addr length);
    // Newer headers have more at the end.
    same_fields!(extended::ibv_qp_ex: qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add
        wr_bind_mw wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_send_inv
        wr_send_tso wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge
        wr_set_sge_list wr_start wr_complete wr_abort);
}

#[test]
fn structures_of_librdmacm_are_laid_out_as_in_the_header() {
    same!(connection::rdma_event_channel: fd);
    same!(connection::rdma_route: path_rec num_paths);
    same!(connection::rdma_cm_id: verbs channel context qp route ps port_num event send_cq_channel send_cq
        recv_cq_channel recv_cq srq pd qp_type);
    same!(connection::rdma_conn_param: private_data private_data_len responder_resources initiator_depth
        flow_control retry_count rnr_retry_count srq qp_num);
    same!(connection::rdma_ud_param: private_data private_data_len ah_attr qp_num qkey);
    same!(connection::rdma_cm_event: id listen_id event status param);
    same!(connection::rdma_cm_join_mc_attr_ex: comp_mask join_flags addr);
}
