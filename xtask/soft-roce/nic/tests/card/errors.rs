//! Requests that are refused: each NAK, and what both sides complete (9.7.5, 9.9.3).

use crate::link::{ALL, Host, World, pattern};
use soft_nic::packet::{Body, Extra, Header, NakCode, Place, Reth, Syndrome};
use soft_nic::{
    Access, AttributeMask, Element, Event, Profile, Psn, QueuePairState, RemoteAddress, Route,
    SendOpcode, Status, Transport,
};

/// A card that follows the specification.
fn strict() -> Profile {
    Profile {
        local_fault: Status::LOC_PROT_ERR,
        long_message_is_operational: false,
        request_error_events: true,
        ..Profile::default()
    }
}

fn naks(world: &World) -> Vec<NakCode> {
    let of = |body: &Body| match body {
        Body::Acknowledge(aeth) => match aeth.syndrome {
            Syndrome::Nak(code) => Some(code),
            _ => None,
        },
        _ => None,
    };
    world
        .seen
        .iter()
        .filter_map(|(_, header)| of(&header.body))
        .collect()
}

fn is_broken(host: &Host, qp: u32) -> bool {
    host.nic.query_qp(qp).map(|it| it.state) == Some(QueuePairState::Err)
}

#[test]
fn a_key_that_does_not_allow_it_is_a_remote_access_error() {
    type Opcode = fn(RemoteAddress) -> SendOpcode;
    let cases: [(&str, Opcode, Access); 3] = [
        (
            "write",
            SendOpcode::Write,
            ALL.difference(Access::REMOTE_WRITE),
        ),
        (
            "read",
            SendOpcode::Read,
            ALL.difference(Access::REMOTE_READ),
        ),
        (
            "atomic",
            |remote| SendOpcode::FetchAdd { remote, add: 1 },
            ALL.difference(Access::REMOTE_ATOMIC),
        ),
    ];
    for (name, opcode, access) in cases {
        let mut world = World::of(strict(), 1);
        let (qa, qb) = world.pair(Transport::Rc);
        let (local, remote) = (world.a.buffer(8, ALL), world.b.buffer(8, access));
        world.post_a(qa, 1, opcode(remote.remote(0)), &[local.element()]);
        world.post_a(qa, 2, SendOpcode::Send, &[]);
        world.run();
        let expected = [(1, Status::REM_ACCESS_ERR), (2, Status::WR_FLUSH_ERR)];
        assert_eq!(world.a.statuses(), expected, "{name}");
        assert_eq!(naks(&world), [NakCode::RemoteAccessError], "{name}");
        assert!(is_broken(&world.a, qa) && is_broken(&world.b, qb), "{name}");
        assert_eq!(
            world.b.events(),
            [Event::QueuePairAccessError(qb)],
            "{name}"
        );
    }
}

#[test]
fn addresses_outside_of_a_region_are_a_remote_access_error() {
    for (start, length) in [(1, 8), (8, 1), (0, 9)] {
        for is_read in [false, true] {
            let (mut world, qa, _) = World::joined(Transport::Rc);
            let (local, remote) = (world.a.buffer(16, ALL), world.b.buffer(8, ALL));
            let at = remote.remote(start);
            let opcode = if is_read {
                SendOpcode::Read(at)
            } else {
                SendOpcode::Write(at)
            };
            world.post_a(qa, 1, opcode, &[local.part(0, length)]);
            world.run();
            assert_eq!(world.a.statuses(), [(1, Status::REM_ACCESS_ERR)]);
        }
    }
}

#[test]
fn keys_of_another_domain_or_an_older_registration_are_no_keys() {
    let mut world = World::new();
    let local = world.a.buffer(8, ALL);
    let remote = world.b.buffer(8, ALL);
    let (own, other) = (world.b.pd, world.b.nic.alloc_pd().unwrap());
    let (_, foreign) = world
        .b
        .nic
        .reg_mr(other, remote.registered(), remote.address(), ALL)
        .unwrap();
    let (lkey, old) = world
        .b
        .nic
        .reg_mr(own, remote.registered(), remote.address(), ALL)
        .unwrap();
    world.b.nic.dereg_mr(lkey).unwrap();
    for rkey in [foreign, old, remote.rkey ^ 1, 0, u32::MAX] {
        let (qa, _) = world.pair(Transport::Rc);
        let to = RemoteAddress::new(remote.address(), rkey);
        world.post_a(qa, 1, SendOpcode::Write(to), &[local.element()]);
        world.run();
        assert_eq!(
            world.a.statuses(),
            [(1, Status::REM_ACCESS_ERR)],
            "{rkey:#x}"
        );
    }
}

