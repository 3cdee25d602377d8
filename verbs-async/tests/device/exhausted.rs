//! A process that has used up what the kernel permits it.

use std::net::{Ipv4Addr, TcpListener};

use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_harness::child::{Child, LimitedGroup, join_group, role, without_descriptors};
use verbs_harness::{begin, context, faults};

use super::ends::{PATIENCE, Way, events, run};

fn group(way: Way) -> AsyncGroup {
    let pd = context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    AsyncGroup::new(Channel::builder(&pd), 3, &events).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn blocks_above_the_memlock_limit_are_an_error_with_both_sizes() {
    if let Some((_, mut line)) = role() {
        let group = group(Way::Thread);
        let (left, _right) = group.loopback().unwrap();
        line.is_ready();
        let error = BufferPool::new(group.pd(), 1 << 20, 1).unwrap_err();
        line.write(&faults::chain(&error));
        line.is_ready();
        let error = left.into_stream().map(drop).unwrap_err();
        return line.write(&faults::chain(&error));
    }
    let test = begin!(iwarp lacks "the immediates that streams need");
    let mut child = Child::start_as_nobody(&test, "register", Some(64 << 10));
    for layer in ["async", "stream"] {
        let (start, words) = (child.ready(), child.line.read());
        faults::text(faults::MEMLOCK, layer, words, faults::at_once(start));
    }
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn without_descriptors_connecting_is_an_error_and_a_channel_becomes_a_stream() {
    if let Some((port, mut line)) = role() {
        return run(Way::AsyncIo, async move {
            let group = group(Way::AsyncIo);
            let (left, _right) = group.loopback().unwrap();
            let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
            without_descriptors();
            line.is_ready();
            let connected = group.connect(address, PATIENCE).await;
            line.write(&faults::chain(&connected.map(drop).unwrap_err()));
            line.is_ready();
            drop(left.into_stream().unwrap());
            line.write("works");
        });
    }
    let test = begin!(iwarp lacks "the immediates that streams need");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut child = Child::start(&test, &port);
    let (start, words) = (child.ready(), child.line.read());
    faults::text(faults::DESCRIPTORS, "async", words, faults::at_once(start));
    let start = child.ready();
    assert_eq!(child.line.read(), "works");
    let what = "not applicable: the stream uses its channel's descriptors";
    faults::seen(faults::DESCRIPTORS, "stream", what, faults::at_once(start));
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_channel_beyond_the_limit_of_its_control_group_is_an_error() {
    if let Some((path, mut line)) = role() {
        let group = group(Way::Thread);
        join_group(&path);
        line.is_ready();
        return line.write(&faults::chain(&group.prepare().unwrap_err()));
    }
    let test = begin!();
    let few = match LimitedGroup::of_objects(&test, 0) {
        Ok(few) => few,
        Err(reason) => return test.skip(reason),
    };
    let mut child = Child::start(&test, few.path());
    let (start, words) = (child.ready(), child.line.read());
    faults::text(faults::QUEUE_PAIRS, "async", words, faults::at_once(start));
    assert!(child.ended().success());
}
