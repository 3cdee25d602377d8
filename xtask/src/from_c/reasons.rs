//! C's names without a Rust name of their own, and why.

/// Why names have none. The first group with a pattern that fits a name is its group; a pattern that ends
/// with `*` fits all names that begin so.
pub(super) struct Group {
    pub(super) reason: &'static str,
    /// Whether `verbs_sys` has the names.
    pub(super) is_in_sys: bool,
    patterns: &'static [&'static str],
}

impl Group {
    pub(super) fn fits(&self, name: &str) -> bool {
        self.patterns
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == *pattern,
            })
    }
}

/// Items of `verbs.h`.
pub(super) const VERBS: &[Group] = &[
    Group {
        reason: "Arguments and builder methods instead of C's input structures, their masks and flags.",
        is_in_sys: true,
        patterns: &[
            "ibv_cq_attr_mask",
            "ibv_modify_cq_attr",
            "IBV_CQ_ATTR_*",
            "ibv_qp_init_attr_ex",
            "ibv_qp_init_attr_mask",
            "IBV_QP_INIT_ATTR_PD",
            "IBV_QP_INIT_ATTR_RESERVED",
            "ibv_create_qp_ex",
            "ibv_srq_attr_mask",
            "ibv_srq_init_attr*",
            "ibv_srq_type",
            "IBV_SRQ_INIT_ATTR_TYPE",
            "IBV_SRQ_INIT_ATTR_PD",
            "IBV_SRQ_INIT_ATTR_CQ",
            "IBV_SRQ_INIT_ATTR_RESERVED",
            "IBV_SRQ_LIMIT",
            "IBV_SRQ_MAX_WR",
            "IBV_SRQT_BASIC",
            "ibv_create_srq_ex",
            "ibv_td_init_attr",
            "ibv_parent_domain_init_attr",
            "ibv_send_flags",
            "ibv_query_device_ex_input",
        ],
    },
    Group {
        reason: "Codes of rates, for [`AhAttr::static_rate`](crate::AhAttr::static_rate) and the builders' \
                 `static_rate`.",
        is_in_sys: true,
        patterns: &[
            "ibv_rate_to_*",
            "mbps_to_ibv_rate",
            "mult_to_ibv_rate",
            "IBV_RATE_*",
        ],
    },
    Group {
        reason: "Flags with which a queue pair is created, and a program's own allocators for a parent domain.",
        is_in_sys: true,
        patterns: &[
            "ibv_qp_create_flags",
            "IBV_QP_CREATE_*",
            "IBV_QP_INIT_ATTR_CREATE_FLAGS",
            "ibv_parent_domain_init_attr_mask",
            "IBV_PARENT_DOMAIN_*",
            "IBV_ALLOCATOR_USE_DEFAULT",
        ],
    },
    Group {
        reason: "Methods of a completion instead of its flags, such as \
                 [`WorkSuccess::imm_data`](crate::WorkSuccess::imm_data).",
        is_in_sys: true,
        patterns: &["ibv_wc_flags", "IBV_WC_WITH_IMM"],
    },
    Group {
        reason: "Extended completion queues and time stamps.",
        is_in_sys: true,
        patterns: &[
            "ibv_cq_ex",
            "ibv_cq_init_attr*",
            "IBV_CQ_INIT_ATTR_*",
            "ibv_create_cq_*",
            "IBV_CREATE_CQ_*",
            "ibv_start_poll",
            "ibv_next_poll",
            "ibv_end_poll",
            "ibv_poll_cq_attr",
            "ibv_wc_read_*",
            "IBV_WC_EX_*",
            "IBV_WC_STANDARD_FLAGS",
            "ibv_query_rt_values_ex",
            "ibv_values_*",
            "IBV_VALUES_*",
        ],
    },
    Group {
        reason: "Requests that are built in the queue, one call for each field. Requests that are built \
                 once are [`RequestChain`](crate::RequestChain)s.",
        is_in_sys: true,
        patterns: &[
            "ibv_wr_*",
            "ibv_qp_ex",
            "ibv_qp_to_qp_ex",
            "IBV_QP_EX_*",
            "ibv_qp_create_send_ops_flags",
            "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS",
            "ibv_data_buf",
            "IBV_WR_ATOMIC_WRITE",
            "IBV_WC_ATOMIC_WRITE",
        ],
    },
    Group {
        reason: "The UDP source port of RoCE's packets, which the device makes of the flow label.",
        is_in_sys: true,
        patterns: &[
            "ibv_flow_label_to_udp_sport",
            "IB_GRH_FLOWLABEL_MASK",
            "IB_ROCE_UDP_ENCAP_VALID_PORT_*",
        ],
    },
    Group {
        reason: "Raw Ethernet packets: their queues, flow steering, hashing, offloads and pacing.",
        is_in_sys: true,
        patterns: &[
            "ibv_flow*",
            "IBV_FLOW*",
            "ibv_create_flow*",
            "ibv_destroy_flow*",
            "ibv_modify_flow*",
            "ibv_create_wq",
            "ibv_modify_wq",
            "ibv_destroy_wq",
            "ibv_post_wq_recv",
            "ibv_wq*",
            "IBV_WQ*",
            "ibv_rwq*",
            "ibv_create_rwq*",
            "ibv_destroy_rwq*",
            "ibv_ind_table*",
            "IBV_CREATE_IND_TABLE*",
            "ibv_rx_hash*",
            "IBV_RX_HASH*",
            "ibv_rss_caps",
            "ibv_raw_packet_caps",
            "IBV_RAW_PACKET_*",
            "IBV_QPT_RAW_PACKET",
            "IBV_QP_INIT_ATTR_IND_TABLE",
            "IBV_QP_INIT_ATTR_RX_HASH",
            "IBV_QP_INIT_ATTR_MAX_TSO_HEADER",
            "ibv_is_qpt_supported",
            "IBV_SEND_IP_CSUM",
            "IBV_WC_IP_CSUM*",
            "IBV_WR_TSO",
            "ibv_packet_pacing_caps",
            "ibv_modify_qp_rate_limit",
            "ibv_qp_rate_limit_attr",
            "ibv_resolve_eth_l2_from_gid",
            "ETHERNET_LL_SIZE",
        ],
    },
    Group {
        reason: "Extended reliable connections (XRC).",
        is_in_sys: true,
        patterns: &[
            "ibv_xrcd*",
            "IBV_XRCD*",
            "ibv_open_xrcd",
            "ibv_close_xrcd",
            "ibv_open_qp",
            "ibv_qp_open_attr*",
            "IBV_QP_OPEN_ATTR_*",
            "IBV_QPT_XRC*",
            "IBV_SRQT_XRC",
            "IBV_QP_INIT_ATTR_XRCD",
            "IBV_SRQ_INIT_ATTR_XRCD",
            "ibv_get_srq_num",
        ],
    },
    Group {
        reason: "Memory windows and the invalidation of keys.",
        is_in_sys: true,
        patterns: &[
            "ibv_mw*",
            "ibv_alloc_mw",
            "ibv_dealloc_mw",
            "ibv_bind_mw",
            "ibv_inc_rkey",
            "IBV_MW_*",
            "IBV_WR_BIND_MW",
            "IBV_WR_LOCAL_INV",
            "IBV_WR_SEND_WITH_INV",
            "IBV_WC_WITH_INV",
        ],
    },
    Group {
        reason: "Regions that are made of attributes, hints for caches (TPH), and buffers of the library.",
        is_in_sys: true,
        patterns: &[
            "ibv_reg_mr_ex",
            "ibv_mr_init_attr*",
            "IBV_REG_MR_MASK_*",
            "ibv_dmah*",
            "ibv_alloc_dmah",
            "ibv_dealloc_dmah",
            "IBV_DMAH_*",
            "ibv_tph_mem_type",
            "IBV_TPH_MEM_TYPE_*",
            "ibv_buf",
            "ibv_alloc_buf",
            "ibv_free_buf",
            "ibv_reg_buf_mr",
            "ibv_export_buf_dmabuf_fd",
            "ibv_fd_arr",
        ],
    },
    Group {
        reason: "Flushes of remote memory, and atomic writes to memory on demand.",
        is_in_sys: true,
        patterns: &[
            "ibv_placement_type",
            "ibv_selectivity_level",
            "IBV_FLUSH_*",
            "IBV_ACCESS_FLUSH_*",
            "IBV_WR_FLUSH",
            "IBV_WC_FLUSH",
            "IBV_ODP_SUPPORT_FLUSH",
            "IBV_ODP_SUPPORT_ATOMIC_WRITE",
        ],
    },
    Group {
        reason: "Counters of completions.",
        is_in_sys: true,
        patterns: &[
            "ibv_comp_cntr*",
            "IBV_COMP_CNTR_*",
            "ibv_create_comp_cntr",
            "ibv_destroy_comp_cntr",
            "ibv_query_comp_cntr_caps",
            "ibv_inc_comp_cntr",
            "ibv_inc_err_comp_cntr",
            "ibv_read_comp_cntr",
            "ibv_read_err_comp_cntr",
            "ibv_set_comp_cntr",
            "ibv_set_err_comp_cntr",
            "ibv_qp_attach_comp_cntr*",
            "IBV_QP_ATTACH_COMP_CNTR_*",
        ],
    },
    Group {
        reason: "Memory of the device, regions without memory, and regions that change.",
        is_in_sys: true,
        patterns: &[
            "ibv_dm*",
            "IBV_DM_*",
            "ibv_alloc_dm*",
            "ibv_free_dm",
            "ibv_import_dm",
            "ibv_unimport_dm",
            "ibv_memcpy_*",
            "ibv_alloc_null_mr",
            "ibv_rereg_mr*",
            "IBV_REREG_MR_*",
        ],
    },
    Group {
        reason: "Counters of flows.",
        is_in_sys: true,
        patterns: &[
            "ibv_counter*",
            "IBV_COUNTER_*",
            "ibv_create_counters",
            "ibv_destroy_counters",
            "ibv_attach_counters*",
            "ibv_read_counters*",
            "IBV_READ_COUNTERS_*",
        ],
    },
    Group {
        reason: "Tag matching.",
        is_in_sys: true,
        patterns: &[
            "ibv_tm_*",
            "IBV_TM_*",
            "ibv_wc_tm_info",
            "IBV_WC_TM_*",
            "IBV_WR_TAG_*",
            "ibv_ops_*",
            "IBV_OPS_*",
            "IBV_SRQT_TM",
            "IBV_SRQ_INIT_ATTR_TM",
            "ibv_post_srq_ops",
        ],
    },
    Group {
        reason: "Features beyond RDMA's standard, or of some vendors' devices only.",
        is_in_sys: true,
        patterns: &[
            "ibv_ece",
            "ibv_query_ece",
            "ibv_set_ece",
            "ibv_pci_atomic_*",
            "IBV_PCI_ATOMIC_*",
            "IBV_QPT_DRIVER",
            "IBV_WC_DRIVER*",
            "IBV_WR_DRIVER*",
        ],
    },
    Group {
        reason: "Values and queries that only the newest versions of rdma-core have.",
        is_in_sys: true,
        patterns: &[
            "IBV_DEVICE_CC_DMA_BOUNCE",
            "IBV_EVENT_DEVICE_SPEED_CHANGE",
            "IBV_PORT_LINK_SPEED_XDR_SUP",
            "ibv_query_port_speed",
            "ibv_query_qp_data_in_order_flags",
            "IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY",
        ],
    },
    Group {
        reason: "Parts of the library and the process: objects that were imported from another process, the table of a \
                 provider's functions, and the state of fork support.",
        is_in_sys: true,
        patterns: &[
            "ibv_unimport_*",
            "ibv_fork_status",
            "ibv_is_fork_initialized",
            "IBV_FORK_*",
            "ibv_context_ops",
            "verbs_context",
            "verbs_get_ctx",
        ],
    },
    Group {
        reason: "Bounds of C's own: lengths of names, and what is reserved.",
        is_in_sys: true,
        patterns: &["IBV_SYSFS_*", "IBV_ACCESS_OPTIONAL_*"],
    },
    Group {
        reason: "Providers that are linked into a static program; here they are plugins.",
        is_in_sys: false,
        patterns: &["ibv_static_providers", "verbs_provider_*"],
    },
    Group {
        reason: "Macros that take the name of a field.",
        is_in_sys: false,
        patterns: &["verbs_get_ctx_op", "vext_field_avail"],
    },
];