#[test]
fn request_without_the_queue_pair_s_access_is_an_invalid_request() {
    let mut world = World::of(strict(), 1);
    let (qa, qb) = world.pair(Transport::Rc);
    let none = |attributes: &mut soft_nic::QueuePairAttributes| attributes.access = Access::empty();
    world
        .b
        .modify(qb, AttributeMask::ACCESS_FLAGS, none)
        .unwrap();
    let (local, remote) = (world.a.buffer(8, ALL), world.b.buffer(8, ALL));
    world.post_a(
        qa,
        1,
        SendOpcode::Write(remote.remote(0)),
        &[local.element()],
    );
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::REM_INV_REQ_ERR)]);
    assert_eq!(naks(&world), [NakCode::InvalidRequest]);
    assert_eq!(world.b.events(), [Event::QueuePairRequestError(qb)]);
}

#[test]
fn a_message_longer_than_its_receive_fails_as_the_profile_says() {
    let cases = [
        (
            Profile::default(),
            Status::REM_OP_ERR,
            Status::LOC_QP_OP_ERR,
        ),
        (strict(), Status::REM_INV_REQ_ERR, Status::LOC_LEN_ERR),
    ];
    for (profile, there, here) in cases {
        let mut world = World::of(profile, 1);
        let (qa, qb) = world.pair(Transport::Rc);
        let (sent, received) = (world.a.filled(&pattern(3000)), world.b.buffer(2999, ALL));
        world.receive_b(qb, 1, &[received.element()]);
        world.receive_b(qb, 2, &[received.element()]);
        world.post_a(qa, 3, SendOpcode::Send, &[sent.element()]);
        world.run();
        assert_eq!(world.a.statuses(), [(3, there)]);
        assert_eq!(world.b.statuses(), [(1, here), (2, Status::WR_FLUSH_ERR)]);
    }
}

#[test]
fn elements_that_may_not_be_accessed_fail_where_they_are() {
    for (profile, status) in [
        (Profile::default(), Status::LOC_QP_OP_ERR),
        (strict(), Status::LOC_PROT_ERR),
    ] {
        let mut world = World::of(profile, 1);
        let (qa, qb) = world.pair(Transport::Rc);
        let bad = Element {
            address: 0,
            length: 8,
            lkey: 0x1234,
        };
        world.post_a(qa, 1, SendOpcode::Send, &[bad]);
        world.run();
        assert_eq!(world.a.statuses(), [(1, status)]);
        assert!(world.seen.is_empty(), "nothing was sent");

        let read_only = world.a.buffer(8, Access::REMOTE_READ);
        let (second_a, second_b) = world.pair(Transport::Rc);
        world.receive_a(second_a, 1, &[read_only.element()]);
        let sent = world.b.buffer(8, ALL);
        world.post_b(second_b, 2, SendOpcode::Send, &[sent.element()]);
        world.run();
        assert_eq!(
            world.a.statuses(),
            [(1, status)],
            "a receive that may not be written"
        );
        assert_eq!(world.b.statuses(), [(2, Status::REM_OP_ERR)]);
        let _ = qb;
    }
}

#[test]
fn an_error_waits_for_the_requests_before_it() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_b(qb, 1, &[]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.post_a(
        qa,
        2,
        SendOpcode::Send,
        &[Element {
            length: 1,
            ..Element::default()
        }],
    );
    world.post_a(qa, 3, SendOpcode::Send, &[]);
    world.run();
    let expected = [
        (1, Status::SUCCESS),
        (2, Status::LOC_QP_OP_ERR),
        (3, Status::WR_FLUSH_ERR),
    ];
    assert_eq!(world.a.statuses(), expected);
}

#[test]
fn a_message_longer_than_any_may_be_is_a_local_length_error() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let sent = world.a.buffer(8, ALL);
    let long = Element {
        length: 1 << 30,
        ..sent.element()
    };
    world.post_a(qa, 1, SendOpcode::Send, &[long, long, long, long]);
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::LOC_LEN_ERR)]);
}

#[test]
fn a_queue_pair_without_room_for_reads_refuses_them() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.b.go(qb, QueuePairState::Sqd).unwrap();
    let none = |attributes: &mut soft_nic::QueuePairAttributes| attributes.max_dest_rd_atomic = 0;
    world
        .b
        .modify(qb, AttributeMask::MAX_DEST_RD_ATOMIC, none)
        .unwrap();
    let (local, remote) = (world.a.buffer(8, ALL), world.b.buffer(8, ALL));
    world.post_a(
        qa,
        1,
        SendOpcode::Read(remote.remote(0)),
        &[local.element()],
    );
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::REM_INV_REQ_ERR)]);
}

