//! RC writes and reads (9.4.3, 9.4.4), local invalidation aside.

use crate::link::{ALL, World, pattern, succeeded};
use soft_nic::packet::{Body, Place};
use soft_nic::{Access, AttributeMask, SendOpcode, Status, Transport};

#[test]
fn no_bytes_need_no_key() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    world.post_a(qa, 1, SendOpcode::Write(Default::default()), &[]);
    world.post_a(qa, 2, SendOpcode::Read(Default::default()), &[]);
    world.run();
    assert_eq!(world.a.statuses(), succeeded([1, 2]));
}

#[test]
fn no_more_reads_are_outstanding_than_max_rd_atomic() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let sqd = soft_nic::QueuePairState::Sqd;
    world.a.go(qa, sqd).unwrap();
    let one = |attributes: &mut soft_nic::QueuePairAttributes| attributes.max_rd_atomic = 1;
    world
        .a
        .modify(qa, AttributeMask::MAX_QP_RD_ATOMIC, one)
        .unwrap();
    world.a.go(qa, soft_nic::QueuePairState::Rts).unwrap();
    let (remote, back) = (world.b.filled(&pattern(3000)), world.a.buffer(3000, ALL));
    for number in 0..4 {
        world.post_a(
            qa,
            number,
            SendOpcode::Read(remote.remote(0)),
            &[back.element()],
        );
    }
    world.run();
    assert_eq!(world.a.statuses().len(), 4);
    let mut outstanding = 0;
    for (_, header) in &world.seen {
        match header.body {
            Body::ReadRequest(_) => outstanding += 1,
            Body::ReadResponse(place, _) if place.ends() => outstanding -= 1,
            _ => {}
        }
        assert!(outstanding <= 1);
    }
}

#[test]
fn a_fence_waits_for_reads() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let (remote, back) = (world.b.filled(&pattern(100)), world.a.buffer(100, ALL));
    let local = world.a.filled(&[9; 100]);
    world.post_a(qa, 1, SendOpcode::Read(remote.remote(0)), &[back.element()]);
    let elements = [local.element()];
    let mut fenced = soft_nic::SendRequest::new(
        2,
        SendOpcode::Write(remote.remote(0)),
        soft_nic::Data::Elements(elements.to_vec()),
    );
    fenced.is_fenced = true;
    world.a.nic.post_send(qa, fenced).unwrap();
    world.run();
    let bodies: Vec<Body> = world.seen.iter().map(|(_, header)| header.body).collect();
    let answer = bodies
        .iter()
        .position(|body| matches!(body, Body::ReadResponse(Place::Only, _)));
    let write = bodies
        .iter()
        .position(|body| matches!(body, Body::Write(..)));
    assert!(answer < write);
    assert_eq!(back.bytes(), pattern(100));
}

#[test]
fn iova_is_the_address_that_peers_use() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let remote = world.b.buffer(4096, ALL);
    let pd = world.b.pd;
    let (_, rkey) = world
        .b
        .nic
        .reg_mr(pd, remote.registered(), 0x10_0000, ALL)
        .unwrap();
    let local = world.a.filled(&[1, 2, 3]);
    let to = |address| SendOpcode::Write(soft_nic::RemoteAddress { address, rkey });
    world.post_a(qa, 1, to(0x10_0ffd), &[local.element()]);
    world.run();
    assert_eq!(remote.bytes()[4093..], [1, 2, 3]);
    world.post_a(qa, 2, to(0x10_0ffe), &[local.element()]);
    world.run();
    assert_eq!(world.a.statuses()[1], (2, Status::REM_ACCESS_ERR));
}

#[test]
fn a_region_without_remote_access_has_no_rkey() {
    let mut world = World::new();
    assert_eq!(world.a.buffer(8, Access::LOCAL_WRITE).rkey, 0);
    assert_ne!(world.a.buffer(8, Access::REMOTE_READ).rkey, 0);
}