/// Names of `verbs.h` that are nobody's to use.
pub(super) const NOT_OF_VERBS: &[(&str, &str)] = &[
    ("INFINIBAND_VERBS_H", "guards from a second inclusion"),
    ("__attribute_const", "of the compiler; undefined at the end"),
    (
        "__VERBS_ABI_IS_EXTENDED",
        "a mark that `verbs_get_ctx` reads",
    ),
    ("_RDMA_STATIC_PREFIX", "a part of `ibv_get_device_list`"),
    ("_RDMA_STATIC_PREFIX_", "a part of `ibv_get_device_list`"),
    ("__ibv_get_device_list", "a part of `ibv_get_device_list`"),
    ("___ibv_query_port", "a part of `ibv_query_port`"),
    ("_compat_ibv_port_attr", "of programs of an older ABI"),
    (
        "_ibv_query_comp_cntr_caps",
        "a part of `ibv_query_comp_cntr_caps`",
    ),
    ("_ibv_query_gid_ex", "a part of `ibv_query_gid_ex`"),
    ("_ibv_query_gid_table", "a part of `ibv_query_gid_table`"),
    ("_ibv_device_ops", "functions that were moved elsewhere"),
    ("__ibv_reg_mr", "a part of `ibv_reg_mr`"),
    ("__ibv_reg_mr_iova", "a part of `ibv_reg_mr_iova`"),
    ("verbs_devices_ops", "misspelt; nothing has this name"),
];

