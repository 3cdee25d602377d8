//! Faults that a test asks for, and the places of addresses in records of packets.

use soft_nic::{Bind, Event, QueuePairState, SendOpcode, Status, Transport, WindowKind};

use crate::link::{ALL, World};

#[test]
fn a_queue_pair_that_is_broken_flushes_and_says_so_once() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    world.receive_a(qa, 1, &[]);
    world.a.events();
    world.a.nic.break_queue_pair(qa).unwrap();
    world.a.nic.break_queue_pair(qa).unwrap();
    assert_eq!(world.a.events(), [Event::QueuePairFatal(qa)]);
    assert_eq!(
        world.a.nic.query_qp(qa).map(|it| it.state),
        Some(QueuePairState::Err)
    );
    assert_eq!(world.a.statuses(), [(1, Status::WR_FLUSH_ERR)]);
    assert!(world.a.nic.break_queue_pair(999).is_err());
}

#[test]
fn the_place_of_an_address_is_counted_from_what_the_key_is_for() {
    let (mut world, _, qb) = World::joined(Transport::Rc);
    let memory = world.b.buffer(100, ALL);
    let at = |offset| memory.address() + offset;
    assert_eq!(world.b.nic.offset(memory.rkey, at(7)), Some(7));
    let window = world.b.nic.alloc_mw(world.b.pd, WindowKind::Type2).unwrap();
    assert_eq!(world.b.nic.offset(window, at(7)), None);
    let bind = Bind {
        window,
        rkey: window,
        lkey: memory.lkey,
        address: at(5),
        length: 8,
        access: soft_nic::Access::REMOTE_READ,
    };
    world.post_b(qb, 1, SendOpcode::BindWindow(bind), &[]);
    world.run();
    assert_eq!(world.b.nic.offset(window, at(7)), Some(2));
    assert_eq!(world.b.nic.offset(0xdead_beef, at(7)), None);
}
