//! Memory windows: bind, bounds, invalidation here and from the peer (10.6).

use crate::link::{ALL, Buffer, Host, World, errno};
use soft_nic::{
    Access, Bind, Errno, QueuePairState, RemoteAddress, SendOpcode, Status, Transport, WindowKind,
};

fn bind(window: u32, rkey: u32, to: &Buffer, start: usize, length: u64) -> Bind {
    Bind {
        window,
        rkey,
        lkey: to.lkey,
        address: to.address() + start as u64,
        length,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    }
}

fn window(host: &mut Host, kind: WindowKind) -> u32 {
    let pd = host.pd;
    host.nic.alloc_mw(pd, kind).unwrap()
}

fn post_bind(host: &mut Host, queue_pair: u32, wr_id: u64, bind: Bind) {
    host.post(queue_pair, wr_id, SendOpcode::BindWindow(bind), &[]);
}

/// The key with its tag one further.
fn next(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

fn write(world: &mut World, qa: u32, to: RemoteAddress, length: usize) -> Status {
    let local = world.a.filled(&vec![9; length]);
    world.post_a(qa, 1, SendOpcode::Write(to), &[local.element()]);
    world.run();
    world.a.statuses()[0].1
}

#[test]
fn a_window_allows_its_own_bytes_and_no_more() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        for (start, length, status) in [
            (16, 16, Status::SUCCESS),
            (31, 1, Status::SUCCESS),
            (15, 2, Status::REM_ACCESS_ERR),
            (31, 2, Status::REM_ACCESS_ERR),
            (0, 64, Status::REM_ACCESS_ERR),
        ] {
            let (mut world, qa, qb) = World::joined(Transport::Rc);
            let region = world.b.buffer(64, ALL);
            let key = window(&mut world.b, kind);
            post_bind(&mut world.b, qb, 5, bind(key, next(key), &region, 16, 16));
            world.run();
            assert_eq!(world.b.statuses(), [(5, Status::SUCCESS)]);
            let to = RemoteAddress::new(region.address() + start, next(key));
            assert_eq!(
                write(&mut world, qa, to, length),
                status,
                "{kind:?} {start} {length}"
            );
        }
    }
}

#[test]
fn a_window_that_counts_from_zero_begins_at_zero() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let region = world.b.buffer(64, ALL);
    let key = window(&mut world.b, WindowKind::Type2);
    let mut zero = bind(key, next(key), &region, 16, 16);
    zero.access |= Access::ZERO_BASED;
    post_bind(&mut world.b, qb, 5, zero);
    world.run();
    let to = RemoteAddress::new(3, next(key));
    assert_eq!(write(&mut world, qa, to, 2), Status::SUCCESS);
    assert_eq!(region.bytes()[18..22], [0, 9, 9, 0]);
    let past = RemoteAddress { address: 15, ..to };
    assert_eq!(write(&mut world, qa, past, 2), Status::REM_ACCESS_ERR);
}

#[test]
fn an_invalidated_window_allows_nothing_and_can_be_bound_again() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let region = world.b.buffer(64, ALL);
    let key = window(&mut world.b, WindowKind::Type2);
    let first = next(key);
    post_bind(&mut world.b, qb, 1, bind(key, first, &region, 0, 64));
    world.post_b(qb, 2, SendOpcode::LocalInvalidate(first), &[]);
    post_bind(
        &mut world.b,
        qb,
        3,
        bind(first, next(first), &region, 0, 64),
    );
    world.run();
    assert!(
        world
            .b
            .statuses()
            .iter()
            .all(|(_, status)| *status == Status::SUCCESS)
    );
    let to = |rkey| RemoteAddress::new(region.address(), rkey);
    assert_eq!(write(&mut world, qa, to(next(first)), 8), Status::SUCCESS);
    assert_eq!(write(&mut world, qa, to(first), 8), Status::REM_ACCESS_ERR);
}

#[test]
fn a_peer_invalidates_a_window_with_its_send() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let region = world.b.buffer(64, ALL);
    let key = window(&mut world.b, WindowKind::Type2);
    post_bind(&mut world.b, qb, 1, bind(key, next(key), &region, 0, 64));
    world.receive_b(qb, 2, &[]);
    world.post_a(qa, 3, SendOpcode::SendWithInvalidate(next(key)), &[]);
    world.run();
    world.b.poll().unwrap();
    assert_eq!(world.b.poll().unwrap().invalidated, Some(next(key)));
    assert_eq!(world.a.statuses(), [(3, Status::SUCCESS)]);
    let to = RemoteAddress::new(region.address(), next(key));
    assert_eq!(write(&mut world, qa, to, 8), Status::REM_ACCESS_ERR);
}

#[test]
fn a_peer_that_invalidates_what_it_may_not_breaks_the_queue_pair() {
    for is_old_key in [false, true] {
        let (mut world, qa, qb) = World::joined(Transport::Rc);
        let region = world.b.buffer(64, ALL);
        let key = window(&mut world.b, WindowKind::Type2);
        post_bind(&mut world.b, qb, 1, bind(key, next(key), &region, 0, 64));
        world.receive_b(qb, 2, &[]);
        let rkey = if is_old_key { key } else { region.rkey };
        world.post_a(qa, 3, SendOpcode::SendWithInvalidate(rkey), &[]);
        world.run();
        let expected = [(1, Status::SUCCESS), (2, Status::REM_INV_REQ_ERR)];
        assert_eq!(world.b.statuses(), expected);
        let state = world.b.nic.query_qp(qb).map(|it| it.state);
        assert_eq!(state, Some(QueuePairState::Err));
    }
}

