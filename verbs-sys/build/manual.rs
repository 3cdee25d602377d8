//! Docs for what C's headers have no comment on: links to the manual pages, and labels for what a feature
//! adds.

/// Exported functions that no manual page is named after.
const WITHOUT_PAGE: [&str; 12] = [
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_qp_to_qp_ex",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_wc_status_str",
    "rdma_create_qp_ex",
    "rdma_create_srq_ex",
    "rdma_freeaddrinfo",
    "rdma_reject_ece",
];

/// Manual pages, and the types that they explain.
const PAGES: [(&str, &str); 53] = [
    ("ibv_alloc_dm", "ibv_alloc_dm_attr ibv_dm ibv_dm_mask"),
    ("ibv_alloc_mw", "ibv_mw ibv_mw_type"),
    (
        "ibv_alloc_parent_domain",
        "ibv_parent_domain_init_attr ibv_parent_domain_init_attr_mask",
    ),
    ("ibv_alloc_pd", "ibv_pd"),
    ("ibv_alloc_td", "ibv_td ibv_td_init_attr"),
    (
        "ibv_attach_counters_point_flow",
        "ibv_counter_attach_attr ibv_counter_description",
    ),
    ("ibv_advise_mr", "ibv_advise_mr_advice"),
    ("ibv_bind_mw", "ibv_mw_bind ibv_mw_bind_info"),
    ("ibv_create_ah", "ibv_ah ibv_ah_attr ibv_global_route"),
    ("ibv_create_ah_from_wc", "ibv_grh"),
    ("ibv_create_comp_channel", "ibv_comp_channel"),
    ("ibv_create_counters", "ibv_counters ibv_counters_init_attr"),
    ("ibv_create_cq", "ibv_cq"),
    (
        "ibv_create_cq_ex",
        "ibv_cq_ex ibv_cq_init_attr_ex ibv_cq_init_attr_mask ibv_create_cq_attr_flags ibv_create_cq_wc_flags \
         ibv_poll_cq_attr ibv_wc_tm_info",
    ),
    ("ibv_create_flow", "ibv_flow"),
    (
        "ibv_create_flow_action",
        "ibv_flow_action ibv_flow_action_esp ibv_flow_action_esp_attr ibv_flow_action_esp_encap \
         ibv_flow_action_esp_flags ibv_flow_action_esp_keymat ibv_flow_action_esp_keymat_aes_gcm \
         ibv_flow_action_esp_mask ibv_flow_action_esp_replay ibv_flow_action_esp_replay_bmp",
    ),
    (
        "ibv_create_qp",
        "ibv_qp ibv_qp_cap ibv_qp_init_attr ibv_qp_type",
    ),
    (
        "ibv_create_qp_ex",
        "ibv_qp_create_flags ibv_qp_create_send_ops_flags ibv_qp_init_attr_ex ibv_qp_init_attr_mask \
         ibv_rx_hash_conf ibv_rx_hash_fields ibv_rx_hash_function_flags",
    ),
    (
        "ibv_create_rwq_ind_table",
        "ibv_ind_table_init_attr_mask ibv_rwq_ind_table ibv_rwq_ind_table_init_attr",
    ),
    ("ibv_create_srq", "ibv_srq ibv_srq_init_attr"),
    (
        "ibv_create_srq_ex",
        "ibv_srq_init_attr_ex ibv_srq_init_attr_mask ibv_srq_type ibv_tm_cap",
    ),
    (
        "ibv_create_wq",
        "ibv_wq ibv_wq_flags ibv_wq_init_attr ibv_wq_init_attr_mask ibv_wq_type",
    ),
    ("ibv_get_async_event", "ibv_async_event ibv_event_type"),
    (
        "ibv_get_device_list",
        "ibv_device ibv_node_type ibv_transport_type",
    ),
    ("ibv_is_fork_initialized", "ibv_fork_status"),
    (
        "ibv_modify_cq",
        "ibv_cq_attr_mask ibv_moderate_cq ibv_modify_cq_attr",
    ),
    (
        "ibv_modify_qp",
        "ibv_mig_state ibv_qp_attr ibv_qp_attr_mask ibv_qp_state",
    ),
    ("ibv_modify_qp_rate_limit", "ibv_qp_rate_limit_attr"),
    ("ibv_modify_srq", "ibv_srq_attr ibv_srq_attr_mask"),
    ("ibv_modify_wq", "ibv_wq_attr ibv_wq_attr_mask ibv_wq_state"),
    ("ibv_open_device", "ibv_context"),
    ("ibv_open_qp", "ibv_qp_open_attr ibv_qp_open_attr_mask"),
    (
        "ibv_open_xrcd",
        "ibv_xrcd ibv_xrcd_init_attr ibv_xrcd_init_attr_mask",
    ),
    (
        "ibv_poll_cq",
        "ibv_wc ibv_wc_flags ibv_wc_opcode ibv_wc_status",
    ),
    ("ibv_post_recv", "ibv_recv_wr"),
    (
        "ibv_post_send",
        "ibv_send_flags ibv_send_wr ibv_sge ibv_wr_opcode",
    ),
    (
        "ibv_post_srq_ops",
        "ibv_ops_flags ibv_ops_wr ibv_ops_wr_opcode",
    ),
    (
        "ibv_query_device",
        "ibv_atomic_cap ibv_device_attr ibv_device_cap_flags",
    ),
    (
        "ibv_query_device_ex",
        "ibv_cq_moderation_caps ibv_device_attr_ex ibv_odp_caps ibv_odp_general_caps \
         ibv_odp_transport_cap_bits ibv_packet_pacing_caps ibv_pci_atomic_caps ibv_pci_atomic_op_size \
         ibv_query_device_ex_input ibv_raw_packet_caps ibv_rss_caps ibv_tm_cap_flags ibv_tm_caps \
         ibv_tso_caps",
    ),
    ("ibv_query_ece", "ibv_ece"),
    ("ibv_query_gid", "ibv_gid"),
    ("ibv_query_gid_ex", "ibv_gid_entry ibv_gid_type"),
    (
        "ibv_query_port",
        "ibv_mtu ibv_port_attr ibv_port_cap_flags ibv_port_cap_flags2 ibv_port_state",
    ),
    ("ibv_query_rt_values_ex", "ibv_values_ex ibv_values_mask"),
    ("ibv_rate_to_mbps", "ibv_rate"),
    ("ibv_read_counters", "ibv_read_counters_flags"),
    ("ibv_reg_mr", "ibv_access_flags ibv_mr"),
    ("ibv_rereg_mr", "ibv_rereg_mr_err_code ibv_rereg_mr_flags"),
    ("ibv_wr_post", "ibv_data_buf ibv_qp_ex"),
    (
        "rdma_create_id",
        "rdma_cm_id rdma_event_channel rdma_port_space",
    ),
    (
        "rdma_get_cm_event",
        "rdma_cm_event rdma_cm_event_type rdma_conn_param rdma_ud_param",
    ),
    ("rdma_getaddrinfo", "rdma_addrinfo"),
    (
        "rdma_join_multicast_ex",
        "rdma_cm_join_mc_attr_ex rdma_cm_join_mc_attr_mask rdma_cm_mc_join_flags",
    ),
];