/// Items of `rdma_cma.h`.
pub(super) const MANAGER: &[Group] = &[
    Group {
        reason: "Every id has an event channel of its own, and the types of the steps are its events: \
                 [`Connector`](crate::rdmacm::Connector) and what its steps return.",
        is_in_sys: true,
        patterns: &[
            "rdma_event_channel",
            "rdma_cm_event",
            "rdma_event_str",
            "rdma_get_cm_event",
            "rdma_ack_cm_event",
            "rdma_write_cm_event",
            "RDMA_CM_EVENT_INTERNAL",
            "RDMA_CM_EVENT_USER",
            "rdma_ud_param",
            "rdma_addr",
            "rdma_route",
            "rdma_ib_addr",
            "rdma_notify",
            "rdma_migrate_id",
            "rdma_establish",
            "RDMA_MAX_*",
        ],
    },
    Group {
        reason: "Dropping the value does this.",
        is_in_sys: true,
        patterns: &[
            "rdma_destroy_id",
            "rdma_destroy_event_channel",
            "rdma_leave_multicast",
        ],
    },
    Group {
        reason: "The queue pair is always the program's own, of its own context. Its builder has the depths and \
                 the retries.",
        is_in_sys: true,
        patterns: &[
            "rdma_conn_param",
            "rdma_create_qp*",
            "rdma_init_qp_attr",
            "rdma_destroy_qp",
            "rdma_create_ep",
            "rdma_destroy_ep",
            "rdma_get_devices",
            "rdma_free_devices",
        ],
    },
    Group {
        reason: "Addresses are resolved by the standard library, and options are methods, but for the path on \
                 InfiniBand (`RDMA_OPTION_IB_PATH`).",
        is_in_sys: true,
        patterns: &[
            "rdma_addrinfo",
            "RAI_*",
            "rdma_getaddrinfo",
            "rdma_freeaddrinfo",
            "rdma_query_addrinfo",
            "rdma_resolve_addrinfo",
            "RDMA_CM_EVENT_ADDRINFO_*",
            "rdma_set_option",
            "RDMA_OPTION_*",
        ],
    },
    Group {
        reason: "Port spaces, and the service ids that they are part of: those of TCP and UDP, chosen by the type. There \
                 are no others.",
        is_in_sys: true,
        patterns: &["rdma_port_space", "RDMA_PS_*", "RDMA_IB_*", "RDMA_UDP_QKEY"],
    },
    Group {
        reason: "Kinds of multicast membership other than a full one.",
        is_in_sys: true,
        patterns: &[
            "rdma_join_multicast_ex",
            "rdma_cm_join_mc_*",
            "rdma_cm_mc_*",
            "RDMA_CM_JOIN_MC_*",
            "RDMA_MC_JOIN_*",
        ],
    },
    Group {
        reason: "Options of one vendor's devices, which both sides agree on.",
        is_in_sys: true,
        patterns: &[
            "rdma_get_remote_ece",
            "rdma_set_local_ece",
            "rdma_reject_ece",
        ],
    },
];

/// Names of `rdma_cma.h` that are nobody's to use.
pub(super) const NOT_OF_MANAGER: &[(&str, &str)] =
    &[("RDMA_CMA_H", "guards from a second inclusion")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names_or_their_beginnings() {
        let group = Group {
            reason: "",
            is_in_sys: true,
            patterns: &["ibv_mw*", "ibv_dm"],
        };
        assert!(group.fits("ibv_mw") && group.fits("ibv_mw_bind") && group.fits("ibv_dm"));
        assert!(!group.fits("ibv_dm_mask") && !group.fits("ibv_m"));
    }
}
