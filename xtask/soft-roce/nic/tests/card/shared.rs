//! Shared receive queues: order, limit, and the end of their queue pairs (10.2.9).

use crate::link::{ALL, World, errno, pattern};
use soft_nic::{
    Errno, Event, QueuePairState, ReceiveRequest, SendOpcode, SharedReceiveId, Status, Transport,
};

fn world(receives: u32, limit: u32) -> (World, SharedReceiveId, [u32; 2], [u32; 2]) {
    let mut world = World::new();
    let pd = world.b.pd;
    let srq = world.b.nic.create_srq(pd, 15, 2, limit).unwrap();
    let (a, mut b) = (
        world.a.options(Transport::Rc),
        world.b.options(Transport::Rc),
    );
    b.shared_receives = Some(srq);
    let (first, second) = (world.pair_of(&a, &b), world.pair_of(&a, &b));
    let buffer = world.b.buffer(4096, ALL);
    for number in 0..u64::from(receives) {
        let elements = [buffer.element()];
        let request = ReceiveRequest {
            wr_id: number,
            elements: elements.to_vec(),
        };
        world.b.nic.post_srq_receive(srq, request.clone()).unwrap();
    }
    (world, srq, [first.0, second.0], [first.1, second.1])
}

#[test]
fn queue_pairs_take_receives_in_order_and_the_limit_makes_one_event() {
    let (mut world, srq, senders, receivers) = world(5, 3);
    let sent = world.a.filled(&pattern(3000));
    for (round, sender) in [senders[0], senders[1], senders[1], senders[0]]
        .into_iter()
        .enumerate()
    {
        world.post_a(sender, 1, SendOpcode::Send, &[sent.element()]);
        world.run();
        let completion = world.b.poll().unwrap();
        assert_eq!(completion.wr_id, round as u64);
        assert_eq!(completion.queue_pair == receivers[0], sender == senders[0]);
        let expected = if round == 2 {
            vec![Event::SharedReceiveLimitReached(srq)]
        } else {
            vec![]
        };
        assert_eq!(world.b.events(), expected, "fewer than three left, once");
    }
    world.b.nic.modify_srq(srq, None, Some(2)).unwrap();
    world.post_a(senders[0], 1, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(
        world.b.events(),
        [Event::SharedReceiveLimitReached(srq)],
        "armed again"
    );
}

#[test]
fn a_queue_pair_that_ends_leaves_the_receives_and_says_that_it_takes_no_more() {
    let (mut world, srq, senders, receivers) = world(2, 0);
    world.b.go(receivers[0], QueuePairState::Err).unwrap();
    assert_eq!(world.b.events(), [Event::LastWqeReached(receivers[0])]);
    assert_eq!(world.b.statuses(), [], "no flush: they belong to the queue");
    world.post_a(senders[1], 1, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(world.b.statuses(), [(0, Status::SUCCESS)]);
    assert_eq!(errno(world.b.nic.destroy_srq(srq)), Errno::EBUSY);
    for receiver in receivers {
        world.b.nic.destroy_qp(receiver).unwrap();
    }
    world.b.nic.destroy_srq(srq).unwrap();
}

#[test]
fn a_receive_that_a_message_had_begun_is_flushed() {
    let (mut world, _, senders, receivers) = world(2, 0);
    let sent = world.a.filled(&pattern(3000));
    let mut count = 0;
    world.loses = Box::new(move |_| {
        count += 1;
        count > 1
    });
    world.post_a(senders[0], 1, SendOpcode::Send, &[sent.element()]);
    world.run();
    world.b.go(receivers[0], QueuePairState::Err).unwrap();
    assert_eq!(world.b.statuses(), [(0, Status::WR_FLUSH_ERR)]);
}

#[test]
fn limits_and_capacities_are_checked() {
    let (mut world, srq, _, receivers) = world(5, 0);
    assert_eq!(world.b.nic.query_srq(srq), Some((15, 2, 0)));
    let refusals = [
        world.b.nic.modify_srq(srq, None, Some(16)),
        world.b.nic.modify_srq(srq, Some(3), None),
        world.b.nic.modify_srq(srq, Some(0), None),
        world.b.nic.post_receive(
            receivers[0],
            ReceiveRequest {
                wr_id: 1,
                elements: Vec::new(),
            },
        ),
    ];
    for refusal in refusals {
        assert_eq!(errno(refusal), Errno::EINVAL);
    }
    for number in 5..15 {
        let request = ReceiveRequest {
            wr_id: number,
            elements: Vec::new(),
        };
        world.b.nic.post_srq_receive(srq, request.clone()).unwrap();
    }
    let request = ReceiveRequest {
        wr_id: 15,
        elements: Vec::new(),
    };
    assert_eq!(
        errno(world.b.nic.post_srq_receive(srq, request.clone())),
        Errno::ENOMEM
    );
}