/// The label that docs.rs shows for what is there with a feature only. It has to be spelt out: the items
/// are, or are not, in what bindgen wrote.
const LABEL: &str = "#[cfg_attr(docsrs, doc(cfg(feature = \"rdmacm\")))]\n";

/// The bindings with docs: a function or a type has a link to its manual page, and a value one to
/// its type. Items of librdmacm have a label.
pub(crate) fn documented(bindings: &str) -> String {
    let mut text = String::with_capacity(bindings.len() * 5 / 4);
    let mut items = bindings.split("pub ");
    text.push_str(items.next().unwrap_or_default());
    for item in items {
        if let Some(doc) = doc(item) {
            text.push_str(&format!("#[doc = {doc:?}]\n"));
        }
        if is_of_librdmacm(item) {
            text.push_str(LABEL);
        }
        text.push_str("pub ");
        text.push_str(item);
    }
    text
}

/// The text to add to the docs of an item that begins with its kind and its name.
fn doc(item: &str) -> Option<String> {
    let mut words = item
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty());
    let is_c = |name: &str| name.contains("ibv_") || name.starts_with("rdma_");
    match (words.next()?, words.next()?) {
        ("fn", name) => {
            let has_page = is_c(name) && !WITHOUT_PAGE.contains(&name);
            has_page.then(|| link("See", name))
        }
        ("struct" | "union", name) => {
            let explains =
                |(_, types): &&(&str, &str)| types.split_whitespace().any(|it| it == name);
            let page = PAGES.iter().find(explains).map(|(page, _)| *page);
            // One page has all kinds of them.
            let of_flows = name.starts_with("ibv_flow_").then_some("ibv_create_flow");
            Some(link(&format!("C: `{name}`, see"), page.or(of_flows)?))
        }
        ("const", _) => {
            let of = words.next().filter(|of| is_c(of))?;
            Some(format!("A value of [`{of}`]."))
        }
        _ => None,
    }
}

/// Whether an item, which begins with its kind and its name, is one of librdmacm's headers.
fn is_of_librdmacm(item: &str) -> bool {
    let mut words = item.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let kind = words.next().unwrap_or_default();
    let is_item = matches!(kind, "fn" | "struct" | "union" | "const" | "type");
    let name = words.next().filter(|_| is_item).unwrap_or_default();
    ["rdma_", "RDMA_", "RAI_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn link(before: &str, page: &str) -> String {
    format!("{before} [`{page}(3)`](https://man7.org/linux/man-pages/man3/{page}.3.html).")
}
