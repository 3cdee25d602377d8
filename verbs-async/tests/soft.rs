//! The device tests, on the two devices of soft-verbs: no hardware, kernel module or guest is needed.
// With librdmacm, the device tests have an `ibv_attach_mcast` of their own, which is there once.
#![cfg(all(test, not(feature = "rdmacm")))]

use soft_verbs as _;
use verbs_harness::soft::{ALLOCATES, NO_MANAGER, NOT_PINNED, ONE_PROCESS, run};

#[path = "device/main.rs"]
mod device;

const NO_CALLS: &str = "to arm a queue is no system call, and a tracer sees none";

#[test]
fn device_tests_pass_on_devices_in_software() {
    run(&[
        ("allocat", ALLOCATES),
        ("a_sleep_arms_once_and_takes_one_event", NO_CALLS),
        (
            "completion_after_the_busy_poll_time_wakes_the_task",
            NO_CALLS,
        ),
        (
            "no_system_calls_while_completions_keep_arriving",
            "the device makes system calls",
        ),
        (
            "blocks_above_the_memlock_limit_are_an_error_with_both_sizes",
            NOT_PINNED,
        ),
        ("stream_reads_what_arrived_then_the_peers_end", ONE_PROCESS),
        (
            "unwatched_sends_fail_by_the_transports_timeout",
            ONE_PROCESS,
        ),
        ("writing_to_a_peer_that_was_killed_fails", ONE_PROCESS),
        ("attaching::", NO_MANAGER),
        ("by_manager::", NO_MANAGER),
        ("iwarp::", NO_MANAGER),
        ("services::", NO_MANAGER),
    ]);
}
