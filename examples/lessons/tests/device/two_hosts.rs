//! Tests that two machines on one wire run at the same time: `SOFT_ROCE_HOST` is the number of this
//! one, `SOFT_ROCE_PEER` is the address of the other.

use std::env;

use verbs_harness::program::Program;

use crate::lessons::{TWO_HOSTS, answered, connect};

#[test]
#[ignore = "needs an RDMA device"]
fn the_lesson_connects_two_machines() {
    let (Ok(host), Ok(peer)) = (env::var("SOFT_ROCE_HOST"), env::var("SOFT_ROCE_PEER")) else {
        let test = "two_hosts::the_lesson_connects_two_machines";
        println!("SKIPPED {test}: SOFT_ROCE_HOST and SOFT_ROCE_PEER name no second machine");
        return;
    };
    if host == "1" {
        answered(Program::start(TWO_HOSTS, &["listen"], ""));
    } else {
        connect(&format!("{peer}:7471"));
    }
}
