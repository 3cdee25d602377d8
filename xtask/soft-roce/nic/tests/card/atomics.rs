//! Atomic operations, and what is answered again when an answer was lost (9.4.5, 9.7.4).

use std::cell::Cell;
use std::time::Duration;

use crate::link::{ALL, World, pattern, succeeded};
use soft_nic::packet::Body;
use soft_nic::{CompletedOpcode, SendOpcode, Status, Transport};

#[test]
fn compare_and_swap_and_fetch_and_add_change_eight_bytes_and_return_what_they_were() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let remote = world.b.filled(&40_u64.to_ne_bytes());
    let back = world.a.buffer(32, ALL);
    let remote_address = remote.remote(0);
    let swap = |compare, swap| SendOpcode::CompareSwap {
        remote: remote_address,
        compare,
        swap,
    };
    let add = |add| SendOpcode::FetchAdd {
        remote: remote_address,
        add,
    };
    for (number, opcode) in [add(2), swap(42, 7), swap(42, 9), add(u64::MAX)]
        .into_iter()
        .enumerate()
    {
        world.post_a(qa, number as u64, opcode, &[back.part(number * 8, 8)]);
    }
    world.run();
    assert_eq!(world.a.poll().unwrap().opcode, CompletedOpcode::FetchAdd);
    assert_eq!(world.a.poll().unwrap().opcode, CompletedOpcode::CompareSwap);
    let before: Vec<u64> = back
        .bytes()
        .chunks(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(before, [40, 42, 7, 7]);
    assert_eq!(remote.bytes(), 6_u64.to_ne_bytes());
}

#[test]
fn a_read_of_which_a_packet_was_lost_goes_on_from_there() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let (remote, back) = (
        world.b.filled(&pattern(10_000)),
        world.a.buffer(10_000, ALL),
    );
    let count = Cell::new(0);
    world.loses = Box::new(move |header| {
        let is_answer = matches!(header.body, Body::ReadResponse(..));
        count.set(count.get() + u32::from(is_answer));
        is_answer && count.get() == 4
    });
    world.post_a(qa, 1, SendOpcode::Read(remote.remote(0)), &[back.element()]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(back.bytes(), pattern(10_000));
    let lengths: Vec<u32> = world
        .seen
        .iter()
        .filter_map(|(_, header)| match header.body {
            Body::ReadRequest(reth) => Some(reth.length),
            _ => None,
        })
        .collect();
    assert_eq!(lengths, [10_000, 10_000 - 3 * 1024]);
}

#[test]
fn an_acknowledgement_that_skips_an_answer_asks_for_it_again() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (remote, back) = (world.b.filled(&pattern(100)), world.a.buffer(100, ALL));
    lose_first(&mut world, |body| matches!(body, Body::ReadResponse(..)));
    world.receive_b(qb, 1, &[]);
    world.post_a(qa, 1, SendOpcode::Read(remote.remote(0)), &[back.element()]);
    world.post_a(qa, 2, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(world.now, Duration::ZERO, "no timeout was needed");
    assert_eq!(world.a.statuses(), succeeded([1, 2]));
    assert_eq!(back.bytes(), pattern(100));
}

#[test]
fn a_misaligned_atomic_is_refused_at_the_post() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let (remote, back) = (world.b.buffer(16, ALL), world.a.buffer(8, ALL));
    let elements = [back.element()];
    let opcode = SendOpcode::FetchAdd {
        remote: remote.remote(4),
        add: 1,
    };
    let request =
        soft_nic::SendRequest::new(1, opcode, soft_nic::Data::Elements(elements.to_vec()));
    let refused = world.a.nic.post_send(qa, request).unwrap_err();
    assert_eq!(refused.errno, soft_nic::Errno::EINVAL);
}

fn lose_first(world: &mut World, is_kind: fn(&Body) -> bool) {
    let is_lost = Cell::new(false);
    world.loses = Box::new(move |header| is_kind(&header.body) && !is_lost.replace(true));
}
