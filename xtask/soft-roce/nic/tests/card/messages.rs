//! RC sends and receives: segmentation, acknowledgements, immediates, inline, solicited, signaled (9.7).

use crate::link::{ALL, World, empty, pattern};
use soft_nic::packet::{Body, Syndrome};
use soft_nic::{CompletedOpcode, Data, Event, SendOpcode, SendRequest, Status, Transport};

#[test]
fn messages_of_every_length_around_the_mtu_arrive_whole() {
    // Interpreted, the long ones take minutes.
    let mtus = if cfg!(miri) { 1 } else { 5 };
    for mtu in [256_usize, 512, 1024, 2048, 4096].into_iter().take(mtus) {
        for length in [0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5] {
            let (mut world, qa, qb) = World::joined(Transport::Rc);
            set_mtu(&mut world, qa, qb, mtu);
            let sent = world.a.filled(&pattern(length.max(1)));
            let received = world.b.buffer(length + 8, ALL);
            world.receive_b(qb, 7, &[received.element()]);
            world.post_a(qa, 3, SendOpcode::Send, &[sent.part(0, length)]);
            world.run();
            assert_eq!(world.a.statuses(), [(3, Status::SUCCESS)]);
            let completion = world.b.poll().unwrap();
            assert_eq!((completion.wr_id, completion.status), (7, Status::SUCCESS));
            assert_eq!(completion.opcode, CompletedOpcode::Receive);
            assert_eq!(completion.byte_len as usize, length);
            assert_eq!(received.bytes()[..length], pattern(length));
            assert_eq!(
                received.bytes()[length..],
                [0; 8],
                "nothing after the message"
            );
            let packets = world.count(|body| matches!(body, Body::Send(..)));
            assert_eq!(packets, length.div_ceil(mtu).max(1));
        }
    }
}

fn set_mtu(world: &mut World, qa: u32, qb: u32, mtu: usize) {
    use soft_nic::{AttributeMask as M, QueuePairState as S};
    let mtu = u32::try_from(mtu).unwrap();
    for (host, qp) in [(&mut world.a, qa), (&mut world.b, qb)] {
        let before = host.nic.query_qp(qp).unwrap();
        host.go(qp, S::Reset).unwrap();
        let mut all = before;
        all.path_mtu = mtu;
        let steps = [
            (S::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                S::Rtr,
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
            ),
            (
                S::Rts,
                M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            all.state = state;
            host.nic.modify_qp(qp, &all, mask | M::STATE).unwrap();
        }
    }
}

#[test]
fn several_elements_are_gathered_and_scattered() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let sent = world.a.filled(&pattern(3000));
    let received = world.b.buffer(3000, ALL);
    let parts = [
        received.part(2000, 1000),
        received.part(0, 5),
        received.part(100, 1900),
    ];
    world.receive_b(qb, 1, &parts);
    world.post_a(
        qa,
        1,
        SendOpcode::Send,
        &[sent.part(0, 1), sent.part(1, 2000), sent.part(2001, 900)],
    );
    world.run();
    assert_eq!(world.b.statuses(), [(1, Status::SUCCESS)]);
    let (expected, found) = (pattern(3000), received.bytes());
    assert_eq!(found[2000..], expected[..1000]);
    assert_eq!(found[..5], expected[1000..1005]);
    assert_eq!(found[100..1996], expected[1005..2901]);
}

#[test]
fn inline_data_is_taken_at_the_post() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let received = world.b.buffer(20, ALL);
    world.receive_b(qb, 1, &[received.element()]);
    let mut bytes = *b"hello";
    let parts = [&bytes[..], &b", world"[..]];
    let request = SendRequest::new(1, SendOpcode::Send, Data::Inline(parts.concat()));
    world.a.nic.post_send(qa, request).unwrap();
    bytes.fill(0);
    assert_eq!(bytes, [0; 5]);
    world.run();
    assert_eq!(received.bytes()[..12], *b"hello, world");
}

#[test]
fn acknowledgements_are_coalesced() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let sent = world.a.filled(&pattern(10));
    let received = world.b.buffer(10, ALL);
    for number in 0..50 {
        world.receive_b(qb, number, &[received.element()]);
        world.post_a(qa, number, SendOpcode::Send, &[sent.element()]);
    }
    world.run();
    assert_eq!(world.a.statuses().len(), 50);
    let is_ack =
        |body: &Body| matches!(body, Body::Acknowledge(aeth) if aeth.syndrome == Syndrome::ACK);
    assert_eq!(world.count(is_ack), 1, "all arrived before one was sent");
    let (_, last) = world.seen.last().unwrap();
    assert!(matches!(last.body, Body::Acknowledge(aeth) if aeth.msn == 50));
}

#[test]
fn only_solicited_messages_wake_who_asked_for_those() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let received = world.b.buffer(10, ALL);
    let cq = world.b.cq;
    world.b.nic.req_notify_cq(cq, true).unwrap();
    for (number, is_solicited, events) in [(0, false, 0), (1, true, 1), (2, true, 0)] {
        world.receive_b(qb, number, &[received.element()]);
        let mut request = empty(number);
        request.is_solicited = is_solicited;
        world.a.nic.post_send(qa, request).unwrap();
        world.run();
        assert_eq!(
            world.b.events().len(),
            events,
            "message {number}; armed once"
        );
    }
    // A request for any event is not narrowed by one for solicited ones.
    world.b.nic.req_notify_cq(cq, false).unwrap();
    world.b.nic.req_notify_cq(cq, true).unwrap();
    world.receive_b(qb, 3, &[received.element()]);
    world.post_a(qa, 3, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(world.b.events(), [Event::Completion(cq)]);
}
