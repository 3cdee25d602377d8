//! UD: GRH, `Q_Key`, lengths, multicast (9.8.3, 10.2.5, 10.5).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::link::{ALL, Host, World, errno, pattern, succeeded};
use soft_nic::{
    AddressVector, Data, DatagramAddress, Element, Errno, Profile, Psn, QueuePairState, Route,
    SendOpcode, SendRequest, Status, Transport,
};

const QKEY: u32 = 0x1111_1111;

fn datagram_pair(host: &mut Host) -> u32 {
    let options = host.options(Transport::Ud);
    let qp = host.nic.create_qp(&options).unwrap();
    let path = AddressVector::to(host.gid);
    host.nic
        .connect(qp, path, Psn::new(1), QKEY, Psn::new(1))
        .unwrap();
    qp
}

fn send(
    host: &mut Host,
    from: u32,
    to: (Ipv6Addr, u32, u32),
    opcode: SendOpcode,
    elements: &[Element],
) {
    let mut request = SendRequest::new(1, opcode, Data::Elements(elements.to_vec()));
    let (gid, queue_pair, qkey) = to;
    request.to = Some(DatagramAddress {
        path: AddressVector::to(gid),
        queue_pair,
        qkey,
    });
    host.nic.post_send(from, request).unwrap();
}

#[test]
fn a_datagram_comes_with_its_grh_and_its_sender() {
    for profile in [Profile::default(), Profile::hostile()] {
        let mut world = World::of(profile.clone(), 1);
        let (qa, qb) = (datagram_pair(&mut world.a), datagram_pair(&mut world.b));
        let (sent, received) = (world.a.filled(&pattern(100)), world.b.buffer(200, ALL));
        world.receive_b(qb, 2, &[received.part(0, 30), received.part(30, 170)]);
        let to = (world.b.gid, qb, QKEY);
        send(
            &mut world.a,
            qa,
            to,
            SendOpcode::SendWithImmediate([1, 2, 3, 4]),
            &[sent.part(0, 99)],
        );
        world.run();
        assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
        let completion = world.b.poll().unwrap();
        assert_eq!((completion.byte_len, completion.has_grh), (139, true));
        assert_eq!(
            (completion.source_queue_pair, completion.immediate),
            (qa, Some([1, 2, 3, 4]))
        );
        let bytes = received.bytes();
        assert_eq!(bytes[..20], [profile.grh_padding; 20]);
        assert_eq!(bytes[20..24], [0x45, 0, 0, 20 + 8 + 12 + 8 + 4 + 100 + 4]);
        assert_eq!(bytes[32..40], [127, 0, 0, 1, 127, 0, 0, 2]);
        assert_eq!(bytes[30..32] == [0, 0], !profile.grh_checksum);
        assert_eq!(bytes[40..139], pattern(99));
    }
}

#[test]
fn another_q_key_is_dropped_and_the_highest_bit_stands_for_the_own() {
    let mut world = World::new();
    let (qa, qb) = (datagram_pair(&mut world.a), datagram_pair(&mut world.b));
    let received = world.b.buffer(200, ALL);
    world.receive_b(qb, 2, &[received.element()]);
    let gid = world.b.gid;
    for (qkey, arrives) in [(QKEY + 1, false), (0x8000_0000, true)] {
        send(&mut world.a, qa, (gid, qb, qkey), SendOpcode::Send, &[]);
        world.run();
        assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
        assert_eq!(world.b.poll().is_some(), arrives);
    }
}

#[test]
fn a_datagram_longer_than_the_mtu_succeeds_and_goes_nowhere() {
    let mut world = World::new();
    let (qa, qb) = (datagram_pair(&mut world.a), datagram_pair(&mut world.b));
    let (sent, received) = (world.a.filled(&pattern(4097)), world.b.buffer(5000, ALL));
    world.receive_b(qb, 2, &[received.element()]);
    let to = (world.b.gid, qb, QKEY);
    send(&mut world.a, qa, to, SendOpcode::Send, &[sent.element()]);
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
    assert!(world.seen.is_empty());
    send(
        &mut world.a,
        qa,
        to,
        SendOpcode::Send,
        &[sent.part(0, 4096)],
    );
    world.run();
    assert_eq!(world.b.poll().unwrap().byte_len, 4136);
}

