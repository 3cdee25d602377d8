//! Timeouts, retries, and receivers that are not ready (9.7.5, 9.7.6, 9.9.2).

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::{ALL, World, pattern};
use soft_nic::packet::{Body, NakCode, Syndrome};
use soft_nic::{
    AttributeMask, Profile, QueuePairAttributes, QueuePairState, SendOpcode, Status, Transport,
};

fn change(
    world: &mut World,
    qa: u32,
    mask: AttributeMask,
    change: impl FnOnce(&mut QueuePairAttributes),
) {
    world.a.go(qa, QueuePairState::Sqd).unwrap();
    world.a.modify(qa, mask, change).unwrap();
    world.a.go(qa, QueuePairState::Rts).unwrap();
}

#[test]
fn retry_cnt_repetitions_each_a_timeout_apart_and_then_an_error() {
    for count in [0, 1, 3, 6] {
        let (mut world, qa, _) = World::joined(Transport::Rc);
        change(
            &mut world,
            qa,
            AttributeMask::RETRY_CNT | AttributeMask::TIMEOUT,
            |attributes| {
                attributes.retry_cnt = count;
                attributes.timeout = 10;
            },
        );
        world.loses = Box::new(|_| true);
        world.post_a(qa, 1, SendOpcode::Send, &[]);
        let timeout = Duration::from_nanos(4096 << 10);
        world.run_for(timeout * (u32::from(count) + 1) - Duration::from_nanos(1));
        assert_eq!(world.a.statuses(), [], "not before the last timeout");
        world.run_for(Duration::from_nanos(1));
        assert_eq!(world.a.statuses(), [(1, Status::RETRY_EXC_ERR)]);
        assert_eq!(world.seen.len(), usize::from(count) + 1);
        assert_eq!(
            world.a.nic.query_qp(qa).map(|it| it.state),
            Some(QueuePairState::Err)
        );
    }
}

#[test]
fn seven_retries_are_for_ever_on_soft_roce_and_seven_by_the_specification() {
    for (is_for_ever, sent) in [(true, 14), (false, 8)] {
        let profile = Profile {
            retries_seven_for_ever: is_for_ever,
            ..Profile::default()
        };
        let mut world = World::of(profile, 1);
        let (qa, _) = world.pair(Transport::Rc);
        world.loses = Box::new(|_| true);
        world.post_a(qa, 1, SendOpcode::Send, &[]);
        // 13 timeouts of 67 ms.
        world.run_for(Duration::from_millis(13 * 67 + 13));
        assert_eq!(world.a.statuses().is_empty(), is_for_ever);
        assert_eq!(world.seen.len(), sent);
    }
}

#[test]
fn a_timeout_of_zero_is_never() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    change(&mut world, qa, AttributeMask::TIMEOUT, |attributes| {
        attributes.timeout = 0;
    });
    world.loses = Box::new(|_| true);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.run_for(Duration::from_secs(3600));
    assert_eq!(world.seen.len(), 1);
}

#[test]
fn nothing_is_due_when_all_is_acknowledged() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_b(qb, 1, &[]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.a.nic.counters().retries, 0);
    assert_eq!(world.a.nic.next_timer(), None);
}

#[test]
fn a_missing_packet_is_asked_for_at_once_and_only_once() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (sent, received) = (
        world.a.filled(&pattern(20_000)),
        world.b.buffer(20_000, ALL),
    );
    world.receive_b(qb, 1, &[received.element()]);
    let mut count = 0;
    world.loses = Box::new(move |header| {
        count += u32::from(matches!(header.body, Body::Send(..)));
        count == 5 && matches!(header.body, Body::Send(..))
    });
    world.post_a(qa, 1, SendOpcode::Send, &[sent.element()]);
    world.run();
    assert_eq!(world.now, Duration::ZERO, "no timeout was needed");
    assert_eq!(received.bytes(), pattern(20_000));
    let nak = Syndrome::Nak(NakCode::SequenceError);
    let naks = world.count(|body| matches!(body, Body::Acknowledge(aeth) if aeth.syndrome == nak));
    assert_eq!(naks, 1);
    assert_eq!(world.count(|body| matches!(body, Body::Send(..))), 20 + 16);
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_after_its_time() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let received = world.b.buffer(8, ALL);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    // Code 12 is 0.64 ms.
    world.run_for(Duration::from_micros(639));
    assert_eq!(world.count(|body| matches!(body, Body::Send(..))), 1);
    world.receive_b(qb, 2, &[received.element()]);
    world.run_for(Duration::from_micros(1));
    assert_eq!(world.b.statuses(), [(2, Status::SUCCESS)]);
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
}

