//! The device tests, on the two devices of soft-verbs: no hardware, kernel module or guest is needed.
#![cfg(test)]

use soft_verbs as _;
use verbs_harness::soft::{ALLOCATES, NO_MANAGER, NOT_PINNED, ONE_PROCESS, run};

#[path = "device/main.rs"]
mod device;

#[test]
fn device_tests_pass_on_devices_in_software() {
    run(&[
        ("allocat", ALLOCATES),
        ("pages_are_written_and_announced_again_and_again", ALLOCATES),
        (
            "chain_of_pages_is_one_operation_and_is_posted_again",
            ALLOCATES,
        ),
        ("two_processes_connect_and_exchange_messages", ONE_PROCESS),
        (
            "send_to_a_dead_peer_fails_by_the_devices_timeout",
            ONE_PROCESS,
        ),
        (
            "a_pool_above_the_memlock_limit_is_an_error_with_both_sizes",
            NOT_PINNED,
        ),
        (
            "a_child_of_a_fork_ends_no_connection_of_the_connection_manager",
            NO_MANAGER,
        ),
        ("by_manager::", NO_MANAGER),
        ("brief_clients::", NO_MANAGER),
        ("iwarp::", NO_MANAGER),
        ("services::", NO_MANAGER),
    ]);
}
