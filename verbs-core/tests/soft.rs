//! The device tests, on the two devices of soft-verbs: no hardware, kernel module or guest is needed.
#![cfg(test)]

use soft_verbs as _;
use verbs_harness::soft::{NO_MANAGER, NO_NODE, NO_SYSFS, NOT_PINNED, ONE_PROCESS, run};

#[path = "device/main.rs"]
mod device;

#[test]
fn device_tests_pass_on_devices_in_software() {
    run(&[
        ("device_attributes_match_sysfs", NO_SYSFS),
        ("a_device_has_its_place_and_its_rate", NO_SYSFS),
        ("gid_table_matches_sysfs_without_empty_entries", NO_SYSFS),
        ("pkeys_match_sysfs", NO_SYSFS),
        ("port_attributes_match_sysfs", NO_SYSFS),
        ("a_device_node_that_may_not_be_opened_is_named", NO_NODE),
        ("a_memlock_limit_that_is_too_low_is_named", NOT_PINNED),
        (
            "the_memlock_limit_is_named_to_root_of_a_user_namespace",
            NOT_PINNED,
        ),
        ("two_processes_connect_by_bytes", ONE_PROCESS),
        ("two_processes_connect_by_json", ONE_PROCESS),
        ("each_kind_of_request_to_a_dead_peer_ends", ONE_PROCESS),
        (
            "a_peer_killed_under_a_stream_of_writes_ends_the_stream",
            ONE_PROCESS,
        ),
        (
            "attaching_alone_brings_nothing_from_the_network",
            "a packet to a group comes to all hosts of the network",
        ),
        (
            "unreachable_address_fails_when_the_handle_is_made",
            "addresses are not looked up: packets to nobody are lost",
        ),
        ("rdmacm::", NO_MANAGER),
    ]);
}
