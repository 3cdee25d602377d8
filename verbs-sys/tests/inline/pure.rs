//! Inline verbs that only compute.

use std::ptr;

use verbs_sys::{IBV_QPT_DRIVER, IBV_QPT_RC, IBV_QPT_UD, ibv_cq_ex, ibv_qp_type};

#[test]
fn a_key_keeps_its_index_when_its_tag_goes_round() {
    assert_eq!(verbs_sys::ibv_inc_rkey(0x1234_5600), 0x1234_5601);
    assert_eq!(verbs_sys::ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(verbs_sys::ibv_inc_rkey(u32::MAX), 0xffff_ff00);
}

#[test]
fn a_queue_pair_type_is_supported_if_its_bit_is_set() {
    let caps = 1 << IBV_QPT_RC.0;
    assert_eq!(verbs_sys::ibv_is_qpt_supported(caps, IBV_QPT_RC), 1);
    assert_eq!(verbs_sys::ibv_is_qpt_supported(caps, IBV_QPT_UD), 0);
    assert_eq!(verbs_sys::ibv_is_qpt_supported(1 << 31, ibv_qp_type(31)), 1);
    assert_eq!(verbs_sys::ibv_is_qpt_supported(u32::MAX, IBV_QPT_DRIVER), 0);
}

#[test]
fn a_flow_label_folds_into_a_dynamic_port() {
    assert_eq!(verbs_sys::ibv_flow_label_to_udp_sport(0), 0xC000);
    assert_eq!(verbs_sys::ibv_flow_label_to_udp_sport(0x0_3FFF), 0xFFFF);
    assert_eq!(verbs_sys::ibv_flow_label_to_udp_sport(0xF_C000), 0xC03F);
    // Both halves, which meet by exclusive or; bits above the label's twenty count for nothing.
    assert_eq!(verbs_sys::ibv_flow_label_to_udp_sport(0xABC_5678), 0xD649);
}

#[test]
fn an_extended_queue_is_the_plain_one() {
    let cq: *mut ibv_cq_ex = ptr::without_provenance_mut(0x4400);
    assert_eq!(verbs_sys::ibv_cq_ex_to_cq(cq).addr(), 0x4400);
}
