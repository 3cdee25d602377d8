//! UC: messages arrive whole or not at all (9.8.2).

use crate::link::{ALL, Faults, World, pattern, succeeded};
use soft_nic::{CompletedOpcode, Profile, QueuePairState, SendOpcode, Status, Transport};

#[test]
fn sends_and_writes_arrive_and_complete_without_an_answer() {
    let (mut world, qa, qb) = World::joined(Transport::Uc);
    let (local, remote, received) = (
        world.a.filled(&pattern(3000)),
        world.b.buffer(3000, ALL),
        world.b.buffer(3000, ALL),
    );
    world.receive_b(qb, 1, &[received.element()]);
    world.receive_b(qb, 2, &[]);
    world.post_a(qa, 1, SendOpcode::Send, &[local.element()]);
    world.post_a(
        qa,
        2,
        SendOpcode::WriteWithImmediate(remote.remote(0), [5; 4]),
        &[local.element()],
    );
    world.run();
    assert_eq!(world.a.statuses(), succeeded([1, 2]));
    assert_eq!(world.b.poll().unwrap().opcode, CompletedOpcode::Receive);
    assert_eq!(
        world.b.poll().unwrap().opcode,
        CompletedOpcode::ReceiveWriteWithImmediate
    );
    assert_eq!(
        (received.bytes(), remote.bytes()),
        (pattern(3000), pattern(3000))
    );
    assert!(world.seen.iter().all(|(to_b, _)| *to_b));
}

#[test]
fn a_message_without_a_receive_is_dropped() {
    let (mut world, qa, qb) = World::joined(Transport::Uc);
    let received = world.b.buffer(8, ALL);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.run();
    world.receive_b(qb, 1, &[received.element()]);
    assert_eq!(world.b.poll(), None);
    world.post_a(qa, 2, SendOpcode::SendWithImmediate([2; 4]), &[]);
    world.run();
    assert_eq!(world.b.poll().unwrap().immediate, Some([2; 4]));
}

#[test]
fn a_write_whose_key_does_not_allow_it_is_dropped_silently() {
    let (mut world, qa, qb) = World::joined(Transport::Uc);
    let (local, remote) = (
        world.a.filled(&[1; 8]),
        world.b.buffer(8, soft_nic::Access::LOCAL_WRITE),
    );
    world.post_a(
        qa,
        1,
        SendOpcode::Write(remote.remote(0)),
        &[local.element()],
    );
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(remote.bytes(), [0; 8]);
    assert_eq!(
        world.b.nic.query_qp(qb).map(|it| it.state),
        Some(QueuePairState::Rts)
    );
}

#[test]
fn a_read_on_uc_is_an_error_of_the_queue_pair() {
    let (mut world, qa, _) = World::joined(Transport::Uc);
    let (local, remote) = (world.a.buffer(8, ALL), world.b.buffer(8, ALL));
    world.post_a(
        qa,
        1,
        SendOpcode::Read(remote.remote(0)),
        &[local.element()],
    );
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::LOC_QP_OP_ERR)]);
}

/// Messages that say what they are: a number, and bytes that follow from it.
fn numbered(number: u64, length: usize) -> Vec<u8> {
    let bytes = number
        .to_le_bytes()
        .into_iter()
        .chain((8..length).map(|index| (index as u64 * 7 + number) as u8));
    bytes.collect()
}

#[test]
fn messages_that_pass_a_bad_link_are_whole() {
    for seed in 0..if cfg!(miri) { 2 } else { 200 } {
        let mut world = World::of(Profile::default(), seed);
        world.faults = Faults {
            loss: 100,
            repeat: 50,
            reorder: 50,
            damage: 50,
        };
        let (qa, qb) = world.pair(Transport::Uc);
        let received = world.b.buffer(8192 * 64, ALL);
        for number in 0..64 {
            world.receive_b(qb, number, &[received.part(8192 * number as usize, 8192)]);
        }
        let mut sent = Vec::new();
        for number in 0..50_u64 {
            let bytes = numbered(number, 8 + world.random() as usize % 6000);
            let local = world.a.filled(&bytes);
            world.post_a(qa, number, SendOpcode::Send, &[local.element()]);
            sent.push(bytes);
            world.run();
        }
        assert_eq!(world.a.statuses().len(), 50, "all succeed");
        let mut numbers = Vec::new();
        while let Some(completion) = world.b.poll() {
            assert_eq!(completion.status, Status::SUCCESS);
            let start = 8192 * completion.wr_id as usize;
            let bytes = &received.bytes()[start..start + completion.byte_len as usize];
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, sent[number as usize], "seed {seed}");
            numbers.push(number);
        }
        assert!(
            numbers.len() > 5 && numbers.len() < 50,
            "seed {seed}: {numbers:?}"
        );
    }
}