#[test]
fn a_window_of_type_2_is_for_the_queue_pair_that_bound_it_and_ends_with_it() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (other_a, _) = world.pair(Transport::Rc);
    let region = world.b.buffer(64, ALL);
    let key = window(&mut world.b, WindowKind::Type2);
    post_bind(&mut world.b, qb, 1, bind(key, next(key), &region, 0, 64));
    world.run();
    let to = RemoteAddress::new(region.address(), next(key));
    assert_eq!(write(&mut world, qa, to, 8), Status::SUCCESS);
    assert_eq!(write(&mut world, other_a, to, 8), Status::REM_ACCESS_ERR);
    assert_eq!(
        errno(world.b.nic.dereg_mr(region.lkey)),
        Errno::EINVAL,
        "bound"
    );
    world.b.nic.destroy_qp(qb).unwrap();
    world.b.nic.dereg_mr(region.lkey).unwrap();
}

#[test]
fn binds_that_are_not_allowed_fail_in_their_completion() {
    type Change = fn(&mut Bind, &Buffer);
    let cases: [(&str, WindowKind, Change); 7] = [
        ("outside", WindowKind::Type1, |bind, _| bind.length = 65),
        ("before", WindowKind::Type1, |bind, _| bind.address -= 1),
        ("no bind access", WindowKind::Type1, |bind, plain| {
            (bind.lkey, bind.address, bind.length) = (plain.lkey, plain.address(), 8);
        }),
        ("no region", WindowKind::Type1, |bind, _| bind.lkey ^= 1),
        ("no window", WindowKind::Type1, |bind, _| bind.window ^= 1),
        ("type 1 from zero", WindowKind::Type1, |bind, _| {
            bind.access |= Access::ZERO_BASED;
        }),
        ("type 2 to nothing", WindowKind::Type2, |bind, _| {
            bind.length = 0;
        }),
    ];
    for (name, kind, change) in cases {
        let (mut world, _, qb) = World::joined(Transport::Rc);
        let region = world.b.buffer(64, ALL);
        let plain = world.b.buffer(8, ALL.difference(Access::MW_BIND));
        let key = window(&mut world.b, kind);
        let mut bind = bind(key, next(key), &region, 0, 64);
        change(&mut bind, &plain);
        post_bind(&mut world.b, qb, 1, bind);
        world.run();
        assert_eq!(world.b.statuses(), [(1, Status::MW_BIND_ERR)], "{name}");
    }
}

#[test]
fn a_window_of_type_1_moves_and_is_unbound_by_no_length() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (first, second) = (world.b.buffer(64, ALL), world.b.buffer(64, ALL));
    let key = window(&mut world.b, WindowKind::Type1);
    let (moved, none) = (next(key), next(next(key)));
    post_bind(&mut world.b, qb, 1, bind(key, key, &first, 0, 64));
    post_bind(&mut world.b, qb, 2, bind(key, moved, &second, 0, 64));
    world.run();
    world.b.nic.dereg_mr(first.lkey).unwrap();
    let to = |rkey| RemoteAddress::new(second.address(), rkey);
    assert_eq!(write(&mut world, qa, to(moved), 8), Status::SUCCESS);
    post_bind(&mut world.b, qb, 3, bind(moved, none, &second, 0, 0));
    world.run();
    assert_eq!(write(&mut world, qa, to(none), 8), Status::REM_ACCESS_ERR);
    world.b.nic.dereg_mr(second.lkey).unwrap();
}

#[test]
fn a_window_of_type_1_is_not_invalidated() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let region = world.b.buffer(64, ALL);
    let key = window(&mut world.b, WindowKind::Type1);
    let bind = SendOpcode::BindWindow(bind(key, key, &region, 0, 64));
    world.post_b(qb, 1, bind, &[]);
    world.run();
    let to = RemoteAddress::new(region.address(), key);
    assert_eq!(write(&mut world, qa, to, 8), Status::SUCCESS);
    world.post_b(qb, 2, SendOpcode::LocalInvalidate(key), &[]);
    world.run();
    let expected = [(1, Status::SUCCESS), (2, Status::LOC_QP_OP_ERR)];
    assert_eq!(world.b.statuses(), expected);
}

#[test]
fn a_window_that_was_bound_is_so_although_its_queue_pair_broke() {
    for is_signaled in [false, true] {
        let (mut world, _, qb) = World::joined(Transport::Rc);
        let region = world.b.buffer(64, ALL);
        let key = window(&mut world.b, WindowKind::Type1);
        world.loses = Box::new(|_| true);
        world.post_b(qb, 1, SendOpcode::Send, &[]);
        let opcode = SendOpcode::BindWindow(bind(key, key, &region, 0, 64));
        let mut request =
            soft_nic::SendRequest::new(2, opcode, soft_nic::Data::Elements(Vec::new()));
        request.is_signaled = is_signaled;
        world.b.nic.post_send(qb, request).unwrap();
        world.run();
        world.b.go(qb, QueuePairState::Err).unwrap();
        let mut expected = vec![(1, Status::WR_FLUSH_ERR), (2, Status::SUCCESS)];
        expected.truncate(1 + usize::from(is_signaled));
        assert_eq!(world.b.statuses(), expected);
    }
}