#[test]
fn a_receive_that_is_too_short_breaks_the_queue_pair_or_waits_for_the_next() {
    for breaks in [true, false] {
        let profile = Profile {
            long_datagram_breaks: breaks,
            ..Profile::default()
        };
        let mut world = World::of(profile, 1);
        let (qa, qb) = (datagram_pair(&mut world.a), datagram_pair(&mut world.b));
        let (sent, received) = (world.a.filled(&pattern(100)), world.b.buffer(50, ALL));
        world.receive_b(qb, 2, &[received.element()]);
        let to = (world.b.gid, qb, QKEY);
        send(&mut world.a, qa, to, SendOpcode::Send, &[sent.part(0, 11)]);
        send(&mut world.a, qa, to, SendOpcode::Send, &[sent.part(0, 10)]);
        world.run();
        if breaks {
            assert_eq!(world.b.statuses(), [(2, Status::LOC_QP_OP_ERR)]);
            assert_eq!(
                world.b.nic.query_qp(qb).map(|it| it.state),
                Some(QueuePairState::Err)
            );
        } else {
            assert_eq!(world.b.statuses(), [(2, Status::SUCCESS)]);
            assert_eq!(received.bytes()[40..], pattern(10));
        }
    }
}

#[test]
fn a_multicast_datagram_reaches_every_member_the_sender_included() {
    let groups = [
        Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped(),
        "ff0e::1234".parse().unwrap(),
    ];
    for group in groups {
        let mut world = World::new();
        let members = [datagram_pair(&mut world.b), datagram_pair(&mut world.b)];
        let qa = datagram_pair(&mut world.a);
        let (here, there) = (world.a.buffer(100, ALL), world.b.buffer(300, ALL));
        world.a.nic.attach_mcast(qa, group).unwrap();
        world.receive_a(qa, 9, &[here.element()]);
        for (number, member) in members.into_iter().enumerate() {
            world.b.nic.attach_mcast(member, group).unwrap();
            world.receive_b(member, number as u64, &[there.part(number * 100, 100)]);
        }
        send(
            &mut world.a,
            qa,
            (group, 0xff_ffff, QKEY),
            SendOpcode::Send,
            &[],
        );
        world.run();
        assert_eq!(world.b.statuses(), succeeded([0, 1]));
        assert_eq!(world.a.statuses().len(), 2, "the send, and the receive");
        // One leaves.
        world.b.nic.detach_mcast(members[0], group).unwrap();
        world.receive_b(members[0], 5, &[there.part(0, 100)]);
        world.receive_b(members[1], 6, &[there.part(100, 100)]);
        send(
            &mut world.a,
            qa,
            (group, 0xff_ffff, QKEY),
            SendOpcode::Send,
            &[],
        );
        world.run();
        assert_eq!(world.b.statuses(), [(6, Status::SUCCESS)]);
    }
}

#[test]
fn groups_are_for_datagrams_and_keep_their_members() {
    let mut world = World::new();
    let group = Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped();
    let (connected, _) = world.pair(Transport::Rc);
    assert_eq!(
        errno(world.a.nic.attach_mcast(connected, group)),
        Errno::EINVAL
    );
    let qp = datagram_pair(&mut world.a);
    let own = world.a.gid;
    assert_eq!(errno(world.a.nic.attach_mcast(qp, own)), Errno::EINVAL);
    world.a.nic.attach_mcast(qp, group).unwrap();
    world.a.nic.attach_mcast(qp, group).unwrap();
    assert_eq!(errno(world.a.nic.destroy_qp(qp)), Errno::EBUSY);
    world.a.nic.detach_mcast(qp, group).unwrap();
    assert_eq!(errno(world.a.nic.detach_mcast(qp, group)), Errno::EINVAL);
    world.a.nic.destroy_qp(qp).unwrap();
}

#[test]
fn management_datagrams_come_to_queue_pair_1_with_the_q_key_that_all_know() {
    let mut world = World::new();
    let other = datagram_pair(&mut world.a);
    let wrong = (world.b.gid, 1, QKEY);
    send(&mut world.a, other, wrong, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(world.b.nic.poll_management(), None);
    let route = Route::new(world.a.gid, world.b.gid);
    for number in 0..300_u16 {
        let datagram = [number.to_le_bytes()[0]; 256];
        world.a.nic.send_management(route, datagram);
    }
    world.run();
    // Further ones are dropped.
    for number in 0..=u8::MAX {
        let (came, datagram) = world.b.nic.poll_management().unwrap();
        assert_eq!((came.source, datagram), (world.a.gid, [number; 256]));
    }
    assert_eq!(world.b.nic.poll_management(), None);
}

#[test]
fn a_write_on_ud_is_an_error_of_the_queue_pair() {
    let mut world = World::new();
    let qa = datagram_pair(&mut world.a);
    let to = (world.b.gid, 5, QKEY);
    send(
        &mut world.a,
        qa,
        to,
        SendOpcode::Write(Default::default()),
        &[],
    );
    world.run();
    assert_eq!(
        world.a.statuses(),
        [(1, Status::LOC_QP_OP_ERR)],
        "no writes"
    );
}