#[test]
fn memory_that_is_taken_back_during_a_read_ends_it_with_a_remote_access_error() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (local, remote) = (world.a.buffer(4000, ALL), world.b.buffer(4000, ALL));
    world.post_a(
        qa,
        1,
        SendOpcode::Read(remote.remote(0)),
        &[local.element()],
    );
    world.send();
    world.arrive();
    world.b.nic.dereg_mr(remote.lkey).unwrap();
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::REM_ACCESS_ERR)]);
    assert!(is_broken(&world.b, qb));
}

#[test]
fn a_failed_request_has_a_completion_even_if_it_is_not_signaled() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let (local, remote) = (world.a.buffer(8, ALL), world.b.buffer(4, ALL));
    let elements = [local.element()];
    let opcode = SendOpcode::Write(remote.remote(0));
    let mut request =
        soft_nic::SendRequest::new(1, opcode, soft_nic::Data::Elements(elements.to_vec()));
    request.is_signaled = false;
    world.a.nic.post_send(qa, request).unwrap();
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::REM_ACCESS_ERR)]);
}

/// A kind of packet, for some memory of `b`.
type Kind = fn(Reth) -> Body;

/// Gives `b` packets of these kinds and lengths, one after the other; returns its refusals.
fn injected(kinds: &[(Kind, usize)]) -> Vec<NakCode> {
    let (mut world, _, qb) = World::joined(Transport::Rc);
    let buffer = world.b.buffer(8192, ALL);
    world.receive_b(qb, 1, &[buffer.element()]);
    let remote = buffer.remote(0);
    // A write of three packets.
    let reth = Reth {
        remote,
        length: 2500,
    };
    let route = Route::new(world.a.gid, world.b.gid);
    for (kind, length) in kinds {
        let psn = Psn::new(world.b.nic.query_qp(qb).unwrap().rq_psn);
        let header = Header::new(Transport::Rc, kind(reth), qb, psn);
        let packet = header.packet(&route, &vec![7; *length]);
        world.b.nic.receive(world.now, &route, &packet);
    }
    world.run();
    naks(&world)
}

#[test]
fn packets_of_a_wrong_length_or_out_of_order_are_an_invalid_request() {
    const fn send(place: Place) -> Body {
        Body::Send(place, Extra::None)
    }
    let send_first: Kind = |_| send(Place::First);
    let send_middle: Kind = |_| send(Place::Middle);
    let send_last: Kind = |_| send(Place::Last);
    let send_only: Kind = |_| send(Place::Only);
    let write_first: Kind = |reth| Body::Write(Place::First, Some(reth), None);
    let write_middle: Kind = |_| Body::Write(Place::Middle, None, None);
    let write_last: Kind = |_| Body::Write(Place::Last, None, None);
    let write_only: Kind = |reth| Body::Write(Place::Only, Some(reth), None);
    let good: [&[(Kind, usize)]; 3] = [
        &[(send_first, 1024), (send_middle, 1024), (send_last, 1)],
        &[(write_first, 1024), (write_middle, 1024), (write_last, 452)],
        &[(send_only, 1024)],
    ];
    for packets in good {
        assert_eq!(injected(packets), [], "{}", packets.len());
    }
    let bad: [(&str, &[(Kind, usize)]); 13] = [
        ("a short first", &[(send_first, 1020)]),
        ("a long only", &[(send_only, 1025)]),
        ("a short middle", &[(send_first, 1024), (send_middle, 1020)]),
        ("an empty last", &[(send_first, 1024), (send_last, 0)]),
        ("no first", &[(send_middle, 1024)]),
        ("no first, and a last", &[(send_last, 8)]),
        ("two firsts", &[(send_first, 1024), (send_first, 1024)]),
        (
            "a write in a send",
            &[(send_first, 1024), (write_middle, 1024)],
        ),
        (
            "a read in a send",
            &[(send_first, 1024), (Body::ReadRequest, 0)],
        ),
        ("a short write", &[(write_first, 1020)]),
        (
            "a write that ends early",
            &[(write_first, 1024), (write_last, 1024)],
        ),
        (
            "a write that goes on",
            &[
                (write_first, 1024),
                (write_middle, 1024),
                (write_middle, 452),
            ],
        ),
        ("a write longer than it says", &[(write_only, 1024)]),
    ];
    for (name, packets) in bad {
        assert_eq!(injected(packets), [NakCode::InvalidRequest], "{name}");
    }
}
