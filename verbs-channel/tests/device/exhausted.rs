//! A process that has used up what the kernel permits it.

use std::net::{Ipv4Addr, TcpListener};

use verbs_channel::{BufferPool, Channel};
use verbs_harness::child::{Child, LimitedGroup, join_group, role, without_descriptors};
use verbs_harness::{PATIENCE, begin, faults};

use super::ends::here;

#[test]
#[ignore = "needs an RDMA device"]
fn a_pool_above_the_memlock_limit_is_an_error_with_both_sizes() {
    if let Some((_, mut line)) = role() {
        let pd = here();
        line.is_ready();
        let error = BufferPool::new(&pd, 1 << 20, 1).unwrap_err();
        return line.write(&faults::chain(&error));
    }
    let test = begin!();
    let mut child = Child::start_as_nobody(&test, "register", Some(64 << 10));
    let (start, words) = (child.ready(), child.line.read());
    faults::text(faults::MEMLOCK, "channel", words, faults::at_once(start));
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn connecting_without_a_descriptor_is_an_error() {
    if let Some((port, mut line)) = role() {
        let prepared = Channel::builder(&here()).build().unwrap();
        let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
        without_descriptors();
        line.is_ready();
        let error = prepared.connect(address, PATIENCE).unwrap_err();
        return line.write(&faults::chain(&error));
    }
    let test = begin!(iwarp lacks "connecting over TCP");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut child = Child::start(&test, &port);
    let (start, words) = (child.ready(), child.line.read());
    let within = faults::at_once(start);
    faults::text(faults::DESCRIPTORS, "channel", words, within);
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_channel_beyond_the_limit_of_its_control_group_is_an_error() {
    if let Some((group, mut line)) = role() {
        let pd = here();
        join_group(&group);
        line.is_ready();
        let error = Channel::builder(&pd).build().unwrap_err();
        return line.write(&faults::chain(&error));
    }
    let test = begin!();
    // Its completion queue.
    let few = match LimitedGroup::of_objects(&test, 1) {
        Ok(few) => few,
        Err(reason) => return test.skip(reason),
    };
    let mut child = Child::start(&test, few.path());
    let (start, words) = (child.ready(), child.line.read());
    faults::text(
        faults::QUEUE_PAIRS,
        "channel",
        words,
        faults::at_once(start),
    );
    assert!(child.ended().success());
}