#[test]
fn rnr_retry_counts_and_seven_is_for_ever() {
    for (count, sent) in [(0, 1), (1, 2), (6, 7)] {
        let (mut world, qa, _) = World::joined(Transport::Rc);
        change(&mut world, qa, AttributeMask::RNR_RETRY, |attributes| {
            attributes.rnr_retry = count;
        });
        world.post_a(qa, 1, SendOpcode::Send, &[]);
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.a.statuses(), [(1, Status::RNR_RETRY_EXC_ERR)]);
        assert_eq!(world.count(|body| matches!(body, Body::Send(..))), sent);
    }
    let (mut world, qa, _) = World::joined(Transport::Rc);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.a.statuses(), []);
    assert!(world.b.nic.counters().not_ready > 100);
}

#[test]
fn a_write_with_immediate_data_that_finds_no_receive_is_repeated_from_its_last_packet() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let (local, remote) = (world.a.filled(&pattern(3000)), world.b.buffer(3000, ALL));
    let opcode = SendOpcode::WriteWithImmediate(remote.remote(0), [1; 4]);
    world.post_a(qa, 1, opcode, &[local.element()]);
    world.run();
    world.receive_b(qb, 2, &[]);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.b.statuses(), [(2, Status::SUCCESS)]);
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(remote.bytes(), pattern(3000));
    assert_eq!(world.count(|body| matches!(body, Body::Write(..))), 4);
}

#[test]
fn retries_are_counted_anew_for_each_loss() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    change(&mut world, qa, AttributeMask::RETRY_CNT, |attributes| {
        attributes.retry_cnt = 1;
    });
    let mut count = 0;
    world.loses = Box::new(move |header| {
        count += u32::from(header.body.is_request());
        header.body.is_request() && count % 2 == 1
    });
    for number in 0..5 {
        world.receive_b(qb, number, &[]);
        world.post_a(qa, number, SendOpcode::Send, &[]);
        world.run_for(Duration::from_secs(1));
    }
    let expected: Vec<_> = (0..5).map(|number| (number, Status::SUCCESS)).collect();
    assert_eq!(world.a.statuses(), expected);
}

/// Writes of 256 KiB to a peer that needs a millisecond for each packet, with 1% of loss in both directions: their
/// statuses, and the most packets that have waited at the peer.
fn writes_to_a_slow_peer(seed: u64) -> (Vec<(u64, Status)>, usize) {
    const SERVICE: Duration = Duration::from_millis(1);
    let profile = Profile {
        retries_seven_for_ever: false,
        ..Profile::default()
    };
    let mut world = World::of(profile, seed);
    let (qa, _) = world.pair(Transport::Rc);
    let size = 256 << 10;
    let (local, remote) = (world.a.filled(&pattern(size)), world.b.buffer(size, ALL));
    for number in 0..4 {
        let write = SendOpcode::Write(remote.remote(0));
        world.post_a(qa, number, write, &[local.element()]);
    }
    let (mut waiting, mut most, mut packet) = (VecDeque::new(), 0, Vec::new());
    let (mut now, mut served_at) = (Duration::ZERO, Duration::ZERO);
    let mut statuses = Vec::new();
    while statuses.len() < 4 {
        while let Some(route) = world.a.nic.transmit(now, &mut packet) {
            if !world.random().is_multiple_of(100) {
                if waiting.is_empty() {
                    served_at = now + SERVICE;
                }
                waiting.push_back((route, packet.clone()));
            }
        }
        most = most.max(waiting.len());
        let timer = world.a.nic.next_timer().unwrap_or(Duration::MAX);
        if served_at <= timer
            && let Some((route, request)) = waiting.pop_front()
        {
            now = now.max(served_at);
            served_at = now + SERVICE;
            world.b.nic.receive(now, &route, &request);
            while let Some(route) = world.b.nic.transmit(now, &mut packet) {
                if !world.random().is_multiple_of(100) {
                    world.a.nic.receive(now, &route, &packet);
                }
            }
        } else {
            now = now.max(timer);
            world.a.nic.expire(now);
        }
        statuses.extend(world.a.statuses());
    }
    (statuses, most)
}

#[test]
fn retries_do_not_pile_up_at_a_peer_that_is_slow() {
    for seed in 0..10 {
        let (statuses, most) = writes_to_a_slow_peer(seed);
        let succeeded = (0..4).map(|number| (number, Status::SUCCESS));
        assert_eq!(statuses, succeeded.collect::<Vec<_>>(), "seed {seed}");
        // All that may be unacknowledged, twice.
        assert!(most <= 256, "seed {seed}: {most}");
    }
}
