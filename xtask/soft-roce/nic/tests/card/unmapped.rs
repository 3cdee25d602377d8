//! Memory that is not mapped any more: a protection error of the operation, never a crash.
#![expect(unsafe_code, reason = "registers memory with a copy of its own")]

use std::cell::Cell;
use std::ptr;
use std::time::Duration;

use crate::link::{ALL, World};
use soft_nic::{Element, QueuePairState, Registered, RemoteAddress, SendOpcode, Status, Transport};

thread_local! {
    static IS_MAPPED: Cell<bool> = const { Cell::new(true) };
}

/// Copies as long as the memory counts as mapped.
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> bool {
    if IS_MAPPED.get() {
        // SAFETY: The card promises that both are valid for `length` bytes and do not overlap, as long as the
        // memory is mapped.
        unsafe { ptr::copy_nonoverlapping(from, to, length) };
    }
    IS_MAPPED.get()
}

/// A world in which `b` has memory that can vanish: its elements, and its place for `a`.
fn world() -> (World, u32, u32, Element, RemoteAddress) {
    IS_MAPPED.set(true);
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let base = Box::leak(vec![1_u64; 512].into_boxed_slice())
        .as_mut_ptr()
        .cast();
    // SAFETY: The memory was leaked, so it is always there; `copy` copies within it, or does nothing.
    let registered = unsafe { Registered::with_copy(base, 4096, copy) };
    let pd = world.b.pd;
    let (lkey, rkey) = world.b.nic.reg_mr(pd, registered, 0x1000, ALL).unwrap();
    let address = 0x1000;
    let element = Element {
        address,
        length: 4096,
        lkey,
    };
    (world, qa, qb, element, RemoteAddress { address, rkey })
}

#[test]
fn a_send_from_it_is_a_local_protection_error() {
    let (mut world, _, qb, element, _) = world();
    IS_MAPPED.set(false);
    world.post_b(qb, 1, SendOpcode::Send, &[element]);
    world.post_b(qb, 2, SendOpcode::Send, &[]);
    world.run();
    let expected = [(1, Status::LOC_PROT_ERR), (2, Status::WR_FLUSH_ERR)];
    assert_eq!(world.b.statuses(), expected);
}

#[test]
fn a_receive_into_it_is_an_error_of_both_sides() {
    let (mut world, qa, qb, element, _) = world();
    IS_MAPPED.set(false);
    world.receive_b(qb, 1, &[element]);
    let sent = world.a.buffer(10, ALL);
    world.post_a(qa, 2, SendOpcode::Send, &[sent.element()]);
    world.run();
    assert_eq!(world.b.statuses(), [(1, Status::LOC_PROT_ERR)]);
    assert_eq!(world.a.statuses(), [(2, Status::REM_OP_ERR)]);
}

#[test]
fn a_read_into_it_is_a_local_protection_error() {
    let (mut world, _, qb, element, _) = world();
    IS_MAPPED.set(false);
    let remote = world.a.buffer(4096, ALL);
    world.post_b(qb, 1, SendOpcode::Read(remote.remote(0)), &[element]);
    world.run();
    assert_eq!(world.b.statuses(), [(1, Status::LOC_PROT_ERR)]);
}

#[test]
fn peer_s_access_to_unmapped_memory_is_a_remote_access_error() {
    type Opcode = fn(RemoteAddress) -> SendOpcode;
    let opcodes: [Opcode; 3] = [SendOpcode::Write, SendOpcode::Read, |remote| {
        SendOpcode::FetchAdd { remote, add: 1 }
    }];
    for opcode in opcodes {
        let (mut world, qa, qb, _, remote) = world();
        IS_MAPPED.set(false);
        let local = world.a.buffer(8, ALL);
        world.post_a(qa, 1, opcode(remote), &[local.element()]);
        world.run();
        assert_eq!(world.a.statuses(), [(1, Status::REM_ACCESS_ERR)]);
        assert_eq!(
            world.b.nic.query_qp(qb).map(|it| it.state),
            Some(QueuePairState::Err)
        );
    }
}

#[test]
fn a_read_of_which_the_memory_vanishes_between_packets_ends() {
    let (mut world, qa, _, _, remote) = world();
    let local = world.a.buffer(4096, ALL);
    world.post_a(qa, 1, SendOpcode::Read(remote), &[local.element()]);
    world.send();
    world.arrive();
    let mut packet = Vec::new();
    let route = world.b.nic.transmit(world.now, &mut packet).unwrap();
    world.a.nic.receive(world.now, &route, &packet);
    IS_MAPPED.set(false);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.a.statuses(), [(1, Status::REM_ACCESS_ERR)]);
    assert_eq!(local.bytes()[..1024], [1, 0, 0, 0, 0, 0, 0, 0].repeat(128));
    assert_eq!(local.bytes()[1024..], [0; 3072]);
}
